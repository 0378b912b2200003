"""What the model has seen and said: the transcript, folded from the ledger.

    user/message  assistant/message  tool/result   everything else
         |               |                |               |
         v               v                v               x
     UserEntry    AssistantEntry      ToolEntry

Rule 1: three event types make the transcript and nothing else does (semantics L6).
Rule 2: `extend` is incremental: extending by a, then by b, is extending by a and b.
Rule 3: an interrupted answer stays as the text that was visible; half a tool call never got here (T9).
Rule 4: between a tool call and its result nothing stands (T3, T6); `check_history` says where that is broken.
Rule 5: a cached transcript is taken out when a session is granted and put back when its turn has been settled, so
        whatever goes wrong in between leaves nothing stale behind. When others drove the session meanwhile, it goes
        back to its mark, up to which it is the ledger's, and only what followed is read.
Rule 6: a transcript in a worker's hands grows in place and knows its weight: a turn of a long session costs no more
        than one of a short session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from mailslot_core.agent import AssistantEntry, Entry, ToolCall, ToolEntry, UserEntry

SESSIONS_MAX: Final = 1024
"""How many sessions' transcripts one worker keeps between turns."""

BYTES_MAX: Final = 64 * 1024 * 1024
"""How many bytes of transcripts one worker keeps between turns."""

ENTRY_BYTES: Final = 200
"""What an entry weighs beside its texts: a few small objects."""


class Fact(Protocol):
    """An event or the draft of one: only its type and its data count here."""

    @property
    def type(self) -> str:
        """The event type."""
        ...

    @property
    def data(self) -> Mapping[str, Any]:
        """The event's data, by the wire's names."""
        ...


# -- folding ------------------------------------------------------------------------------------------------


class Transcript:
    """A session's transcript in the hands of whoever drives it (rule 6).

    `seq` is the mark: what was there when it was set is what the ledger says up to that event. `born` says which
    session it is the transcript of: another one may take the name of an erased one.
    """

    __slots__ = ("_marked", "born", "entries", "seq", "size_bytes")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = list(entries)
        self.size_bytes = weight_bytes(self.entries)
        self.seq, self._marked, self.born = 0, 0, 0

    def mark(self, seq: int, born: int = 0) -> None:
        """All that the ledger says up to `seq` is here, and nothing else."""
        self.seq, self._marked, self.born = seq, len(self.entries), born

    def rewind(self) -> None:
        """Forget what came after the mark."""
        later = self.entries[self._marked :]
        del self.entries[self._marked :]
        self.size_bytes -= weight_bytes(later)

    def grow(self, facts: Iterable[Fact]) -> None:
        """These facts followed."""
        for fact in facts:
            fold = FOLD.get(fact.type)
            if fold is not None:
                entry = fold(self.entries, fact.data)
                self.entries.append(entry)
                self.size_bytes += ENTRY_BYTES + _characters(entry)


def extend(entries: Iterable[Entry], facts: Iterable[Fact]) -> list[Entry]:
    """The entries after these facts, given the entries before them."""
    grown = Transcript(entries)
    grown.grow(facts)
    return grown.entries


def _user(entries: Sequence[Entry], data: Mapping[str, Any]) -> Entry:
    content = data["content"]
    return UserEntry([{"type": "text", "text": content}] if isinstance(content, str) else content)


def _assistant(entries: Sequence[Entry], data: Mapping[str, Any]) -> Entry:
    asked = data.get("toolCalls") or ()
    calls = tuple(ToolCall(call["callId"], call["name"], call["arguments"]) for call in asked)
    return AssistantEntry(text_of(data["content"]), calls)


def _tool(entries: Sequence[Entry], data: Mapping[str, Any]) -> Entry:
    call_id, error = data["callId"], data.get("error")
    content = text_of(data["content"])
    if error is None:
        return ToolEntry(call_id, _name_of(entries, call_id), content)
    return ToolEntry(call_id, _name_of(entries, call_id), content or error["message"], error["code"])


FOLD: Final[Mapping[str, Callable[[Sequence[Entry], Mapping[str, Any]], Entry]]] = {
    "user/message": _user,
    "assistant/message": _assistant,
    "tool/result": _tool,
}


def text_of(content: str | Iterable[Mapping[str, Any]], between: str = "") -> str:
    """The text of content blocks, in order; images say nothing."""
    if isinstance(content, str):
        return content
    return between.join(block["text"] for block in content if block.get("type") == "text")


