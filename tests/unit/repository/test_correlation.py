"""No integration derives a message's result by pairing its id with the end of a turn (semantics U11)."""

import textwrap
from pathlib import PurePath
from typing import Final

import pytest

from tests.unit.repository import typescript
from tests.unit.repository.correlation import Pairing, pairings
from tests.unit.repository.tree import name, texts

CANCEL: Final = "services/mailslot_services/ingest/sessions.py"
CHECKER: Final = "services/mailslot_services/verify/turn.py"
PROSE: Final = (".md", ".json", ".lock", "LICENSE")
"""What runs nowhere."""
TESTS: Final = {"test", "tests", "node_modules", "dist"}
"""Folders whose content is no integration: a test may look at anything."""

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


TYPESCRIPT_PAIRINGS: Final = {
    "compares both in one loop (shape 1)": (
        """
        export function outcome(events: Event[], messageId: string): Reason | undefined {
          for (const event of events) {
            if (event.data.messageId === messageId) { turn = event.data.turn; }
            if (event.type === "turn/end") { return event.data.reason; }
          }
        }
        """,
        1,
    ),
    "filters in arrow functions (shape 1)": (
        """
        export const outcome = async (events, receipt) =>
          (await events).filter((e) => e.messageId === receipt.messageId).find((e) => e.type === "turn/end");
        """,
        1,
    ),
    "keeps a private id and switches (shape 1)": (
        """
        export class Slot {
          readonly #messageId: string;
          #on = (event: Event): void => {
            switch (event.type) {
              case "user/message": this.#admitted = event.data["messageId"] === this.#messageId; break;
              case "turn/end": this.#settle(event.data.reason); break;
            }
          };
        }
        """,
        1,
    ),
    "keeps a map of who waits (shape 1)": (
        """
        function onTurnEnd(event) { waiting.get(event.data.messageId)?.resolve(event.data.reason); }
        """,
        1,
    ),
    "takes the id apart and renames it (shape 1)": (
        """
        function ended(event, { messageId: wanted }) {
          const { messageId: seen } = event.data;
          return event.type === "turn/end" && seen === wanted;
        }
        """,
        1,
    ),
    "looks the id up in a set and matches an expression (shape 1)": (
        "export const ended = (e) => /^turn\\/end$/.test(e.type) && own.has(e.data.messageId);",
        1,
    ),
    "tests a prefix by an expression (shape 1)": (
        "const ended = (e: Event) => { if (/^turn\\/e/.test(e.type) && e.messageId == mine) resolve(e); };",
        1,
    ),
    "hides the word in an enumeration and splices it (shape 1)": (
        """
        enum Kind { Over = `turn/${"end"}` }
        function ended(event, messageId) { return event.type === Kind.Over && messageId === event.messageId; }
        """,
        1,
    ),
    "asks a predicate that does not say that it is one (shape 1)": (
        """
        const over = (event) => event.type === "turn/end";
        function ended(event, messageId) { if (over(event) && messageId in event.ids) { finish(event); } }
        """,
        1,
    ),
    "finds the turn by id, then its end by number, in two functions (shape 2)": (
        """
        const turnOf = (events, id) => events.find((e) => e.data.messageIds?.includes(id))?.data.turn;
        const ending = (events, number) => events.find((e) => e.type === "turn/end" && e.data.turn === number);
        """,
        2,
    ),
    "dispatches on a table of functions (shape 2)": (
        """
        function close(data) { if (data.turn === this.turn) { this.done(); } }
        export const handlers = { "turn/start": open, "turn/end": close };
        """,
        2,
    ),
    "dispatches on a map of functions (shape 2)": (
        """
        function close(data) { if (data.turnNumber === ownTurn) { this.done(); } }
        const handlers = new Map([["turn/end", close]]);
        """,
        2,
    ),
    "listens to a named event in place (shape 2)": (
        """
        session.on("turn/end", ({ turn: ended }) => { if (ended === mine) { resolve(); } });
        """,
        2,
    ),
    "is a state machine over two methods (shape 3)": (
        """
        class Slot {
          feed(event: Event) {
            if (event.type === "user/message" && event.data.messageId === this.#mine) { this.#admitted = true; }
            this.#look(event);
          }
          #look(event: Event) {
            if (this.#admitted && event.type === "turn/end") { this.#result = event.data.reason; }
          }
        }
        """,
        3,
    ),
    "is a state machine at the top of a script (shape 3)": (
        """
        let admitted = false;
        source.addEventListener("session.event", (e) => {
          const event = JSON.parse(e.data);
          if (event.type === "user/message" && event.data.messageId === mine) admitted = true;
          look(event);
        });
        function look(event) { if (admitted && event.type === "turn/end") show(event.data.reason); }
        """,
        3,
    ),
}

