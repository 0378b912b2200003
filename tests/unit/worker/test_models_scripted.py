"""The scripted model: it says what its script says, the same to every process that asks."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mailslot_core.agent import (
    Answer,
    AssistantEntry,
    Entry,
    Finish,
    ModelError,
    Request,
    ToolCall,
    ToolEntry,
    Usage,
    UserEntry,
)
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker.models import Gates, ScriptedModel
from mailslot_services.agent_worker.models.scripted import CRASH_EXIT_CODE
from tests.waiting import wait_until


def user(text: str) -> UserEntry:
    return UserEntry([{"type": "text", "text": text}])


def calling(name: str = "f") -> list[Entry]:
    return [AssistantEntry("", (ToolCall("c", name, {}),)), ToolEntry("c", name, "rain")]


class Asking:
    """Somebody who asks a model and keeps what it streamed."""

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model
        self.deltas: list[str] = []

    async def ask(self, *entries: Entry, **request: Any) -> Answer:
        self.deltas.clear()
        return await self.model.answer(Request(entries, **request), self.heard)

    async def text(self, *entries: Entry, **request: Any) -> str:
        return (await self.ask(*entries, **request)).text

    async def heard(self, text: str) -> None:
        self.deltas.append(text)


def by(*rules: object, gates: Gates | None = None) -> Asking:
    return Asking(ScriptedModel.of(rules, gates=gates))


# -- which rule answers -------------------------------------------------------------------------------------


async def test_the_first_rule_that_applies_answers() -> None:
    model = by({"when": "weather", "say": "rain"}, {"when": {"regex": "^bye\\b"}, "say": "so long"}, "what?")
    assert await model.text(user("the weather, please")) == "rain"
    assert await model.text(user("bye now")) == "so long"
    assert await model.text(user("goodbye")) == "what?"


@pytest.mark.parametrize(
    ("when", "request_is", "request_is_not"),
    [
        ({"turn": 2}, {"turn": 2}, {"turn": 1}),
        ({"step": 2}, {"step": 2}, {"step": 1}),
        ({"attempt": 2}, {"attempt": 2}, {"attempt": 1}),
        ({"session": "s"}, {"session_id": "s"}, {"session_id": "other"}),
    ],
)
async def test_a_rule_may_be_for_one_session_turn_step_or_attempt(
    when: object, request_is: dict[str, Any], request_is_not: dict[str, Any]
) -> None:
    model = by({"when": when, "say": "yes"}, "no")
    assert await model.text(user("hello"), **request_is) == "yes"
    assert await model.text(user("hello"), **request_is_not) == "no"


async def test_a_rule_may_be_for_a_tool_result() -> None:
    model = by({"when": {"result": "rain"}, "say": "Take an umbrella."}, {"calls": [{"name": "f"}]})
    assert await model.text(user("weather?"), *calling()) == "Take an umbrella."
    assert (await model.ask(user("weather?"))).finish is Finish.CALLS


async def test_all_of_a_condition_must_hold() -> None:
    model = by({"when": {"text": "a", "turn": 2}, "say": "both"}, "not both")
    assert await model.text(user("a"), turn=2) == "both"
    assert await model.text(user("a"), turn=1) == "not both"
    assert await model.text(user("b"), turn=2) == "not both"


async def test_a_request_that_no_rule_answers_fails_and_is_named() -> None:
    with pytest.raises(ModelError, match=r"no rule of the script answers step 1 of turn 3: 'hello'") as failed:
        await by({"when": "weather", "say": "rain"}).ask(user("hello"), turn=3)
    assert (failed.value.code, failed.value.retryable) == ("script-ended", False)


# -- answers in order ---------------------------------------------------------------------------------------


async def test_answers_are_given_one_per_step_of_a_message() -> None:
    model = by({"when": "weather", "answers": [{"calls": [{"name": "f"}]}, "It is {result}."]}, "nothing more")
    befores: list[list[Entry]] = [[], [user("earlier"), AssistantEntry("yes")]]
    for before in befores:
        assert (await model.ask(*before, user("weather"))).calls[0].name == "f"
        assert await model.text(*before, user("weather"), *calling()) == "It is rain."
        assert await model.text(*before, user("weather"), *calling(), *calling()) == "nothing more"


async def test_a_sequence_is_given_one_per_answer_of_a_session() -> None:
    model = Asking(ScriptedModel.sequence(["one", "two", "three"]))
    entries: list[Entry] = []
    for expected in ("one", "two", "three"):
        entries.append(user("next"))
        assert await model.text(*entries) == expected
        entries.append(AssistantEntry(expected))
    with pytest.raises(ModelError, match="no rule"):
        await model.ask(*entries, user("next"))


async def test_a_sequence_may_begin_anew() -> None:
    model = Asking(ScriptedModel.sequence(["tick", "tock"], loop=True))
    answered = [AssistantEntry("x")]
    assert [await model.text(user("?"), *answered * count, user("?")) for count in range(5)] == [
        "tick",
        "tock",
        "tick",
        "tock",
        "tick",
    ]


async def test_a_recovered_step_is_answered_as_it_was_the_first_time_by_any_process() -> None:
    rules = [{"answers": ["one", {"calls": [{"name": "f", "arguments": {"n": 1}}, {"name": "f"}]}], "per": "session"}]
    entries = (user("first"), AssistantEntry("one"), user("second"))
    first, other = by(*rules), by(*rules)
    await first.ask(user("somebody else's"), session_id="other")
    answers = [await asked.ask(*entries, turn=2, session_id="s") for asked in (first, first, other)]
    assert answers[0] == answers[1] == answers[2]
    assert [call.call_id for call in answers[0].calls] == ["call-2-1-1", "call-2-1-2"]


async def test_call_ids_differ_from_step_to_step_and_turn_to_turn() -> None:
    model = by({"calls": [{"name": "f"}]})
    places = [(1, 1), (1, 2), (2, 1)]
    ids = [(await model.ask(user("go"), turn=turn, step=step)).calls[0].call_id for turn, step in places]
    assert len(set(ids)) == 3


# -- one answer ---------------------------------------------------------------------------------------------


async def test_an_answer_says_calls_counts_and_ends_as_it_is_told() -> None:
    rule = {
        "say": "You said: {text}",
        "calls": [{"id": "mine", "name": "f", "arguments": {"deep": [{"n": 1}]}}],
        "usage": {"input": 3, "output": 4},
    }
    answer = await by(rule).ask(user("hello"))
    assert answer == Answer(
        "You said: hello", (ToolCall("mine", "f", {"deep": [{"n": 1}]}),), Finish.CALLS, Usage(3, 4), "scripted"
    )
    assert (await by({"say": "and so", "finish": "length"}).ask(user("hello"))).finish is Finish.LENGTH


async def test_an_answer_is_streamed_as_written_or_in_pieces() -> None:
    written = by({"deltas": ["You said: ", "{text}", "."]})
    assert await written.text(user("hello")) == "You said: hello."
    assert written.deltas == ["You said: ", "hello", "."]
    pieces = by({"say": "hello {text}", "pieces": 3})
    assert await pieces.text(user("you")) == "hello you"
    assert pieces.deltas == ["hel", "lo ", "you"]


async def test_an_attempt_fails_as_often_as_it_is_told() -> None:
    fail = {"code": "rate-limited", "message": "slow down", "retry_after_ms": 50, "times": 2}
    model = by({"say": "at last", "fail": fail})
    for attempt in (1, 2):
        with pytest.raises(ModelError, match="slow down") as failed:
            await model.ask(user("hello"), attempt=attempt)
        error = failed.value
        assert (error.code, error.retryable, error.retry_after_ms) == ("rate-limited", True, 50)
    assert await model.text(user("hello"), attempt=3) == "at last"


async def test_a_failure_may_come_after_something_was_visible_and_may_be_for_good() -> None:
    model = by({"deltas": ["half an ans"], "fail": {"code": "bad-request", "retryable": False}})
    for attempt in (1, 9):
        with pytest.raises(ModelError) as failed:
            await model.ask(user("hello"), attempt=attempt)
        assert not failed.value.retryable
        assert model.deltas == ["half an ans"]


async def test_a_gate_stops_a_model_in_mid_stream_until_it_is_opened() -> None:
    gates = Gates()
    model = by({"deltas": ["half ", {"wait": "go", "text": "an "}, "answer"]}, gates=gates)
    task = asyncio.create_task(model.text(user("hello")))
    await asyncio.wait_for(gates.reached("go"), 5)
    assert model.deltas == ["half "]
    assert not task.done()
    gates.open("go")
    assert await asyncio.wait_for(task, 5) == "half an answer"
    assert model.deltas == ["half ", "an ", "answer"]


async def test_a_gate_that_was_closed_stops_the_next_one() -> None:
    gates = Gates()
    model = by({"say": "through", "wait": "go"}, gates=gates)
    gates.open("go")
    assert await asyncio.wait_for(model.text(user("hello")), 5) == "through"
    gates.close("go")
    task = asyncio.create_task(model.text(user("hello")))
    await asyncio.wait_for(gates.reached("go"), 5)
    assert not task.done()
    task.cancel()


async def test_a_gate_between_processes_is_a_file(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("gates: gates\nrules:\n- {deltas: [half, {wait: go}], say: half}\n")
    model = Asking(ScriptedModel.load(script))
    task = asyncio.create_task(model.text(user("hello")))
    await wait_until(lambda: model.deltas, 5, "the first delta")
    assert not task.done()
    (tmp_path / "gates").mkdir()
    (tmp_path / "gates/go").touch()
    assert await asyncio.wait_for(task, 5) == "half"


async def test_a_model_that_hangs_is_ended_by_whoever_stops_waiting() -> None:
    model = by({"deltas": ["half"], "hang": True})
    task = asyncio.create_task(model.ask(user("hello")))
    await wait_until(lambda: model.deltas, 5, "the first delta")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)


def test_a_script_that_crashes_takes_the_process_with_it() -> None:
    program = (
        "import asyncio\n"
        "from mailslot_core.agent import Request\n"
        "from mailslot_services.agent_worker.models import ScriptedModel\n"
        "async def heard(text): print(text, flush=True)\n"
        "model = ScriptedModel.of([{'deltas': ['half'], 'crash': True}])\n"
        "asyncio.run(model.answer(Request([]), heard))\n"
        "print('survived')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ)
    assert (ended.returncode, ended.stdout) == (CRASH_EXIT_CODE, "half\n")


def test_a_script_is_never_instant() -> None:
    assert not ScriptedModel.of(["hello"]).instant


# -- files --------------------------------------------------------------------------------------------------

THE_DEMO = """\
# A person's first script.
- when: weather
  answers:
    - calls:
        - name: get_weather
          arguments: {city: Berlin}
    - say: It is {result}.
