"""A run, step by step: what is sent in which order, and what its caller gets. No connection is made here."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mailslot import Event, OutcomeUnknown, Receipt, Refused, RunResult, RunTimeout, Settings, TransportLost
from mailslot.answer import Rest
from mailslot.operation import Address, draft
from mailslot.run import idle_to_idle, owned_run
from mailslot.step import Answer, Exchange, Fault, Give, Open, Operation, Read, Terms
from tests.unit.sdk.driving import (
    STREAM,
    Played,
    abandon,
    envelope,
    frame,
    good,
    history,
    level,
    level_frame,
    play,
    receipt,
    refused,
)

CUT = Fault("cut")
TERMS = Terms(Settings(attempts_max=2, reconnects_max=3), clock=lambda: 0.0, chance=lambda: 1.0)
MESSAGE = draft("hello", message_id="m")


def run(terms: Terms = TERMS, address: Address | None = None, **options: Any) -> Operation[None]:
    return owned_run(terms, address or Address("s"), MESSAGE, **options)


def framed(first: int, message_id: str = "m", text: str = "hello", kind: str = "completed") -> bytes:
    return b"".join(frame(value) for value in history(message_id, first, text, kind=kind))


def result(played: Played) -> RunResult:
    assert played.error is None, played.error
    found = played.given[-1]
    assert isinstance(found, RunResult)
    return found


def test_the_subscription_stands_before_the_message_is_sent() -> None:
    played = play(run(), [level("s", 6), STREAM, receipt("m", 7), level_frame("s", 7), framed(7)])
    kinds = [(type(step).__name__, step.request.path) for step in played.steps if isinstance(step, Exchange | Open)]
    assert kinds == [
        ("Exchange", "/v1/sessions/s"),
        ("Open", "/v1/sessions/s/events"),
        ("Exchange", "/v1/sessions/s/prompt"),
    ]
    assert played.requests[1].query == {"after": "6"}
    assert result(played).final_response == "answer to hello"
    assert isinstance(played.given[0], Receipt)


def test_a_run_never_returns_yesterday() -> None:
    """T1: what was said before, an idle published late, and somebody's prompt in front of ours are not its result."""
    yesterday = framed(7, "other", "yesterday")
    played = play(run(), [level("s", 6), STREAM, receipt("m", 17), level_frame("s", 16), yesterday, framed(17)])
    found = result(played)
    assert (found.from_seq, found.to_seq) == (17, 26)
    assert found.final_response == "answer to hello"
    assert all(event.seq >= 17 for event in found.events)


def test_the_receipt_may_come_after_the_first_events() -> None:
    events = framed(7)
    played = play(run(), [level("s", 6), STREAM, CUT, receipt("m", 7, duplicate=True), events])
    assert result(played).from_seq == 7
    assert [request.body for request in played.requests].count(MESSAGE.body) == 2


def test_a_cut_in_the_middle_of_a_run_loses_nothing_and_repeats_nothing() -> None:
    events = framed(7)
    for place in range(0, len(events), 37):
        played = play(run(), [level("s", 6), STREAM, receipt("m", 7), events[:place] or b":\n", CUT, STREAM, events])
        assert [event.seq for event in result(played).events] == list(range(7, 17)), place


def test_a_session_that_does_not_exist_is_made_first() -> None:
    made = good({"sessionId": "s", "cursor": 1}, 201)
    played = play(run(), [refused(404, "not-found"), made, STREAM, receipt("m", 2), framed(2)])
    assert result(played).from_seq == 2
    assert json.loads(played.requests[1].body or b"") == {"sessionId": "s"}


def test_a_model_error_does_not_raise_it_is_what_the_run_reports() -> None:
    played = play(run(), [level("s", 0), STREAM, receipt("m", 1), framed(1, kind="error")])
    assert result(played).finish_reason == "error"


def test_a_refused_message_has_no_run() -> None:
    played = play(run(), [level("s", 0), STREAM, refused(409, "closed")])
    assert isinstance(played.error, Refused)
    assert played.given == []


def test_a_message_whose_fate_is_unknown_raises_with_its_id() -> None:
    played = play(run(), [level("s", 0), STREAM, CUT, CUT])
    assert isinstance(played.error, OutcomeUnknown)
    assert played.error.message_id == "m"


def test_a_transport_that_cannot_be_resumed_raises() -> None:
    cuts: list[Answer] = [CUT, STREAM]
    played = play(run(), [level("s", 0), STREAM, receipt("m", 1), *cuts * 9])
    assert isinstance(played.error, TransportLost)
    assert isinstance(played.given[0], Receipt)


# -- leaving ------------------------------------------------------------------------------------------------------


def started(**options: Any) -> Operation[None]:
    """A run whose message is in turn 1."""
    operation = run(**options)
    five = b"".join(frame(value) for value in history("m", 1)[:5])
    play(operation, [level("s", 0), STREAM, receipt("m", 1), five])
    return operation


def test_leaving_a_run_does_not_touch_the_agent() -> None:
    assert abandon(started(), []).steps == []


