"""An independent checker: whole ledgers, and what clients were told, against the specification.

    {session: [entry, …]}  ──walk──>  findings          losses, duplicates, order inversions, gaps, overlapping turns …
    Recorder               ──match─>  findings          receipts without message, refusals with one, answers not kept

    report = check({"s-1": read(client.xrange(key))}, seen)
    assert report.sound, report.sentences

Rule 1: it reads ledgers only and shares no code with the store (see `ledger`): it cannot make the store's mistakes.
Rule 2: with `at_rest` every message must have come to its end, but for those that may wait: injected context, delayed
        messages, and what is on hold. Without it the ledgers may be cut off anywhere.
Rule 3: every ledger is walked to its end, whatever is broken in it; damage is a finding.
Rule 4: the number of a report's findings is the number of broken things, so that 0 means what it says.
Rule 5: words are compared on their whole way: sent (where a client says what it sent), queued, replaced, admitted.
        Where an admission hook may rewrite, `verbatim=False` leaves the last step out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from mailslot_services.verify import life, turn
from mailslot_services.verify.ledger import Entry, Histories
from mailslot_services.verify.recorder import Receipt, Recorder
from mailslot_services.verify.report import Finding, Kind, Report
from mailslot_services.verify.walk import CLAIMED, IDLE, QUEUED, Life, Rule, Walk

FORGET_AFTER_MS: Final = 86_400_000
"""How long a settled message's id is remembered, by default (semantics M3)."""
ASIDE: Final = frozenset({"session/created", "usage/recorded", "goal/change"})
"""Types that no rule looks at. Unknown ones are kept and passed on (semantics L4)."""

RULES: Final[tuple[dict[str, Rule], ...]] = (turn.RULES, life.RULES)


def check(
    histories: Histories,
    seen: Recorder | None = None,
    *,
    at_rest: bool = True,
    verbatim: bool = True,
    forget_after_ms: int = FORGET_AFTER_MS,
) -> Report:
    """Everything that is broken in these ledgers, and everything that clients were told and is not so."""
    report = Report()
    walks = {}
    for session_id, entries in histories.items():
        walked = walk_ledger(entries, verbatim=verbatim, forget_after_ms=forget_after_ms)
        walks[session_id] = walked.walk
        report.findings += [Finding(kind, session_id, seq, said) for seq, kind, said in walked.broken]
        if at_rest:
            report.findings += [Finding(kind, session_id, 0, said) for kind, said in unrest(walked.walk)]
        _count(report, entries, walked.walk)
    if seen is not None:
        _match(report, walks, seen)
    return report


def _count(report: Report, entries: Sequence[Entry], walk: Walk) -> None:
    report.sessions += 1
    report.events += len(entries)
    report.messages += walk.queued
    report.settled.update({state: count for state, count in walk.settled.items() if count})
    report.pending += walk.pending
    report.ends.update(walk.ends)
    report.recovered.update(walk.recovered)
    report.recovery_ms += walk.recovery_ms


# -- one ledger -----------------------------------------------------------------------------------------------


class Walked(NamedTuple):
    """A ledger that was walked: where it ended, and what is broken: (seq, kind, sentence)."""

    walk: Walk
    broken: list[tuple[int, Kind, str]]


def walk_ledger(entries: Sequence[Entry], *, verbatim: bool = True, forget_after_ms: int = FORGET_AFTER_MS) -> Walked:
    """Rule 3."""
    walk = Walk(forget_after_ms, verbatim)
    broken: list[tuple[int, Kind, str]] = []
    before: Entry | None = None
    for entry, following in zip_longest(entries, entries[1:]):
        broken += [(entry.seq, kind, said) for kind, said in _order(before, entry)]
        broken += [(entry.seq, kind, said) for kind, said in _take_in(walk, entry)]
        if following is None or following.time > entry.time:
            broken += [(entry.seq, kind, said) for kind, said in turn.between_acts(walk, entry)]
        before = entry
    if walk.conservation:
        said = f"conservation is {walk.conservation}: messages vanished or were counted twice"
        broken.append((0, Kind.CONSERVATION, said))
    return Walked(walk, broken)


def _order(before: Entry | None, entry: Entry) -> Iterator[tuple[Kind, str]]:
    """L1, L3: seq without gaps, time and epoch never back."""
    wanted = before.seq + 1 if before else 1
    if entry.seq != wanted:
        yield Kind.SEQ, f"seq {entry.seq} stands where {wanted} was next"
    if before and entry.time < before.time:
        yield Kind.CLOCK, f"time goes back at seq {entry.seq}"
    if before and entry.epoch < before.epoch:
        yield Kind.CLOCK, f"epoch goes back at seq {entry.seq}"


def _take_in(walk: Walk, entry: Entry) -> Iterator[tuple[Kind, str]]:
    try:
        if walk.claim_follows and entry.type != "inbox/claimed":
            walk.claim_follows = False
            yield Kind.TURN, f"turn {walk.turn} starts before seq {entry.seq} and claims nothing"
        yield from turn.taken_over(walk, entry)
        for rules in RULES:
            if entry.type in rules:
                yield from rules[entry.type](walk, entry)
        if entry.type in turn.WRITTEN:
            walk.written_ms = entry.time
    except (LookupError, TypeError, AttributeError) as error:
        yield Kind.UNREADABLE, f"{entry.type} at seq {entry.seq} cannot be read: {type(error).__name__}: {error}"


def unrest(walk: Walk) -> Iterator[tuple[Kind, str]]:
    """Rule 2: what must not be left when everything rests."""
    if walk.status != IDLE:
        yield Kind.IDLE, f"the agent never came to rest: {' and '.join(walk.left) or 'it is said to be running'}"
    for found in walk.lives.values():
        if found.state == CLAIMED or (found.state == QUEUED and not may_wait(walk, found)):
            yield Kind.LOSS, f"message {found.message_id}, queued at seq {found.queued_seq}, came to no end"


