"""No integration derives a message's result by pairing its id with the end of a turn (semantics U11)."""

import textwrap
from typing import Final

import pytest

from tests.unit.repository.correlation import pairings
from tests.unit.repository.tree import name, texts

CANCEL: Final = "services/mailslot_services/ingest/sessions.py"
CHECKER: Final = "services/mailslot_services/verify/turn.py"
EXCEPTIONS: Final = {
    (CANCEL, "cancel_turn", 2): "a cancel names a turn, not a message (C3), and `wait` asks for the end of that turn",
    (CANCEL, "_has_ended", 2): "the same wait",
    (CHECKER, "turn_end", 2): "a ledger is checked: whether the turn that ends is the one that is open",
}
"""(file, function, shape) -> what allows it. No exception is made for shapes 1 and 3, but for the ACP slot (U8)."""

PAIRINGS: Final = {
    "compares both in one loop": """
        def outcome(events, message_id):
            for event in events:
                if event.data.get("messageId") == message_id:
                    turn = event.data["turn"]
                if event.type == "turn/end":
                    return event.data["reason"]
        """,
    "finds the turn by id, then its end by number, in two functions": """
        def turn_of(events, message_id):
            return next(e.data["turn"] for e in events if message_id in e.data["messageIds"])

        def ending(events, number):
            wanted = number
            return next(e for e in events if e.type == "turn/end" and e.data["turn"] == wanted)
        """,
    "keeps a table from id to end": """
        def results(events):
            ends = {}
            for event in events:
                if event.type == "turn/end":
                    ends[current_message_id] = event.data
            return ends
        """,
    "hides the word in a constant": """
        DONE = "turn/end"
        def finished(event, message_id):
            return event.type == DONE and event.data["messageId"] == message_id
        """,
    "hides the word in a set": """
        class Types:
            OVER = frozenset({"turn/end", "session/closed"})
        def finished(event, receipt):
            return event.type in Types.OVER and receipt.message_id == event.message_id
        """,
    "splices the word": """
        def finished(event, mid):
            return event.type == "turn" + "/end" and mid == event.data["messageId"]
        """,
    "joins the word": """
        def finished(event, mid):
            return event.type == "/".join(("turn", "end")) and mid == event.data["messageId"]
        """,
    "tests a prefix only": """
        def finished(event, message_id):
            return event.type.startswith("turn/e") and event.data["messageId"] == message_id
        """,
    "tests a suffix only": """
        def finished(event, message_id):
            return event.type.endswith("/end") and event.data["messageId"] == message_id
        """,
    "asks a predicate": """
        def is_over(event) -> bool:
            return event.type == "turn/end"
        def finished(event, message_id):
            return is_over(event) and message_id in event.ids
        """,
    "uses match": """
        def finished(event, own):
            match event:
                case {"type": "turn/end", "turn": number}:
                    return number == own.turn
        """,
    "uses match on a mapping with the id": """
        def step(self, event):
            match event.type:
                case "turn/end":
                    return self.done
            return event.data["messageId"] == self.mine
        """,
    "uses a class named after the event": """
        def finished(event, message_id):
            return isinstance(event, TurnEnd) and self.open[message_id]
        """,
    "dispatches to a handler": """
        class Slot:
            def close(self, data):
                if data["turn"] == self.turn:
                    self.done.set()
            handlers = {"turn/end": close}
        """,
    "names the handler after the event": """
        class Slot:
            def on_turn_end(self, data):
                if self.waiting.pop(data.message_id):
                    self.done.set()
        """,
    "is a state machine over two methods": """
        class Slot:
            def feed(self, event):
                if event.type == "user/message" and event.data["messageId"] == self._mine:
                    self._admitted = True
                self._look(event)
            def _look(self, event):
                if self._admitted and event.type == "turn/end":
                    self._result = event.data["reason"]
        """,
    "renames the id": """
        def finished(events, receipt):
            wanted = receipt.message_id
            for event in events:
                seen = event.data.get("messageId")
                if seen == wanted and event.type == "user/message":
                    break
                if event.type == "turn/end":
                    return event
        """,
    "renames both sides of the comparison": """
        def finished(events, receipt):
            wanted = receipt.message_id
            ours = wanted
            return [e for e in events if e.type == "turn/end" and ours == e.key]
        """,
    "hands the word to a search": """
        async def result(self, message_id):
            start = self.events.index(message_id)
            return await self.next_of("turn/end", after=start)
        """,
    "hides in a nested function": """
        def result(events, message_id):
            def mine(event):
                return event.data["messageId"] == message_id
            return [e for e in events if e.type == "turn/end" and mine(e)]
        """,
    "hides in a lambda at the top of the module": """
        MATCH = lambda event, message_id: event.type == "turn/end" and event.message_id == message_id
        """,
}