def test_leaving_a_run_that_was_asked_to_cancels_the_turn_by_its_number() -> None:
    outcome = good({"outcome": "requested", "turn": 1, "stillQueued": []})
    left = abandon(started(cancel_on_abort=True), [outcome])
    assert [request.path for step in left.steps if isinstance(step, Exchange) for request in [step.request]] == [
        "/v1/sessions/s/cancel"
    ]
    assert json.loads(left.steps[0].request.body or b"")["turn"] == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("answer", [refused(409, "not-open"), refused(500, "internal"), good({})])
def test_a_cancel_that_fails_changes_nothing_for_who_leaves(answer: Answer) -> None:
    assert abandon(started(cancel_on_abort=True), [answer]).ended


@pytest.mark.parametrize("seen", [b"", frame(envelope(2, "inbox/queued", {"messageId": "m"}))])
def test_a_turn_that_did_not_take_the_message_is_never_cancelled(seen: bytes) -> None:
    """Somebody else's turn is open, begun before the run and unseen by it, or after."""
    theirs = frame(envelope(3, "turn/start", {"turn": 1}))
    theirs += frame(envelope(4, "inbox/claimed", {"turn": 1, "messageIds": ["theirs"]}))
    operation = run(cancel_on_abort=True)
    play(operation, [level("s", 1, "running"), STREAM, receipt("m", 2), seen + theirs])
    assert abandon(operation, []).steps == []


def test_who_leaves_in_the_middle_of_what_was_read_cancels_the_turn_all_the_same() -> None:
    operation = run(cancel_on_abort=True)
    script: Iterator[Answer] = iter([level("s", 0), STREAM, receipt("m", 1), framed(1)[: framed(1).index(b"id: 6")]])
    step = operation.send(None)
    while not (isinstance(step, Give) and isinstance(step.item, Event)):
        step = operation.send(None if isinstance(step, Give) else next(script))
    assert step.item.type == "inbox/queued"
    left = abandon(operation, [good({"outcome": "requested", "turn": 1, "stillQueued": []})])
    assert [json.loads(request.body or b"")["turn"] for request in left.requests] == [1]


def test_a_message_that_was_not_sent_is_not_cancelled() -> None:
    operation = run(cancel_on_abort=True)
    play(operation, [level("s", 0), STREAM])
    assert abandon(operation, []).steps == []


@pytest.mark.parametrize("cancels", [False, True])
def test_a_run_that_takes_too_long_raises_with_the_id_of_its_message(cancels: bool) -> None:
    now = [0.0]

    def tick() -> None:
        now[0] += 1

    terms = Terms(Settings(), clock=lambda: now[0], chance=lambda: 1.0).within(6.5)
    five = b"".join(frame(value) for value in history("m", 1)[:5])
    outcome = good({"outcome": "requested", "turn": 1, "stillQueued": []})
    script: list[Answer] = [level("s", 0), STREAM, receipt("m", 1), five, Fault("out of time"), outcome]
    played = play(run(terms, cancel_on_abort=cancels), script, tick)
    assert isinstance(played.error, RunTimeout)
    assert played.error.message_id == "m"
    assert any(request.path.endswith("/cancel") for request in played.requests) == cancels
    reads = [step for step in played.steps if isinstance(step, Read)]
    assert reads
    assert all(step.deadline == 6.5 for step in reads)


# -- from idle to idle --------------------------------------------------------------------------------------------


def whole(address: Address | None = None) -> Operation[None]:
    return idle_to_idle(TERMS, address or Address("s"), MESSAGE)


def test_an_idle_agent_is_owned_from_where_it_is() -> None:
    played = play(whole(), [level("s", 6), STREAM, receipt("m", 7), framed(7)])
    assert (result(played).from_seq, result(played).to_seq) == (7, 16)
    assert played.requests[1].query == {"after": "6"}


def test_a_running_agent_is_waited_for_and_says_why() -> None:
    polls = [good({"status": "running", "cursor": 9, "reasons": ["turn 2"]}), good({"status": "idle", "cursor": 12})]
    running = level("s", 8, "running", reasons=["turn 2", "1 queued"])
    played = play(whole(), [running, *polls, STREAM, receipt("m", 13), framed(13)])
    rests = [(item.idle, item.reasons) for item in played.given if isinstance(item, Rest)]
    assert rests == [(False, ("turn 2", "1 queued")), (False, ("turn 2",)), (True, ())]
    assert played.requests[1].query["after"] == "8"
    assert result(played).from_seq == 13


def test_what_happened_before_the_idle_is_not_owned() -> None:
    late = framed(7, "other", "before")
    played = play(whole(), [level("s", 16), STREAM, receipt("m", 17), late, framed(17)])
    assert result(played).final_response == "answer to hello"


def test_what_slips_in_after_the_idle_is_owned() -> None:
    played = play(whole(), [level("s", 6), STREAM, receipt("m", 17), framed(7, "other", "in between"), framed(17)])
    assert (result(played).from_seq, result(played).to_seq) == (7, 26)


def test_a_new_session_is_made_with_its_agent() -> None:
    made = good({"sessionId": "s", "cursor": 1}, 201)
    played = play(whole(Address("s", "poet")), [made, level("s", 1), STREAM, receipt("m", 2), framed(2)])
    assert json.loads(played.requests[0].body or b"")["agent"] == "poet"
    assert result(played).from_seq == 2