def _name_of(entries: Sequence[Entry], call_id: str) -> str:
    """The tool that was called; a `tool/result` names only the call."""
    for entry in reversed(entries):
        if isinstance(entry, AssistantEntry):
            return next((call.name for call in entry.calls if call.call_id == call_id), "")
    return ""


def newest_user_text(entries: Sequence[Entry]) -> str:
    """What people said last: the texts of the newest run of user messages, a line each."""
    texts: list[str] = []
    for entry in reversed(entries):
        if isinstance(entry, UserEntry):
            texts.append(text_of(entry.content, "\n"))
        elif texts:
            break
    return "\n".join(text for text in reversed(texts) if text)


# -- the shape that providers take --------------------------------------------------------------------------


def check_history(entries: Iterable[Entry], *, complete: bool = True) -> list[str]:
    """What is wrong with a transcript as a provider would see it; empty when it is a valid history.

    With `complete` it must be fit to be sent now; without, it may end between a call and its result.
    """
    wrong: list[str] = []
    known: set[str] = set()
    waiting: list[str] = []
    for place, entry in enumerate(entries, start=1):
        if isinstance(entry, ToolEntry):
            if entry.call_id in waiting:
                waiting.remove(entry.call_id)
            else:
                wrong.append(f"entry {place}: a result of call {entry.call_id}, which is not open")
            continue
        who = "user" if isinstance(entry, UserEntry) else "assistant"
        wrong += [f"entry {place}: {who} message before the result of call {call_id}" for call_id in waiting]
        waiting = []
        if isinstance(entry, AssistantEntry):
            if place == 1:
                wrong.append("entry 1: an assistant message with nothing before it")
            waiting, reused = _opened(entry, known)
            wrong += [f"entry {place}: call id {call_id} is used twice" for call_id in reused]
    if complete:
        wrong += [f"the end: call {call_id} has no result" for call_id in waiting]
    return wrong


def _opened(entry: AssistantEntry, known: set[str]) -> tuple[list[str], list[str]]:
    """The calls an answer opened, and those whose ids were there before; `known` learns them all."""
    opened: list[str] = []
    reused: list[str] = []
    for call in entry.calls:
        (reused if call.call_id in known else opened).append(call.call_id)
        known.add(call.call_id)
    return opened, reused


# -- kept between turns -------------------------------------------------------------------------------------


def still_holds(cached_epoch: int, epoch: int) -> bool:
    """Whether nobody can have written transcript events between two leases of a session.

    Only the owner of the lease writes them. So nothing was added if it is the same lease, or the very next one. (A
    lease that takes up an open turn finds what a lost reply may have left: its owner reads the ledger.)
    """
    return epoch in (cached_epoch, cached_epoch + 1)


class Kept(NamedTuple):
    """A transcript as of a settled turn under a lease of this epoch."""

    epoch: int
    transcript: Transcript
    size_bytes: int


class TranscriptCache:
    """The transcripts of sessions that a worker drove lately; the least recently driven ones make room."""

    def __init__(self, *, sessions_max: int = SESSIONS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._sessions_max = sessions_max
        self._bytes_max = bytes_max
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        """What all kept transcripts weigh."""
        return self._bytes

    def take(self, session_id: str) -> Kept | None:
        """Take the session's transcript out."""
        kept = self._kept.pop(session_id, None)
        if kept is not None:
            self._bytes -= kept.size_bytes
        return kept

    def put(self, session_id: str, epoch: int, transcript: Transcript) -> None:
        """Keep the transcript as of a settled turn until the session's next one, or until others need the room. Nobody
        else holds it from now on."""
        self.take(session_id)
        kept = Kept(epoch, transcript, transcript.size_bytes)
        if kept.size_bytes > self._bytes_max or self._sessions_max < 1:
            return
        self._kept[session_id] = kept
        self._bytes += kept.size_bytes
        while self._bytes > self._bytes_max or len(self._kept) > self._sessions_max:
            self.take(next(iter(self._kept)))


def weight_bytes(entries: Iterable[Entry]) -> int:
    """About what a transcript takes in memory; texts are counted by their characters, which is near enough."""
    return sum(ENTRY_BYTES + _characters(entry) for entry in entries)


def _characters(entry: Entry) -> int:
    if isinstance(entry, UserEntry):
        return sum(len(str(value)) for block in entry.content for value in block.values())
    if isinstance(entry, ToolEntry):
        return len(entry.content)
    return len(entry.text) + sum(ENTRY_BYTES + len(str(call.arguments)) for call in entry.calls)
