"""`mailslot run "task"`: one task, from idle to idle, and what the agent said last.

    wait idle ──> note its seq ──> send ──> wait idle ──> print the last text, exit by how the last turn ended

Rule 1: the interval is owned from one idle of the whole agent to the next one after the message. What happened before
        is not printed, whatever arrives late.
Rule 2: an assistant message without text does not erase the one before it.
Rule 3: only a last turn that ended `completed` is exit code 0, whether or not it was interrupted.
Rule 4: stdout has the answer and nothing else: the text; or with `--json` each event of the interval as a line while
        it comes, and as the last line the whole result.
Rule 5: Ctrl-C stops what the run began, and nothing else (see `interrupt`).
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from mailslot.answer import Receipt, Rest
from mailslot.cli.exits import Exit, of_result
from mailslot.cli.interrupt import Interrupt, stopped
from mailslot.cli.options import Command, Parser, add_json, add_text, identifier, parser, seconds, text_of, transport
from mailslot.cli.output import line_of, put_json
from mailslot.cli.terminal import StatusLine, put, say
from mailslot.event import Event
from mailslot.ids import new_id
from mailslot.interval import RunResult
from mailslot.operation import Address, Draft, draft
from mailslot.run import idle_to_idle
from mailslot.transport import Transport


def _parser() -> Parser:
    made = parser(
        "run",
        "Send a task, wait until the whole agent is idle, print what it said last.\n\n"
        "Ctrl-C stops what the run began and waits until the agent is idle; a second one leaves the agent at work.",
        'mailslot run "summarise the report"',
        'mailslot run --session demo --timeout 10m "and now in French"',
        "git diff | mailslot run --stdin --agent reviewer",
        'mailslot run --json "hello" | jq .type',
    )
    add_text(made, "task")
    made.add_argument("--session", type=identifier, help="the session to run it in (default: a new one)")
    made.add_argument("--agent", type=identifier, help="the agent of a session that does not exist yet")
    add_json(made, "print each event as a line of JSON while it comes, and the whole result as the last line")
    made.add_argument(
        "--timeout", type=seconds, metavar="DURATION", help="give up waiting after so long: 90 (seconds), 5m, 1h30m"
    )
    return made


def _act(made: Parser, options: argparse.Namespace) -> int:
    message = draft(text_of(made, options, "task"))
    address = Address(options.session or new_id(), options.agent)
    with contextlib.closing(transport(made, options)) as way, StatusLine() as line:
        handbrake = Interrupt(
            stop=lambda: _stopped(made, options, address, message),
            say=lambda text: _remark(line, text),
            bye=lambda: line.leave(f"mailslot run: {_left(address, message, handbrake)}"),
        )
        with handbrake.heard():
            result = _run(way, address, message, options, line, handbrake)
    if options.json:
        put_json(result.wire())
    elif result.final_response:
        put(result.final_response)
    return _report(result)


def _remark(line: StatusLine, text: str) -> None:
    """What is said beside the run; that nobody reads it keeps nothing from being stopped."""
    with contextlib.suppress(OSError):
        line.say(f"mailslot run: {text}")


def _stopped(made: Parser, options: argparse.Namespace, address: Address, message: Draft) -> str:
    """Over connections of its own: those of the run go when the run does."""
    with contextlib.closing(transport(made, options)) as way:
        return stopped(way, Address(address.session_id), message.message_id)


def _left(address: Address, message: Draft, handbrake: Interrupt) -> str:
    if not handbrake.begun:
        return "left before the task was sent"
    if not handbrake.kept:
        return f"left; message {message.message_id} may be kept in session {address.session_id}, or not"
    return f"left; the agent goes on with message {message.message_id} in session {address.session_id}"


def _run(
    way: Transport,
    address: Address,
    message: Draft,
    options: argparse.Namespace,
    line: StatusLine,
    handbrake: Interrupt,
) -> RunResult:
    operation = idle_to_idle(way.terms.within(options.timeout), address, message)
    with contextlib.closing(way.follow(operation)) as given:
        line.show("connecting")
        for item in _noted(given, handbrake):
            if isinstance(item, RunResult):
                return item
            if options.json and isinstance(item, Event):
                line.put(line_of(item.envelope(address.session_id)))
            text = _progress(item)
            if text is not None:
                line.show(text)
    raise AssertionError("a run ends with a result or an error")


def _noted(given: Iterator[Any], handbrake: Interrupt) -> Iterator[Any]:
    """What a run gives; on its way, what an interruption must know of it is noted."""
    for item in given:
        if isinstance(item, Rest):
            handbrake.begun = item.idle
        elif isinstance(item, Receipt):
            handbrake.sent()
        yield item


def _report(result: RunResult) -> Exit:
    """Say on stderr what an exit code other than 0 cannot."""
    code = of_result(result)
    if code is Exit.NO_TURN:
        message = result.message
        why = message.cause or message.reason
        say(f"mailslot run: no turn ended; the message is {message.state}" + (f" ({why})" if why else ""))
    elif code is Exit.ENDED_OTHERWISE:
        say(f"mailslot run: the last turn ended {result.finish_reason}{_why(result.events)}")
    return code


def _why(events: Sequence[Event]) -> str:
    ends = [event for event in events if event.type == "turn/end"]
    reason = ends[-1].data.get("reason", {})
    words = [str(reason[name]) for name in ("cause", "code", "message") if reason.get(name)]
    return f": {', '.join(words)}" if words else ""


def _progress(item: object) -> str | None:
    """What to show for something that a run gave; None leaves what is shown."""
    if isinstance(item, Rest):
        return None if item.idle else f"waiting for the agent to be idle: {', '.join(item.reasons) or 'running'}"
    if isinstance(item, Receipt):
        return "queued"
    show = _SHOWN.get(item.type) if isinstance(item, Event) else None
    return show(item.data) if show is not None and isinstance(item, Event) else None


_SHOWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "step/start": lambda data: f"turn {data.get('turn')}, step {data.get('step')}",
    "tool/call": lambda data: f"turn {data.get('turn')}, step {data.get('step')}: tool {data.get('name')}",
    "tool/result": lambda data: f"turn {data.get('turn')}, step {data.get('step')}",
    "llm/retry": lambda data: (
        f"turn {data.get('turn')}: retry in {data.get('delayMs', 0) / 1000:g} s, {data.get('code')}"
    ),
    "turn/recovered": lambda data: f"turn {data.get('turn')}: taken over after a {data.get('reason')}",
    "turn/end": lambda data: f"turn {data.get('turn')} ended; waiting for idle",
}

RUN: Final = Command(_parser, _act)
