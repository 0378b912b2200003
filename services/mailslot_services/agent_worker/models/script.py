"""The format of a script: what a scripted model answers, and when.

    rules:
      - when: weather                                  # the newest user text holds this
        answers:                                       # one for each step of that message
          - calls: [{name: get_weather, arguments: {city: Berlin}}]
          - say: "It is {result}."
      - say: "I only know about the weather."          # no `when`: always

Rule 1: rules are tried from the top; the first that applies answers.
Rule 2: a rule sees the request alone: its texts, session, turn, step, attempt, and how many answers its transcript
        holds. So a recovered step is answered as it was the first time, by any process.
Rule 3: `answers` are given in order, one per model call since the newest user message (`per: message`), or since the
        session began (`per: session`). After the last one the rule no longer applies, or begins anew (`loop: true`).
Rule 4: nothing is guessed. An unknown key or a wrong type is refused with the file, the line and the rule.

Every key with an example: docs/agents.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)

from mailslot_contracts.codec import check_value
from mailslot_contracts.problems import BadValue
from mailslot_core.agent import AssistantEntry, Entry, Finish, Request, ToolEntry, UserEntry
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker.models.option import complaint
from mailslot_services.agent_worker.transcript import newest_user_text

WAIT_MS_MAX: Final = 3_600_000
"""Longest wait that a script may ask for, in ms."""

PIECES_MAX: Final = 10_000
"""Most pieces that a script may stream one answer in."""

FILE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Largest script file."""

WaitMs = Annotated[int, Field(ge=0, le=WAIT_MS_MAX)]
GateName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


def _short(key: str) -> BeforeValidator:
    """A bare text stands for a table with this one key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


# -- answers ------------------------------------------------------------------------------------------------


def _ledger_value(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    try:
        check_value(value)
    except BadValue as error:
        raise ValueError(str(error)) from None
    return value


class Call(_Part):
    """A tool call. Without an `id` it gets one that is the same whenever the step is answered again."""

    name: str = Field(min_length=1, max_length=200)
    arguments: Annotated[dict[str, JsonValue], AfterValidator(_ledger_value)] = Field(default_factory=dict)
    id: str | None = Field(None, min_length=1, max_length=200)


class Failure(_Part):
    """A failed attempt. With `times`, that many attempts fail and the next one answers."""

    code: str = Field("overloaded", min_length=1, max_length=200)
    message: str = "the script says so"
    retryable: bool = True
    retry_after_ms: WaitMs | None = None
    times: int | None = Field(None, ge=1)


class Tokens(_Part):
    """What an answer says it used, in tokens."""

    input: int = Field(0, ge=0)
    output: int = Field(0, ge=0)


class Delta(_Part):
    """A piece of a streamed answer, or a place in the stream where the model waits: first the waits, then the text."""

    ms: WaitMs = 0
    wait: GateName | None = None
    text: str = ""


class Say(_Part):
    """One answer. In this order: `delay_ms`, `wait`, what is streamed, then `hang`, `crash`, `fail` or the answer."""

    say: str | None = None
    calls: tuple[Call, ...] = Field((), strict=False)
    finish: Finish | None = Field(None, strict=False)
    usage: Tokens = Tokens()
    delay_ms: WaitMs = 0
    wait: GateName | None = None
    deltas: tuple[Annotated[Delta, _short("text")], ...] = Field((), strict=False)
    pieces: int = Field(0, ge=0, le=PIECES_MAX)
    delta_ms: WaitMs = 0
    fail: Failure | None = None
    hang: bool = False
    crash: bool = False

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if not self.model_fields_set & {"say", "calls", "deltas", "fail", "hang", "crash"}:
            raise ValueError("an answer needs say, calls, deltas, fail, hang or crash")
        if self.deltas and self.pieces:
            raise ValueError("deltas say how it is streamed already; leave pieces out")
        if self.deltas and self.say not in (None, self.streamed):
            raise ValueError("say differs from what the deltas come to; leave it out")
        if self.finish is Finish.CALLS and not self.calls:
            raise ValueError("finish: calls needs calls")
        return self

    @property
    def streamed(self) -> str:
        """What the deltas come to."""
        return "".join(delta.text for delta in self.deltas)

    @property
    def text(self) -> str:
        """What is said in the end."""
        return self.streamed if self.say is None else self.say

    @property
    def gates(self) -> set[str]:
        """The gates it waits at."""
        return {name for name in (self.wait, *(delta.wait for delta in self.deltas)) if name is not None}


# -- rules --------------------------------------------------------------------------------------------------


class Seen:
    """What a script looks at in a request."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.text = newest_user_text(request.transcript)
        self.result = newest_result(request.transcript)

    def answered(self, per: str) -> int:
        """How many answers came before this one, since the newest user message or in the whole session."""
        entries = self.request.transcript
        return answers_since_user(entries) if per == "message" else answers_in(entries)

    def filled(self, text: str) -> str:
        """The text with `{text}` and `{result}` replaced by the newest user text and the newest tool result."""
        return text.replace("{text}", self.text).replace("{result}", self.result)


def newest_result(entries: Sequence[Entry]) -> str:
    """The newest tool result, empty when there is none."""
    return next((entry.content for entry in reversed(entries) if isinstance(entry, ToolEntry)), "")


def answers_in(entries: Sequence[Entry]) -> int:
    """How many answers the transcript holds."""
    return sum(isinstance(entry, AssistantEntry) for entry in entries)


def answers_since_user(entries: Sequence[Entry]) -> int:
    """How many answers came after the newest user message."""
    count = 0
    for entry in reversed(entries):
        if isinstance(entry, UserEntry):
            break
        count += isinstance(entry, AssistantEntry)
    return count


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return value


