"""Rules of a message's life, and of the order in lanes (semantics M3-M11, T2, R5).

    (none) ──queued──> queued ──claimed──> claimed ──user/message──> admitted
                         ├─> cancelled, expired       ├─> rejected, cancelled, dead
                         └─ replaced, moved, due      dead ──queued{redrive}──> queued, a new life

Rule 1: a message is queued once, unless a dead one is redriven, or its id was forgotten since it ended.
Rule 2: a claim takes what is next: all of next-step that is due, in the order in which it came there; then, where a
        turn opens, the first of next-turn. It is what makes the order of lanes the order of admission.
Rule 3: what was claimed enters in the order of the claim.
Rule 4: a message that was never queued may enter: a hook added it (semantics T4).
Rule 5: what enters has the words that were queued, or those that last replaced them; what is redriven keeps them. Only
        a hook may rewrite (T4): `Walk.verbatim` is False where one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mailslot_services.verify.ledger import Entry
from mailslot_services.verify.report import Kind
from mailslot_services.verify.walk import (
    ADMITTED,
    CANCELLED,
    CLAIMED,
    DEAD,
    ENDED,
    EXPIRED,
    NEXT_STEP,
    NEXT_TURN,
    QUEUED,
    REJECTED,
    Broken,
    Life,
    Rule,
    Walk,
)


def queued(walk: Walk, entry: Entry) -> Broken:
    """Rule 1."""
    data = entry.data
    message_id = data["messageId"]
    yield from _queued_rightly(walk, entry, walk.lives.get(message_id))
    if walk.closing:
        yield Kind.LIFE, f"message {message_id} is queued at seq {entry.seq} in a session that is closed"
    not_before = data.get("notBefore")
    life = Life(
        message_id,
        entry.seq,
        data["lane"],
        data["wake"],
        not_before is None or not_before <= entry.time,
        not_before,
        data.get("expiresAt"),
        list(data["content"]),
    )
    before = walk.lives.get(message_id)
    if before is not None:  # a second copy takes the first one's place, so that each broken rule is told once
        walk.leave_lane(before)
        walk.claimed.pop(message_id, None)
    walk.lives[message_id] = life
    walk.queued += 1
    walk.queued_seqs.setdefault(message_id, []).append(entry.seq)
    walk.contents[entry.seq] = life.content
    if life.due:
        walk.enter_lane(life)


def _queued_rightly(walk: Walk, entry: Entry, before: Life | None) -> Broken:
    message_id, again = entry.data["messageId"], f"again at seq {entry.seq}"
    if entry.data.get("redrive"):
        if before is None or before.state != DEAD:
            state = before.state if before else "unknown"
            yield Kind.DUPLICATE, f"message {message_id} is redriven while it is {state}, {again}"
        elif list(entry.data["content"]) != before.content:
            yield Kind.CONTENT, f"message {message_id} is redriven with other words than it had, {again}"
    elif before is not None and before.state not in ENDED:
        yield Kind.DUPLICATE, f"message {message_id} is queued twice, {again}"
    elif before is not None and entry.time < before.ended_ms + walk.forget_after_ms:
        yield Kind.DUPLICATE, f"message {message_id} is queued after it was {before.state}, {again}"


def claimed(walk: Walk, entry: Entry) -> Broken:
    """Rule 2."""
    message_ids, turn = list(entry.data["messageIds"]), entry.data["turn"]
    opening = "step" not in entry.data
    fits = walk.open and turn == walk.turn and not walk.in_step and opening == walk.claim_follows
    if not fits or (not opening and entry.data["step"] != walk.step + 1):
        yield Kind.TURN, f"the claim at seq {entry.seq} stands outside of its turn or step"
    walk.claim_follows = False
    if walk.held:
        yield Kind.LIFE, f"{message_ids} is claimed at seq {entry.seq} while the queue is on hold"
    first = next(iter(walk.lanes[NEXT_TURN]), None) if opening else None
    wanted = [*walk.lanes[NEXT_STEP], *([first] if first is not None else [])]
    strangers = [message_id for message_id in message_ids if not _is_due(walk, message_id)]
    if strangers:
        yield Kind.LIFE, f"{strangers} is claimed at seq {entry.seq} and does not wait"
    elif message_ids != wanted:
        yield Kind.INVERSION, f"{message_ids} is claimed at seq {entry.seq} where {wanted} was next"
    over = [message_id for message_id in message_ids if _is_over(walk, message_id, entry)]
    if over:
        yield Kind.LIFE, f"{over} is claimed at seq {entry.seq}, after its time"
    for message_id in message_ids:
        if message_id not in strangers:
            _claim(walk, walk.lives[message_id], turn)


def _is_over(walk: Walk, message_id: str, entry: Entry) -> bool:
    life = walk.lives.get(message_id)
    return life is not None and life.expires_at is not None and life.expires_at <= entry.time


def _is_due(walk: Walk, message_id: str) -> bool:
    life = walk.lives.get(message_id)
    return life is not None and life.state == QUEUED and life.due


def _claim(walk: Walk, life: Life, turn: int) -> None:
    walk.leave_lane(life)
    walk.claims += 1
    life.state, life.turn, life.place = CLAIMED, turn, walk.claims
    walk.claimed[life.message_id] = life


def admitted(walk: Walk, entry: Entry) -> Broken:
    """Rules 3, 4 and 5. That it stands where a user message may stand is a rule of the turn."""
    life = walk.lives.get(entry.data["messageId"])
    if life is None:
        return
    name = f"message {life.message_id}"
    if life.state in ENDED:
        kind = Kind.DUPLICATE_ADMISSION if life.state == ADMITTED else Kind.DUPLICATE
        yield kind, f"{name} is admitted at seq {entry.seq}, it was {life.state} before"
        return
    if life.state != CLAIMED or life.turn != entry.data["turn"]:
        yield Kind.LIFE, f"{name} is admitted at seq {entry.seq} by turn {entry.data['turn']}, which did not claim it"
    elif life.place < walk.entered:
        yield Kind.INVERSION, f"{name} is admitted at seq {entry.seq} behind one that was claimed after it"
    if walk.verbatim and list(entry.data["content"]) != life.content:
        yield Kind.CONTENT, f"{name} is admitted at seq {entry.seq} with other words than it had in the queue"
    walk.entered = max(walk.entered, life.place)
    _end(walk, life, ADMITTED, entry)


def _end(walk: Walk, life: Life, state: str, entry: Entry) -> None:
    walk.leave_lane(life)
    walk.claimed.pop(life.message_id, None)
    walk.settled[state] += 1
    life.state, life.ended_ms = state, entry.time


def _ended(walk: Walk, entry: Entry, state: str, *may_be: str) -> Iterator[tuple[Kind, str] | Life]:
    """End a life. Gives what is broken; and, if it could end, the life as it stood before."""
    message_id = entry.data["messageId"]
    life = walk.lives.get(message_id)
    if life is None:
        yield Kind.LIFE, f"message {message_id} is {state} at seq {entry.seq} and was never queued"
        return
    if life.state in ENDED:
        yield Kind.DUPLICATE, f"message {message_id} is {state} at seq {entry.seq}, it was {life.state} before"
        return
    if life.state not in may_be:
        yield Kind.LIFE, f"message {message_id} is {state} at seq {entry.seq} while it is {life.state}"
    yield life
    _end(walk, life, state, entry)


def cancelled(walk: Walk, entry: Entry) -> Broken:
    """Only a cancel ends what a turn has claimed; and of what waits, only what was there when it came (C2, C5)."""
    cause = entry.data["cause"]
    may_be = (QUEUED, CLAIMED) if cause == "cancel" else (QUEUED,)
    for found in _ended(walk, entry, CANCELLED, *may_be):
        if isinstance(found, tuple):
            yield found
        elif cause == "cancel":
            hit = walk.turn in walk.cancelled if found.state == CLAIMED else walk.cleared_seq > found.queued_seq
            if not hit:
                said = f"message {found.message_id}, {found.state}, is cancelled at seq {entry.seq}"
                yield Kind.CANCEL, f"{said} and no cancel was meant for it"
    if cause == "withdrawn":
        walk.changed.add((entry.data["messageId"], "withdrawn"))


def rejected(walk: Walk, entry: Entry) -> Broken:
    """A turn rejects what it claimed."""
    for found in _ended(walk, entry, REJECTED, CLAIMED):
        if isinstance(found, tuple):
            yield found
        elif found.state == CLAIMED and found.turn != entry.data["turn"]:
            yield (
                Kind.LIFE,
                f"message {found.message_id} is rejected at seq {entry.seq} by a turn that did not claim it",
            )


def expired(walk: Walk, entry: Entry) -> Broken:
    """A message expires while it waits, and not before its time (M11)."""
    for found in _ended(walk, entry, EXPIRED, QUEUED):
        if isinstance(found, tuple):
            yield found
        elif found.expires_at is None or entry.time < found.expires_at:
            yield Kind.LIFE, f"message {found.message_id} is expired at seq {entry.seq}, before its time"


def dead(walk: Walk, entry: Entry) -> Broken:
    """A turn that is given up takes what it claimed with it (R5)."""
    for found in _ended(walk, entry, DEAD, CLAIMED):
        if isinstance(found, tuple):
            yield found


def _waiting(walk: Walk, entry: Entry, what: str) -> Iterator[tuple[Kind, str] | Life]:
    life = walk.lives.get(entry.data["messageId"])
    if life is None or life.state != QUEUED:
        state = life.state if life else "unknown"
        yield Kind.LIFE, f"message {entry.data['messageId']} is {what} at seq {entry.seq} while it is {state}"
    else:
        yield life


def replaced(walk: Walk, entry: Entry) -> Broken:
    """Only what waits can be replaced (M7). It keeps its place, and has other words from here on."""
    content = list(entry.data["content"])
    for found in _waiting(walk, entry, "replaced"):
        if isinstance(found, tuple):
            yield found
        else:
            found.content = content
    walk.replacements.setdefault(entry.data["messageId"], []).append(content)
    walk.changed.add((entry.data["messageId"], "replaced"))


def moved(walk: Walk, entry: Entry) -> Broken:
    """Only what waits can be moved (M7). It stands behind what is there, and is due (M11)."""
    for found in _waiting(walk, entry, "moved"):
        if isinstance(found, tuple):
            yield found
            continue
        walk.leave_lane(found)
        found.lane, found.due = entry.data["lane"], True
        walk.enter_lane(found)
    walk.changed.add((entry.data["messageId"], "moved"))


def due(walk: Walk, entry: Entry) -> Broken:
    """A delayed message becomes due once, and not before its time (M11)."""
    for found in _waiting(walk, entry, "due"):
        if isinstance(found, tuple):
            yield found
        elif found.due or found.not_before is None or entry.time < found.not_before:
            yield Kind.LIFE, f"message {found.message_id} is due at seq {entry.seq}, before its time or again"
        else:
            found.due = True
            walk.enter_lane(found)


RULES: Final[dict[str, Rule]] = {
    "inbox/queued": queued,
    "inbox/claimed": claimed,
    "inbox/cancelled": cancelled,
    "inbox/rejected": rejected,
    "inbox/expired": expired,
    "inbox/dead": dead,
    "inbox/replaced": replaced,
    "inbox/moved": moved,
    "inbox/due": due,
    "user/message": admitted,
}
