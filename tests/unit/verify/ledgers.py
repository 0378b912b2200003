"""Ledgers written by hand, one word an event, and the same as the bytes a server keeps.

    words                  q:A  qs:S  qi:C  R  I  T1  c:A,B  S1  u:A  a  a:x,y  call:x  result:x  s1  t1  t1:aborted …
    ledger("q:A R T1 c:A S1 u:A a s1 t1 I")

What a message says stands behind its name, where it matters: `q:A,pay_Bob`, `replaced:A,pay_Eve`, `u:A,pay_Eve`.
A word `+50` moves the clock on by 50 ms, `^` hands the session to another owner (the epoch rises). Every event has the
time and the epoch of the moment; an act is over when the clock moves, which `|` does by 1 ms.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from mailslot_services.verify.ledger import Entry

BEGAN_MS = 1_764_554_400_000
Data = dict[str, Any]


def queue(lane: str, wake: bool) -> Callable[[str], tuple[str, Data]]:
    def word(rest: str) -> tuple[str, Data]:
        name, *options = rest.split(",")
        data: Data = {"messageId": name, "lane": lane, "wake": wake, "content": [], "source": {"kind": "user"}}
        for option in options:
            key, _, value = option.partition("=")
            if value:
                data[key] = BEGAN_MS + int(value)
            elif option == "redrive":
                data[key] = True
            else:
                data["content"] = text(option)
        return "inbox/queued", data

    return word


def text(said: str) -> list[Data]:
    """One block of text; no text is no block."""
    return [{"type": "text", "text": said}] if said else []


def of_message(kind: str, **more: Any) -> Callable[[str], tuple[str, Data]]:
    return lambda rest: (kind, {"messageId": rest, **more})


def with_content(kind: str, **more: Any) -> Callable[[str], tuple[str, Data]]:
    def word(rest: str) -> tuple[str, Data]:
        name, _, said = rest.partition(",")
        return kind, {"messageId": name, "content": text(said), **more}

    return word


WORDS: Mapping[str, Callable[[str], tuple[str, Data]]] = {
    "q": queue("next-turn", wake=True),
    "qs": queue("next-step", wake=True),
    "qi": queue("next-step", wake=False),
    "due": of_message("inbox/due"),
    "moved": of_message("inbox/moved", lane="next-step"),
    "replaced": with_content("inbox/replaced"),
    "expired": of_message("inbox/expired"),
    "withdrawn": of_message("inbox/cancelled", cause="withdrawn"),
    "x": of_message("inbox/cancelled", cause="cancel"),
    "dead": of_message("inbox/dead", reason="crashes", attempts=3),
    "held": lambda rest: ("inbox/held", {"cause": "cancel"}),
    "released": lambda rest: ("inbox/released", {"cause": "submit"}),
    "R": lambda rest: ("agent/status", {"status": "running"}),
    "I": lambda rest: ("agent/status", {"status": "idle"}),
    "closed": lambda rest: ("session/closed", {"cause": "user"}),
    "other": lambda rest: ("something/new", {}),
    "damaged": lambda rest: ("inbox/queued", {}),
}


IN_STEP: Mapping[str, Callable[[str], tuple[str, Data]]] = {
    "u": with_content("user/message", source={"kind": "user"}),
    "a": lambda rest: ("assistant/message", {"content": [], "toolCalls": calls(rest), "model": "m"}),
    "call": lambda rest: ("tool/call", {"callId": rest, "name": "tool", "arguments": {}}),
    "result": lambda rest: ("tool/result", {"callId": rest, "content": []}),
    "retry": lambda rest: ("llm/retry", {"attempt": 1, "delayMs": 1, "code": "timeout", "message": ""}),
}


def calls(rest: str) -> list[Data]:
    return [{"callId": call, "name": "tool", "arguments": {}} for call in rest.split(",") if call]


class Writer:
    """Writes one ledger; knows where it is, so that words need not say it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.time, self.epoch, self.turn, self.step = BEGAN_MS, 1, 0, 0

    def write(self, word: str) -> None:
        if word == "|":
            self.time += 1
        elif word[0] in "+-" and word[1:].isdigit():
            self.time += int(word)
        elif word == "^":
            self.epoch += 1
        elif word == "v":
            self.epoch -= 1
        else:
            self.append(*self.event(word))

    def append(self, kind: str, data: Data) -> None:
        self.entries.append(Entry(len(self.entries) + 1, kind, self.time, self.epoch, data))

    def event(self, word: str) -> tuple[str, Data]:
        name, _, rest = word.partition(":")
        if name in WORDS:
            return WORDS[name](rest)
        if name[0] in "TtSs" and name[1:].isdigit():
            return self.boundary(name[0], int(name[1:]), rest or "completed")
        return self.in_step(name, rest)

    def boundary(self, letter: str, number: int, kind: str) -> tuple[str, Data]:
        match letter:
            case "T":
                self.turn, self.step = number, 0
                return "turn/start", {"turn": number}
            case "t":
                return "turn/end", {"turn": number, "reason": {"kind": kind}}
            case "S":
                self.step = number
                return "step/start", {"turn": self.turn, "step": number}
            case _:
                return "step/end", {"turn": self.turn, "step": number}

    def in_step(self, name: str, rest: str) -> tuple[str, Data]:
        here = {"turn": self.turn, "step": self.step}
        match name:
            case "c":
                return "inbox/claimed", {"turn": self.turn, "messageIds": rest.split(",")}
            case "cs":
                return "inbox/claimed", {"turn": self.turn, "step": self.step + 1, "messageIds": rest.split(",")}
            case "rej":
                return "inbox/rejected", {"messageId": rest, "turn": self.turn, "reason": "no"}
            case "cancel":
                return "cancel/requested", self.cancel(rest)
            case "recovered":
                attempt, _, reason = rest.partition(",")
                return "turn/recovered", {"turn": self.turn, "attempt": int(attempt), "reason": reason or "crash"}
        kind, data = IN_STEP[name](rest)
        return kind, {**here, **data}

    def cancel(self, rest: str) -> Data:
        """`cancel:` names the present turn; `cancel:0` none, `cancel:3` that one; `,clear` the queue's fate."""
        number, _, queue = rest.partition(",")
        turn = int(number) if number else self.turn
        return {"cause": "user", "queue": queue or "keep", **({"turn": turn} if turn else {})}


def ledger(words: str) -> list[Entry]:
    writer = Writer()
    for word in words.split():
        writer.write(word)
    return writer.entries


def raw(entries: list[Entry]) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """As XRANGE gives it."""
    return [
        (
            f"{entry.seq}-0".encode(),
            {
                b"type": entry.type.encode(),
                b"time": str(entry.time).encode(),
                b"epoch": str(entry.epoch).encode(),
                b"data": b"\x01" + msgpack.packb(entry.data),
            },
        )
        for entry in entries
    ]