- I only know about the weather.
"""


async def test_a_script_is_a_file_of_yaml_or_json(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(THE_DEMO)
    rules = [{"when": "weather", "answers": [{"calls": [{"name": "get_weather"}]}, "It is {result}."]}, "Only weather."]
    (tmp_path / "demo.json").write_text(json.dumps({"rules": rules}))
    for name, otherwise in (("demo.yaml", "I only know about the weather."), ("demo.json", "Only weather.")):
        model = Asking(ScriptedModel.load(tmp_path / name))
        assert (await model.ask(user("weather?"))).calls[0].name == "get_weather"
        assert await model.text(user("weather?"), *calling()) == "It is rain."
        assert await model.text(user("hello")) == otherwise


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- {say: hi, colour: red}", "line 1: rule 1, colour: is not known here"),
        (
            "- hello\n- when: {turn: 0}\n  say: hi",
            "line 2: rule 2, when, turn: input should be greater than or equal to 1",
        ),
        (
            "- when: a\n  answers:\n  - hi\n  - calls:\n    - {nme: f}",
            "line 5: rule 1, answer 2, call 1, name: is missing",
        ),
        ("rules:\n- say: 7", "line 2: rule 1, say: must be text"),
        ("- {when: {regex: '('}, say: hi}", "line 1: rule 1, when, regex: is no regular expression"),
        ("- {when: a}", "line 1: rule 1: needs either an answer of its own"),
        ("- {say: a, answers: [b]}", "line 1: rule 1: needs either an answer of its own"),
        ("- {delay_ms: 5}", "line 1: rule 1: an answer needs say, calls, deltas, fail, hang or crash"),
        ("- {calls: [{name: f, arguments: {at: 2024-01-01}}]}", "line 1: rule 1, call 1, arguments"),
        ("- {calls: [{name: f, arguments: {n: 99999999999999999999}}]}", "must be an integer of at most 64 bits"),
        ("- {say: a, deltas: [b]}", "line 1: rule 1: say differs from what the deltas come to"),
        ("- {say: hi, wait: 'no/such'}", "line 1: rule 1, wait: string should match pattern"),
        ("- {say: hi, wait: go}", "waits at go, but nobody keeps its gates"),
        ("- say: [unclosed", "line 1: expected ',' or ']'"),
        ("just text", "must be a table"),
        ("rules: []", "line 1: rules: has too few items"),
        ("", "must be a table"),
    ],
)
def test_a_mistake_in_a_script_is_named_with_its_line_and_rule(tmp_path: Path, text: str, complaint: str) -> None:
    script = tmp_path / "script.yaml"
    script.write_text(text)
    with pytest.raises(Misconfigured) as refused:
        ScriptedModel.load(script)
    assert str(refused.value).startswith(f"script {script}")
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("missing.yaml", None, "cannot be read: No such file or directory"),
        ("bad.yaml", b"say: \xff", "is not UTF-8 at byte 5"),
        ("bad.json", b'{\n"rules": }', "line 2: Expecting value"),
    ],
)
def test_a_file_that_is_no_script_is_named(tmp_path: Path, name: str, content: bytes | None, complaint: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(Misconfigured, match=complaint):
        ScriptedModel.load(tmp_path / name)