NO_PAIRINGS: Final = {
    "finds the receipt of an own message (U2)": """
        def own_receipt(events, message_id):
            return next(e for e in events if e.type == "inbox/queued" and e.data["messageId"] == message_id)
        """,
    "names the last end of an interval (U3)": """
        def finish_reason(events):
            ends = [e.data["reason"]["kind"] for e in events if e.type == "turn/end"]
            return ends[-1] if ends else None
        """,
    "does both, one after the other, for a run": """
        def own_receipt(event, message_id) -> bool:
            return event.type == "inbox/queued" and event.data["messageId"] == message_id
        def finish_reason(events):
            return next((e.data["reason"] for e in reversed(events) if e.type == "turn/end"), None)
        def result(events, message_id):
            return RunResult(message_id=message_id, finish_reason=finish_reason(events))
        """,
    "recognises an own goal message (U9)": """
        def is_own(event, goal) -> bool:
            return event.type == "user/message" and event.data["messageId"] == goal.message_id
        """,
    "writes the end of a turn that claimed messages": """
        def close(turn, message_ids):
            drafts = [Draft("inbox/dead", {"messageId": message_id}) for message_id in message_ids]
            drafts.append(Draft("turn/end", {"turn": turn}))
            return drafts
        """,
    "writes an event as a mapping": """
        def closing(turn, message_id):
            return [{"type": "turn/end", "data": {"turn": turn}}, {"type": "inbox/dead", "messageId": message_id}]
        """,
    "keeps an own id and counts ends": """
        class Run:
            def __init__(self, message_id):
                self._mine = message_id
            def ended(self, events):
                return [event for event in events if event.type == "turn/end" and event.seq > self.cursor]
            async def submit(self):
                self._mine = new_message_id()
                return await self.client.submit(message_id=self._mine)
        """,
    "knows the whole vocabulary": """
        EVENT_TYPES = ("inbox/queued", "inbox/claimed", "turn/start", "turn/end", "step/start", "step/end")
        def known(event, message_id):
            return event.type in EVENT_TYPES and event.data["messageId"] == message_id
        """,
}


def source(snippet: str) -> dict[str, str]:
    return {"services/slot.py": textwrap.dedent(snippet)}


@pytest.mark.parametrize("snippet", PAIRINGS.values(), ids=PAIRINGS.keys())
def test_a_pairing_is_found_when_it(snippet: str) -> None:
    assert pairings(source(snippet), ["services/slot.py"])


@pytest.mark.parametrize("snippet", NO_PAIRINGS.values(), ids=NO_PAIRINGS.keys())
def test_no_pairing_is_seen_in_code_that(snippet: str) -> None:
    assert pairings(source(snippet), ["services/slot.py"]) == []


def test_a_constant_or_a_predicate_from_another_module_is_seen_through() -> None:
    sources = {
        "core/words.py": "OVER = 'turn/end'\ndef over(event) -> bool:\n    return event.type == OVER\n",
        "sdk/a.py": "def f(event, message_id):\n    return event.type == OVER and event.message_id == message_id\n",
        "sdk/b.py": "def f(event, message_id):\n    return words.over(event) and event.message_id == message_id\n",
    }
    assert [found.path for found in pairings(sources, ["sdk/a.py", "sdk/b.py"])] == ["sdk/a.py", "sdk/b.py"]


def test_a_pairing_in_another_language_is_found_by_nearness() -> None:
    near = "if (event.type === 'turn/end') {\n  if (event.data.messageId === id) resolve(event)\n}\n"
    far = "if (event.type === 'turn/end')\n" + "\n" * 20 + "const messageId = uuid()\n"
    assert pairings({"sdk/slot.ts": near}, ["sdk/slot.ts"])
    assert pairings({"sdk/slot.ts": far}, ["sdk/slot.ts"]) == []


def test_no_integration_pairs_a_message_with_a_result() -> None:
    sources = {name(path): text for path, text in texts("contracts", "core", "sdk", "services")}
    judged = [path for path in sources if path.startswith(("sdk/", "services/"))]
    assert judged
    found = {(pairing.path, pairing.function, pairing.shape): pairing.line for pairing in pairings(sources, judged)}
    wrong = [f"{key[0]}:{line} {key[1]} (shape {key[2]})" for key, line in found.items() if key not in EXCEPTIONS]
    assert not wrong, f"a message id proves admission, not a result (U11); keep receipt and turn's end apart: {wrong}"
    assert not EXCEPTIONS.keys() - found.keys(), "strike out exceptions that are not needed any more"
