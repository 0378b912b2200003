"""`mailslot run "task"`: one task, from idle to idle, and what the agent said last.

    wait idle ──> note its seq ──> send ──> wait idle ──> print the last text, exit by how the last turn ended

Rule 1: the interval is owned from one idle of the whole agent to the next one after the message. What happened before
        is not printed, whatever arrives late.
Rule 2: an assistant message without text does not erase the one before it.
Rule 3: only a last turn that ended `completed` is exit code 0.
Rule 4: stdout has the answer and nothing else: the text, or with `--json` the result as one line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from mailslot.answer import Receipt, Rest
from mailslot.cli.exits import Exit, of_result
from mailslot.cli.options import add_text, identifier, parser, seconds, text_of, transport
from mailslot.cli.terminal import StatusLine, put, say
from mailslot.event import Event
from mailslot.ids import new_id
from mailslot.interval import RunResult
from mailslot.operation import Address, draft
from mailslot.run import idle_to_idle
from mailslot.transport import Transport


def command(argv: Sequence[str]) -> int:
    """Send a task, wait until the agent is idle, print what it said last."""
    made = _parser()
    options = made.parse_args(argv)
    task = text_of(made, options, "task")
    with contextlib.closing(transport(made, options)) as way:
        result = _run(way, options, task)
    if options.json:
        put(json.dumps(result.wire(), ensure_ascii=False, separators=(",", ":")))
    elif result.final_response:
        put(result.final_response)
    return _report(result)


def _parser() -> argparse.ArgumentParser:
    made = parser("run", "Send a task, wait until the whole agent is idle, print what it said last.")
    add_text(made, "task")
    made.add_argument("--session", type=identifier, help="the session to run it in (default: a new one)")
    made.add_argument("--agent", type=identifier, help="the agent of a session that does not exist yet")
    made.add_argument("--json", action="store_true", help="print the whole result as one line of JSON")
    made.add_argument("--timeout", type=seconds, metavar="SECONDS", help="give up waiting after so many seconds")
    return made


def _run(way: Transport, options: argparse.Namespace, task: str) -> RunResult:
    address = Address(options.session or new_id(), options.agent)
    operation = idle_to_idle(way.terms.within(options.timeout), address, draft(task))
    with StatusLine() as line, contextlib.closing(way.follow(operation)) as given:
        line.show("connecting")
        for item in given:
            if isinstance(item, RunResult):
                return item
            text = _progress(item)
            if text is not None:
                line.show(text)
    raise AssertionError("a run ends with a result or an error")


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
        return f"waiting for the agent to be idle: {', '.join(item.reasons) or 'running'}"
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