TYPESCRIPT_NO_PAIRINGS: Final = {
    "finds the receipt of an own message (U2)": """
        #recordAfter(event: Event) {
          return event.type === "inbox/queued" && event.data.messageId === this.#messageId;
        }
        """,
    "shows the last end of all (U3)": """
        const ends = events.filter((event) => event.type === "turn/end");
        console.log(ends.at(-1)?.data.reason.kind);
        """,
    "reads a message's own record and shows every end, one after the other": """
        const record = (events: Event[], messageId: string) => events.filter((e) => e.data.messageId === messageId);
        function show(event: Event) { if (event.type === "turn/end") { console.log(event.data.reason.kind); } }
        """,
    "declares types": """
        export interface TurnEnd { type: "turn/end"; turn: number; }
        export type Message = { messageId: string; turn: number };
        """,
    "writes events": """
        const fake = [{ type: "turn/end", data: { turn: 1 } }, { type: "inbox/dead", messageId, turn }];
        server.push({ type: "turn/end", data: { turn, messageId } });
        """,
    "sends and prints": """
        const { messageId } = await session.prompt("hello");
        console.log(messageId);
        for await (const event of session.events({ after: receipt.cursor - 1 })) {
          console.log(event.type === "assistant/message" ? event.data.content : event.type);
        }
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


@pytest.mark.parametrize("suffix", [".ts", ".tsx", ".mjs"])
@pytest.mark.parametrize(("snippet", "shape"), TYPESCRIPT_PAIRINGS.values(), ids=TYPESCRIPT_PAIRINGS.keys())
def test_a_pairing_in_typescript_is_found_when_it(snippet: str, shape: int, suffix: str) -> None:
    path = f"sdk/slot{suffix}"
    assert shape in {found.shape for found in pairings({path: textwrap.dedent(snippet)}, [path])}


@pytest.mark.parametrize("snippet", TYPESCRIPT_NO_PAIRINGS.values(), ids=TYPESCRIPT_NO_PAIRINGS.keys())
def test_no_pairing_is_seen_in_typescript_that(snippet: str) -> None:
    assert pairings({"sdk/slot.ts": textwrap.dedent(snippet)}, ["sdk/slot.ts"]) == []


def test_a_pairing_in_a_script_of_a_page_is_found_on_its_line() -> None:
    script = (
        "<script type='module'>\nfunction f(e, messageId) {\n  return e.type === 'turn/end' && e.id === messageId;\n}\n"
    )
    page = f"<p>a turn/end<p>\n{script}</script><p>and a messageId</p>\n"
    assert pairings({"examples/a.html": page}, ["examples/a.html"]) == [Pairing("examples/a.html", 3, "f", 1)]


def test_a_constant_or_a_predicate_from_another_module_in_typescript_is_seen_through() -> None:
    words = (
        "export const OVER = 'turn/end' as const;\nexport function over(e: Event): e is End { return e.type === OVER; }"
    )
    sources = {
        "sdk/words.ts": words,
        "sdk/a.ts": "const f = (event, messageId) => event.type === OVER && event.messageId === messageId;",
        "sdk/b.ts": "const f = (event, messageId) => words.over(event) && event.messageId === messageId;",
    }
    assert [found.path for found in pairings(sources, ["sdk/a.ts", "sdk/b.ts"])] == ["sdk/a.ts", "sdk/b.ts"]


def test_what_the_parser_does_not_understand_is_judged_by_nearness_as_well() -> None:
    broken = "if (event.type === 'turn/end') {{{ ]]\n  if (event.data.messageId === id) resolve(event)\n}\n"
    assert "(lines)" in {found.function for found in pairings({"sdk/slot.ts": broken}, ["sdk/slot.ts"])}


def test_a_pairing_in_another_language_is_found_by_nearness() -> None:
    near = "case event.type\nwhen 'turn/end' then done(event) if event.data.message_id == id\nend\n"
    far = "done if event.type == 'turn/end'\n" + "\n" * 20 + "message_id = uuid\n"
    assert pairings({"sdk/slot.rb": near}, ["sdk/slot.rb"])
    assert pairings({"sdk/slot.rb": far}, ["sdk/slot.rb"]) == []


def product() -> dict[str, str]:
    """Every source file of the product and its examples, whoever added it: path to text."""
    found = ((name(path), text) for path, text in texts("contracts", "core", "sdk", "services", "examples"))
    return {path: text for path, text in found if not path.endswith(PROSE) and not TESTS & set(path.split("/"))}


def test_no_integration_pairs_a_message_with_a_result() -> None:
    sources = product()
    judged = [path for path in sources if path.startswith(("sdk/", "services/", "examples/"))]
    found = {(pairing.path, pairing.function, pairing.shape): pairing.line for pairing in pairings(sources, judged)}
    wrong = [f"{key[0]}:{line} {key[1]} (shape {key[2]})" for key, line in found.items() if key not in EXCEPTIONS]
    assert not wrong, f"a message id proves admission, not a result (U11); keep receipt and turn's end apart: {wrong}"
    assert not EXCEPTIONS.keys() - found.keys(), "strike out exceptions that are not needed any more"


def test_every_integration_is_judged() -> None:
    sources = product()
    expected = (
        "sdk/python/mailslot/run.py",
        "sdk/typescript/src/run.ts",
        "services/mailslot_services/ingest/sessions.py",
    )
    assert set(expected) <= set(sources)
    by_nearness = {PurePath(path).suffix for path in sources} - {".py", *typescript.SUFFIXES}
    assert not by_nearness & {".vue", ".svelte", ".go", ".rs", ".java", ".rb"}, "give its syntax tree to the judge"


def test_typescript_of_the_product_is_understood_by_the_parser() -> None:
    for path, text in product().items():
        if (suffix := PurePath(path).suffix) in typescript.SUFFIXES:
            assert typescript.module(text, suffix)[1], path
