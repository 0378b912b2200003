"""Bugs of the kinds that this field has, planted one at a time into the real code: the simulation must see each one.

    with bug.plant(): run the seeds --> some seed breaks a promise        without it the same seed breaks none

Rule 1: a bug is a small change of one real function, as somebody could have written it; the simulation knows nothing
        of it.
Rule 2: the table BUGS is the catalogue. What each one breaks is said in a sentence; what catches it is not prescribed.
Rule 3: what only Redis can get wrong is in `mutants`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from mailslot_core import activity, goal, inbox, session
from mailslot_core import turn as turns
from mailslot_core.errors import Refused
from mailslot_core.inbox import Receipt
from mailslot_core.memory import MemoryStore, _Kept
from mailslot_core.session import Act, MessageState, Phase, Session, Status
from mailslot_core.store import Claimed, Grant, Renewal, Swept
from mailslot_core.turn import Draft, End, Outcome, Then
from mailslot_services.agent_worker import drive, plan
from mailslot_services.agent_worker.tenure import Keeper, Tenure
from mailslot_services.goal_continuation.continuation import Continuation

Plant = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Bug:
    """One planted bug."""

    name: str
    breaks: str
    plant: Plant


def instead(owner: object, name: str, planted: object) -> Plant:
    """The planted thing stands where the real one was."""
    return lambda: patch.object(owner, name, planted)


# -- leases and fences ----------------------------------------------------------------------------------------


def _anybody(store: MemoryStore, lease: Any) -> _Kept:
    return store._kept[lease.session_id]


def _never_repeated(store: MemoryStore, kept: _Kept, call: int) -> bool:
    return False


@contextmanager
def _forgetful_slots() -> Iterator[None]:
    """What a slot was given is not remembered, so that a repeated acquire leases a second session."""
    real = MemoryStore.acquire

    async def acquire(store: MemoryStore, partition: int, owner: str, call: int, lease_ms: int) -> Grant | None:
        store._parts[partition].slots.pop(owner, None)
        return await real(store, partition, owner, call, lease_ms)

    with patch.object(MemoryStore, "acquire", acquire):
        yield


async def _renew_nothing(store: MemoryStore, leases: Sequence[Any], lease_ms: int) -> list[Renewal]:
    found = [store._kept.get(lease.session_id) for lease in leases]
    return [Renewal(True, kept.session.cancel, kept.session.turn) if kept else Renewal(False) for kept in found]


def _renewal_ignored(keeper: Keeper, tenure: Tenure, renewal: Renewal, asked: float) -> None:
    if not renewal.alive:
        keeper.lose(tenure, "taken-over")


@contextmanager
def _sweeping(change: Callable[[MemoryStore, _Kept], None]) -> Iterator[None]:
    """Before each sweep something happens to each session of the partition."""
    real = MemoryStore.sweep

    async def sweep(store: MemoryStore, partition: int, *, forget_after_ms: int) -> Swept:
        for kept in store._in(partition):
            change(store, kept)
        return await real(store, partition, forget_after_ms=forget_after_ms)

    with patch.object(MemoryStore, "sweep", sweep):
        yield


def _lease_for_ever(store: MemoryStore, kept: _Kept) -> None:
    if kept.owner is not None:
        kept.lease_ms = kept.lease_end = store._clock.now_ms() + 10_000_000


def _lapse_early(store: MemoryStore, kept: _Kept) -> None:
    kept.lease_end -= kept.lease_ms // 2


@contextmanager
def _wakes_only_at_submit() -> Iterator[None]:
    """A session that is given back with work left is not queued for a worker."""
    real = MemoryStore._done

    def done(store: MemoryStore, kept: _Kept, act: Act) -> None:
        ready = store._parts[store.partition(kept.session.session_id)].ready
        was = set(ready)
        real(store, kept, act)
        if any(event.type == "turn/end" for event in act.events):
            for name in set(ready) - was:
                del ready[name]

    with patch.object(MemoryStore, "_done", done):
        yield


# -- idle and wake --------------------------------------------------------------------------------------------


def _settles_without_idle(act: Act, then: Then) -> Outcome:
    if then is Then.TAKE and turns.take(act):
        return Outcome.TURN
    return Outcome.RELEASED


def _rests_blindly(act: Act) -> bool:
    found = act.session
    if found.status is Status.RUNNING and not (found.open or found.claimed):
        act.append("agent/status", {"status": "idle"})
    return found.status is Status.IDLE


def _wakes_nobody(act: Act) -> None:
    """As if somebody were already at work."""


def _waking_though_held(found: Session) -> int:
    return activity.followups(found) + activity.steers(found)


def _never_released(act: Act, cause: str) -> None:
    activity.wake(act)


def _claims_all(act: Act) -> list[str]:
    waiting = act.session.lane(session.Lane.NEXT_TURN)
    return [message.message_id for message in waiting]


def _newest_first(found: Session, lane: session.Lane) -> list[session.Message]:
    waiting = (message for message in found.waiting.values() if message.lane is lane and message.due)
    return sorted(waiting, key=lambda message: -message.place)


# -- messages -------------------------------------------------------------------------------------------------


@contextmanager
def _acknowledged_before_it_is_kept() -> Iterator[None]:
    """The receipt is made of what should come of the submit; the write itself may be lost."""
    real = MemoryStore.submit
    calls = [0]

    async def submit(store: MemoryStore, session_id: str, submission: Any, created: Any) -> Receipt:
        calls[0] += 1
        kept = store._kept.get(session_id)
        if kept is not None and calls[0] % 7 == 0 and submission.message_id not in kept.fingerprints:
            inbox.check_submit(kept.session, submission, now=store._clock.now_ms(), room=store._room)
            return Receipt(submission.message_id, kept.session.seq + 1, duplicate=False)
        return await real(store, session_id, submission, created)

    with patch.object(MemoryStore, "submit", submit):
        yield


@contextmanager
def _forgets_fingerprints() -> Iterator[None]:
    """A message that was settled is not known any more."""
    real = MemoryStore.submit

    async def submit(store: MemoryStore, session_id: str, submission: Any, created: Any) -> Receipt:
        kept = store._kept.get(session_id)
        message = kept.session.messages.get(submission.message_id) if kept else None
        if kept is not None and message is not None and message.state is MessageState.ADMITTED:
            kept.fingerprints.pop(submission.message_id, None)
        return await real(store, session_id, submission, created)

    with patch.object(MemoryStore, "submit", submit):
        yield


def _claimed_too(found: Session, message_id: str) -> session.Message:
    message = found.messages.get(message_id)
    if message is None or message.state in session.TERMINAL:
        raise Refused("already-settled" if message else "not-found", f"message {message_id} is over")
    return message


@contextmanager
def _sweep_of_messages(skip: str) -> Iterator[None]:
    """The sweep overlooks one kind of alarm."""
    real = session.Message.alarm.fget  # type: ignore[attr-defined]

    def alarm(message: session.Message) -> int | None:
        if skip == "due":
            return message.expires_at
        return None if message.due else message.not_before

    assert real is not None
    with patch.object(session.Message, "alarm", property(alarm)):
        yield


def _lets_in(act: Act, *lanes: session.Lane) -> None:
    """The sweep will see to it."""


def _clears_one_lane(act: Act, cause: str) -> list[str]:
    cleared = [message.message_id for message in act.session.lane(session.Lane.NEXT_TURN)]
    for message_id in cleared:
        act.append("inbox/cancelled", {"messageId": message_id, "cause": cause})
    return cleared


def _replaces_the_original(store: MemoryStore, kept: _Kept, message_id: str) -> Any:
    return Claimed(message_id, dict(kept.ledger[kept.session.messages[message_id].queued_seq - 1].data))


# -- turns ----------------------------------------------------------------------------------------------------


@contextmanager
def _steers_overlooked_at_the_edge() -> Iterator[None]:
    """A turn that could complete ends, although a steer came while the model spoke."""
    real, counted = turns.settle, activity.steers

    def settle(act: Act, drafts: Sequence[Draft], end: End, *, then: Then) -> Outcome:
        looks: list[Session] = []

        def steers(found: Session) -> int:
            looks.append(found)
            return counted(found) if len(looks) > 1 else 0

        at_the_edge = end.kind in turns.COULD_COMPLETE and not act.session.cancel and not act.session.hold
        with patch.object(activity, "steers", steers) if at_the_edge else nullcontext():
            return real(act, drafts, end, then=then)

    with patch.object(turns, "settle", settle):
        yield


def _cancel_of_any_turn(tenure: Tenure, turn: int, cause: str | None) -> None:
    if cause is not None and not tenure.cancelled.is_set():
        tenure.cause = cause
        tenure.cancelled.set()


def _cancel_outlives_its_turn(found: Session, event: session.Event) -> None:
    found.phase, found.attempt = Phase.CLOSED, 1


def _starts_with_a_cancel(found: Session, event: session.Event) -> None:
    found.turn, found.step, found.phase, found.attempt = event.data["turn"], 0, Phase.BOUNDARY, 1


@contextmanager
def _sticky_cancel() -> Iterator[None]:
    """A cancel is kept with the session instead of with its turn."""
    planted = {"turn/end": _cancel_outlives_its_turn, "turn/start": _starts_with_a_cancel}
    with patch.dict(session.FOLD, planted):
        yield


@contextmanager
def _nothing_claimed_after_recovery() -> Iterator[None]:
    """A new owner is not told what the turn had claimed."""
    real = MemoryStore._grant

    def grant(store: MemoryStore, kept: _Kept) -> Grant:
        given = real(store, kept)
        return replace(given, batch=()) if given.recovered else given

    with patch.object(MemoryStore, "_grant", grant):
        yield


@contextmanager
def _claimed_again_after_recovery() -> Iterator[None]:
    """What a turn had claimed goes back to its lane when the turn is recovered."""
    real = turns.recover

    def recover(act: Act, reason: str) -> None:
        real(act, reason)
        for name in list(act.session.claimed):
            message = act.session.messages[name]
            message.state = MessageState.QUEUED
            act.session.claimed.remove(name)
            act.session.waiting[name] = message

    with patch.object(turns, "recover", recover):
        yield


@contextmanager
def _leased_twice() -> Iterator[None]:
    """A session stays in the ready queue while it is leased, and whoever comes next takes it too."""
    real = MemoryStore._lease_next

    def lease_next(store: MemoryStore, partition: int, owner: str, lease_ms: int) -> Grant | None:
        ready = store._parts[partition].ready
        for kept in store._in(partition):
            if kept.owner is not None and kept.session.open:
                kept.owner = None
                ready.setdefault(kept.session.session_id, 0)
        return real(store, partition, owner, lease_ms)

    with patch.object(MemoryStore, "_lease_next", lease_next):
        yield


# -- goals ----------------------------------------------------------------------------------------------------


@contextmanager
def _preempted_rounds_count() -> Iterator[None]:
    real = session.FOLD["inbox/cancelled"]

    def cancelled(found: Session, event: session.Event) -> None:
        real(found, event)
        if event.data["cause"] == "preempted" and found.goal is not None:
            found.goal = {**found.goal, "rounds": found.goal["rounds"] + 1}

    with patch.dict(session.FOLD, {"inbox/cancelled": cancelled}):
        yield


def _advances_anyway(found: Session, proposed: goal.Round) -> bool:
    known = found.goal
    return known is not None and known["phase"] == goal.ACTIVE and proposed.message_id not in found.messages


def _people_wait(act: Act) -> list[str]:
    return [message.message_id for message in act.session.lane(session.Lane.NEXT_TURN)[:1]]


def _never_pauses(act: Act, reason: str) -> None:
    """A goal goes on whatever happened."""


async def _reconciles_nothing(service: Continuation) -> None:
    """Only notices count."""


# -- the end --------------------------------------------------------------------------------------------------


def _one_crash_more(found: Session, reason: str, crashes_max: int) -> bool:
    return found.open and reason == "crash" and found.attempt > crashes_max


def _closes_around_the_queue(act: Act) -> bool:
    with patch.object(inbox, "clear", lambda _act, _cause: []):
        return _close_session(act)


_close_session: Final = turns.close_session


def _no_letter(store: MemoryStore, *arguments: Any) -> None:
    """The dead are buried without a word."""


BUGS: Final[tuple[Bug, ...]] = (
    Bug("no-fence", "a former owner's writes are taken", instead(MemoryStore, "_owned", _anybody)),
    Bug("repeat-appends", "a repeated call appends again", instead(MemoryStore, "_repeated", _never_repeated)),
    Bug("forgetful-slot", "a repeated acquire leases a second session", _forgetful_slots),
    Bug("renewal-renews-nothing", "a renewal does not extend the lease", instead(MemoryStore, "renew", _renew_nothing)),
    Bug("renewal-not-heard", "a worker does not believe its renewals", instead(Keeper, "_renewed", _renewal_ignored)),
    Bug("lease-never-ends", "the sweeper takes no lapsed lease away", lambda: _sweeping(_lease_for_ever)),
    Bug("lease-ends-early", "the sweeper takes leases that still hold", lambda: _sweeping(_lapse_early)),
    Bug("double-recovery", "a leased session is leased again", _leased_twice),
    Bug("lost-wake", "what is given back with work left waits for a sweep", _wakes_only_at_submit),
    Bug("late-idle", "a settle and its idle are two acts", instead(turns, "proceed", _settles_without_idle)),
    Bug("blind-idle", "idle does not look at what waits", instead(activity, "rest", _rests_blindly)),
    Bug("no-wake", "a waking message wakes nobody", instead(activity, "wake", _wakes_nobody)),
    Bug("all-at-once", "follow-ups share a turn", instead(turns, "_followup", _claims_all)),
    Bug("newest-first", "a lane is a stack", instead(Session, "lane", _newest_first)),
    Bug("early-receipt", "a receipt is given before the message is kept", _acknowledged_before_it_is_kept),
    Bug("forgotten-id", "a message that was admitted can be sent again", _forgets_fingerprints),
    Bug("late-withdrawal", "a claimed message can be changed", instead(inbox, "queued_message", _claimed_too)),
    Bug("never-due", "a delayed message never becomes due", lambda: _sweep_of_messages("due")),
    Bug("never-expires", "a message does not expire", lambda: _sweep_of_messages("expired")),
    Bug("late-claim", "what is over is claimed by whoever is before the sweep", instead(inbox, "expire", _lets_in)),
    Bug("half-cleared", "a clear overlooks a lane", instead(inbox, "clear", _clears_one_lane)),
    Bug("lost-replacement", "the old words enter", instead(MemoryStore, "_claimed", _replaces_the_original)),
    Bug("hold-forgotten", "a hold is not kept", instead(activity, "hold", lambda _act, _cause: None)),
    Bug("held-wakes", "what is on hold wakes", instead(activity, "waking", _waking_though_held)),
    Bug("hold-for-ever", "a person's message does not end a hold", instead(activity, "release", _never_released)),
    Bug("steer-lost", "a steer at the edge does not prolong its turn", _steers_overlooked_at_the_edge),
    Bug("any-cancel", "word of a cancel hits whatever turn is open", instead(Tenure, "cancel", _cancel_of_any_turn)),
    Bug("sticky-cancel", "a cancel hits the next turn too", _sticky_cancel),
    Bug("claims-forgotten", "a recovered turn does not know its messages", _nothing_claimed_after_recovery),
    Bug("claims-returned", "a recovered turn's messages are queued again", _claimed_again_after_recovery),
    Bug("unsafe-again", "an unsafe tool runs again", instead(plan, "may_run", lambda _state, _effect: True)),
    Bug("unannounced-tools", "tools run before they are said to", instead(plan, "calls_started", lambda *_: [])),
    Bug(
        "stale-transcript",
        "a kept transcript is never read up",
        instead(drive, "still_holds", lambda *_: True),
    ),
    Bug("preempted-counts", "a round that made way counts", _preempted_rounds_count),
    Bug("stale-advance", "a stale notice advances", instead(goal, "may_advance", _advances_anyway)),
    Bug("people-wait", "a goal comes before people", instead(turns, "_followup", _people_wait)),
    Bug("goal-runs-away", "a failed turn does not pause the goal", instead(goal, "pause", _never_pauses)),
    Bug("notices-only", "lost notices stop a goal", instead(Continuation, "reconcile", _reconciles_nothing)),
    Bug("one-crash-more", "the crash budget is off by one", instead(turns, "spent", _one_crash_more)),
    Bug("open-close", "a close leaves the queue", instead(turns, "close_session", _closes_around_the_queue)),
    Bug("no-letter", "dead letters are dropped", instead(MemoryStore, "_keep_letter", _no_letter)),
)