def may_wait(walk: Walk, waiting: Life) -> bool:
    """A queued message that an agent at rest may have: it does not wake, is not due, or is on hold."""
    return not waiting.wake or not waiting.due or walk.held


# -- what clients were told -----------------------------------------------------------------------------------


def _match(report: Report, walks: dict[str, Walk], seen: Recorder) -> None:
    report.receipts = len(seen.receipts)
    report.duplicate_receipts = sum(receipt.duplicate for receipt in seen.receipts)
    report.refusals.update(refusal.code for refusal in seen.refusals)
    report.unknowns = len(seen.unknowns)
    report.cancels = len(seen.cancels)
    nothing = Walk(0)
    for match in (receipts_kept, words_kept, refusals_true, answers_kept, receipts_in_order):
        for session_id, kind, said in match(walks, seen, nothing):
            if session_id not in seen.erased:
                report.findings.append(Finding(kind, session_id, 0, said))


Told = Iterator[tuple[str, Kind, str]]


def receipts_kept(walks: dict[str, Walk], seen: Recorder, nothing: Walk) -> Told:
    """A receipt's message is in the ledger at its cursor (M1, M2). One message is one loss, however often it was
    confirmed."""
    missing: dict[tuple[str, str], Receipt] = {}
    for receipt in seen.receipts:
        seqs = walks.get(receipt.session_id, nothing).queued_seqs.get(receipt.message_id, [])
        if receipt.cursor not in seqs:
            missing.setdefault((receipt.session_id, receipt.message_id), receipt)
    for (session_id, message_id), receipt in missing.items():
        seqs = walks.get(session_id, nothing).queued_seqs.get(message_id, [])
        where = f"it is queued at seq {seqs}" if seqs else "it is not in the ledger"
        yield session_id, Kind.LOSS, f"message {message_id} has a receipt for seq {receipt.cursor} and {where}"


def words_kept(walks: dict[str, Walk], seen: Recorder, nothing: Walk) -> Told:
    """Rule 5: what is queued, or took its place, has the words that the client sent. One message is altered once,
    however often it was confirmed. That it is there at all is asked elsewhere."""
    altered: dict[tuple[str, str, int], None] = {}
    for receipt in seen.receipts:
        walk = walks.get(receipt.session_id, nothing)
        inside = receipt.cursor in walk.queued_seqs.get(receipt.message_id, [])
        if inside and receipt.content is not None and list(receipt.content) != walk.contents[receipt.cursor]:
            altered[receipt.session_id, receipt.message_id, receipt.cursor] = None
    for session_id, message_id, seq in altered:
        yield session_id, Kind.CONTENT, f"message {message_id} is queued at seq {seq} with other words than were sent"
    for change in seen.changes:
        found = walks.get(change.session_id, nothing).replacements.get(change.message_id, [])
        if found and change.content is not None and list(change.content) not in found:
            said = f"message {change.message_id} is replaced, and not by the words that were sent"
            yield change.session_id, Kind.CONTENT, said


def refusals_true(walks: dict[str, Walk], seen: Recorder, nothing: Walk) -> Told:
    """A message that every attempt was refused for is not in the ledger (M1). Where one attempt's outcome is unknown,
    or it was accepted before, a refusal says nothing about it."""
    excused = {(told.session_id, told.message_id) for told in seen.receipts}
    excused |= {(told.session_id, told.message_id) for told in seen.unknowns}
    refused = {(told.session_id, told.message_id): told.code for told in seen.refusals}
    for (session_id, message_id), code in refused.items():
        if (session_id, message_id) in excused:
            continue
        seqs = walks.get(session_id, nothing).queued_seqs.get(message_id)
        if seqs:
            said = f"message {message_id} was refused ({code}) and is queued at seq {seqs}"
            yield session_id, Kind.FALSE_REFUSAL, said


def answers_kept(walks: dict[str, Walk], seen: Recorder, nothing: Walk) -> Told:
    """A cancel that was recorded is in the ledger, and so is a change of what waits (M7, C1)."""
    for cancel in seen.cancels:
        if cancel.turn is not None and cancel.turn not in walks.get(cancel.session_id, nothing).cancelled:
            said = f"a cancel of turn {cancel.turn} was confirmed and is not in the ledger"
            yield cancel.session_id, Kind.UNKEPT, said
    for change in seen.changes:
        if (change.message_id, change.what) not in walks.get(change.session_id, nothing).changed:
            said = f"message {change.message_id} was said to be {change.what}, and the ledger does not say so"
            yield change.session_id, Kind.UNKEPT, said


def receipts_in_order(walks: dict[str, Walk], seen: Recorder, nothing: Walk) -> Told:
    """Who sends after another one has his receipt stands behind him (M4). A duplicate stands where it first stood."""
    of_session: defaultdict[str, list[Receipt]] = defaultdict(list)
    for receipt in seen.receipts:
        of_session[receipt.session_id].append(receipt)
    for session_id, receipts in of_session.items():
        answered = sorted(receipts, key=lambda receipt: receipt.answered_ms)
        done, newest = 0, 0
        for receipt in sorted(receipts, key=lambda receipt: receipt.sent_ms):
            while done < len(answered) and answered[done].answered_ms < receipt.sent_ms:
                newest = max(newest, answered[done].cursor)
                done += 1
            if not receipt.duplicate and receipt.cursor <= newest:
                said = f"message {receipt.message_id} got cursor {receipt.cursor} after {newest} was given out"
                yield session_id, Kind.INVERSION, said