class When(_Part):
    """What a request must be for a rule to apply. All that is given must hold."""

    text: str | None = None
    regex: Annotated[str, AfterValidator(_pattern)] | None = None
    result: str | None = None
    session: str | None = None
    turn: int | None = Field(None, ge=1)
    step: int | None = Field(None, ge=1)
    attempt: int | None = Field(None, ge=1)

    def holds(self, seen: Seen) -> bool:
        """Whether the request is so."""
        request = seen.request
        equal = (
            (self.session, request.session_id),
            (self.turn, request.turn),
            (self.step, request.step),
            (self.attempt, request.attempt),
        )
        inside = ((self.text, seen.text), (self.result, seen.result))
        return (
            all(wanted in (None, found) for wanted, found in equal)
            and all(wanted is None or wanted in found for wanted, found in inside)
            and (self.regex is None or re.search(self.regex, seen.text) is not None)
        )


ANSWER_KEYS: Final = frozenset(Say.model_fields)


def _own_answer(rule: object) -> object:
    """A rule with an answer of its own (`say` beside `when`): the answer's keys are put under `always`."""
    rule = {"say": rule} if isinstance(rule, str) else rule
    if not isinstance(rule, dict) or not ANSWER_KEYS & rule.keys():
        return rule
    answer = {key: value for key, value in rule.items() if key in ANSWER_KEYS}
    return {key: value for key, value in rule.items() if key not in ANSWER_KEYS} | {"always": answer}


class Rule(_Part):
    """When, and what then: one answer every time, or several in order."""

    when: Annotated[When, _short("text")] = When()
    always: Say | None = None
    answers: tuple[Annotated[Say, _short("say")], ...] | None = Field(None, strict=False, min_length=1)
    per: Literal["message", "session"] = "message"
    loop: bool = False

    @model_validator(mode="after")
    def _answers_one_way(self) -> Self:
        if (self.always is None) == (self.answers is None):
            raise ValueError("needs either an answer of its own (say, calls, ...) or a list of answers")
        return self

    @property
    def all_answers(self) -> tuple[Say, ...]:
        """Every answer it may give."""
        return self.answers or ((self.always,) if self.always else ())

    def answer(self, seen: Seen) -> Say | None:
        """What it answers to the request, None when it does not apply."""
        if not self.when.holds(seen):
            return None
        if self.answers is None:
            return self.always
        place = seen.answered(self.per)
        if self.loop:
            place %= len(self.answers)
        return self.answers[place] if place < len(self.answers) else None


class Script(_Part):
    """A whole script. `gates` is a folder, seen from the script's own, in which files open gates."""

    rules: tuple[Annotated[Rule, BeforeValidator(_own_answer)], ...] = Field(strict=False, min_length=1)
    gates: str | None = None

    def answer(self, seen: Seen) -> Say | None:
        """What the first rule that applies answers; None: none does."""
        found = (rule.answer(seen) for rule in self.rules)
        return next((answer for answer in found if answer is not None), None)

    @property
    def gate_names(self) -> list[str]:
        """Every gate that some answer waits at."""
        return sorted({name for rule in self.rules for answer in rule.all_answers for name in answer.gates})


# -- reading ------------------------------------------------------------------------------------------------

LineOf = Callable[[Sequence[int | str]], str]
"""Where in a file something stands: `, line 12`, or nothing when that is not known."""


def read_script(path: Path) -> Script:
    """The script in a YAML or JSON file: a list of rules, or a table with `rules`. Misconfigured names the mistake."""
    text = _text(path)
    try:
        value: object = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise Misconfigured(f"script {path}, line {error.lineno}: {error.msg}") from None
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise Misconfigured(f"script {path}{where}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise Misconfigured(f"script {path}: {error}") from None
    return parse_script(value, str(path), (lambda _: "") if path.suffix == ".json" else _lines_of(text))


def parse_script(value: object, source: str, line_of: LineOf = lambda _: "") -> Script:
    """The script that plain data stands for; `source` names it in errors."""
    try:
        return Script.model_validate({"rules": value} if isinstance(value, list) else value)
    except ValidationError as error:
        place = error.errors(include_url=False)[0]["loc"]
        raise Misconfigured(f"script {source}{line_of(place)}: {_sentence(error, place)}") from None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise Misconfigured(f"script {path} is larger than {FILE_BYTES_MAX} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise Misconfigured(f"script {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Misconfigured(f"script {path} is not UTF-8 at byte {error.start}") from None


def _lines_of(text: str) -> LineOf:
    def line_of(place: Sequence[int | str]) -> str:
        node: Any = yaml.compose(text)
        # A file that is the list of rules itself has no key `rules`, and `always` is in no file.
        steps = place[1:] if isinstance(node, yaml.SequenceNode) else place
        for step in steps:
            node = _child(node, step) or node
        return f", line {node.start_mark.line + 1}" if node is not None else ""

    return line_of


def _child(node: object, step: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        item: yaml.Node = node.value[step]
        return item
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    return None


COUNTED: Final = ("rules", "answers", "calls", "deltas")


def _sentence(error: ValidationError, place: Sequence[int | str]) -> str:
    """What is wrong and where, with rules, answers and calls counted from 1 as people do."""
    words: list[str] = []
    for before, step in zip(("", *place), place, strict=False):
        if isinstance(step, int) and before in COUNTED:
            words[-1] = f"{str(before)[:-1]} {step + 1}"
        elif step != "always":
            words.append(str(step))
    reason = complaint(error).removeprefix(".".join(str(step) for step in place)).removeprefix(": ")
    return f"{', '.join(words)}: {reason}" if words else reason
