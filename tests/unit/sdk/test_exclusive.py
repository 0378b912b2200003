"""Sending only while nobody else is at work, driven by hand: what is asked, when, and what becomes of a refusal."""

import json
from collections.abc import Iterable

import pytest

from mailslot import OutcomeUnknown, Receipt, Refused, RunResult, RunTimeout, Settings
from mailslot.exclusive import alone
from mailslot.operation import Address, draft
from mailslot.run import exclusive_run
from mailslot.step import Answer, Exchange, Fault, Open, Request, Shut, Terms
from tests.unit.sdk.driving import STREAM, Played, frame, frames, good, history, level, play, receipt, refused

MESSAGE = draft("hello", message_id="m", if_busy="reject")
BUSY = refused(409, "busy")
LOST = Fault("the connection was cut", sent=True)
SETTINGS = Settings(backoff_first_ms=100, backoff_max_ms=1_000)


class Clock:
    """A clock that every look moves on."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now = 0.0
        self._step_s = step_s

    def __call__(self) -> float:
        self.now += self._step_s
        return self.now


def terms(clock: Clock | None = None) -> Terms:
    return Terms(SETTINGS, clock=clock or Clock(), chance=lambda: 1.0)


def idle(cursor: int) -> Answer:
    return good({"status": "idle", "cursor": cursor})


def send(answers: Iterable[Answer], patience_s: float | None = None, clock: Clock | None = None) -> Played:
    return play(alone(terms(clock), Address("s"), MESSAGE, patience_s), answers)


def posts(played: Played) -> list[Request]:
    return [request for request in played.requests if request.method == "POST"]


def frames_of(first: int, after: int | None = None) -> bytes:
    """What the message's turn looks like from `first` on, behind what was queued before it."""
    before = frames(range(first if after is None else after + 1, first))
    return before + b"".join(frame(envelope) for envelope in history("m", first))


def test_a_message_to_a_free_agent_is_one_request_that_says_when_it_is_not_wanted() -> None:
    played = send([receipt("m")])
    assert isinstance(played.result, Receipt)
    assert [json.loads(request.body or b"")["ifBusy"] for request in played.requests] == ["reject"]


def test_a_busy_agent_is_waited_for_through_its_next_idle_and_asked_with_the_same_message() -> None:
    played = send([BUSY, level("s", 7, "running"), idle(9), BUSY, level("s", 12, "running"), idle(15), receipt("m")])
    assert isinstance(played.result, Receipt)
    assert len({request.body for request in posts(played)}) == 1
    assert [request.query["after"] for request in played.requests if "after" in request.query] == ["7", "12"]
    assert played.pauses == []


def test_an_idle_agent_that_holds_messages_is_asked_again_after_waits_that_grow() -> None:
    held = [BUSY, level("s", 7, held=1)]
    runs = [BUSY, level("s", 8, "running"), idle(9)]
    played = send([*held, *held, *held, *held, *held, *runs, *held, receipt("m")])
    assert isinstance(played.result, Receipt)
    assert played.pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 0.1], "an idle that was waited for is a new beginning"


@pytest.mark.parametrize("status", ["idle", "running"])
def test_when_patience_is_over_the_refusal_is_the_callers(status: str) -> None:
    running = [good({"status": "running", "cursor": 7, "reasons": []})] if status == "running" else []
    played = send([BUSY, level("s", 7, status), *running] * 20, patience_s=3, clock=Clock(step_s=0.5))
    assert isinstance(played.error, Refused)
    assert played.error.code == "busy"


def test_without_patience_it_is_asked_once() -> None:
    played = send([BUSY], patience_s=0)
    assert isinstance(played.error, Refused)
    assert len(played.requests) == 1


@pytest.mark.parametrize("code", ["closed", "conflict", "queue-full"])
def test_any_other_refusal_is_not_waited_out(code: str) -> None:
    played = send([refused(409, code)])
    assert isinstance(played.error, Refused)
    assert played.error.code == code


def test_busy_after_a_lost_answer_is_waited_out_as_well_for_asking_again_settles_it() -> None:
    played = send([LOST, BUSY, level("s", 7, "running"), idle(9), receipt("m", 3, duplicate=True)])
    assert isinstance(played.result, Receipt)
    assert played.result.cursor == 3
    assert len({request.body for request in posts(played)}) == 1


def test_giving_up_after_a_lost_answer_is_an_unknown_outcome_and_no_refusal() -> None:
    played = send([LOST, BUSY], patience_s=0)
    assert isinstance(played.error, OutcomeUnknown)
    assert played.error.message_id == "m"


# -- runs ---------------------------------------------------------------------------------------------------------


def run(answers: Iterable[Answer], patience_s: float | None = None, terms_: Terms | None = None) -> Played:
    return play(exclusive_run(terms_ or terms(), Address("s"), MESSAGE, patience_s), answers)


def test_an_exclusive_run_subscribes_before_each_attempt_and_leaves_what_a_refused_one_opened() -> None:
    refusal: list[Answer] = [STREAM, BUSY, level("s", 7, "running"), idle(9)]
    played = run([level("s", 2), *refusal, STREAM, receipt("m", 10), frames_of(10, after=7)])
    assert isinstance(played.given[-1], RunResult)
    kinds = [type(step) for step in played.steps if isinstance(step, Open | Shut) or _is_post(step)]
    assert kinds == [Open, Exchange, Shut, Open, Exchange]


def _is_post(step: object) -> bool:
    return isinstance(step, Exchange) and step.request.method == "POST"


def opened_after(played: Played) -> list[str]:
    return [step.request.query["after"] for step in played.steps if isinstance(step, Open)]


def test_what_happened_before_a_certain_refusal_is_not_read_again() -> None:
    played = run(
        [
            level("s", 2),
            STREAM,
            BUSY,
            level("s", 7, "running"),
            idle(9),
            STREAM,
            receipt("m", 10),
            frames_of(10, after=7),
        ]
    )
    assert opened_after(played) == ["2", "7"]


def test_after_a_lost_answer_the_run_is_read_from_before_it() -> None:
    """The lost attempt was kept at seq 3, and its run may even be over."""
    doubt: list[Answer] = [STREAM, LOST, BUSY, level("s", 14, "running"), idle(15)]
    again: list[Answer] = [STREAM, BUSY, level("s", 20, "running"), idle(21)]
    played = run([level("s", 2), *doubt, *again, STREAM, receipt("m", 3, duplicate=True), frames_of(3)])
    assert opened_after(played) == ["2", "2", "2"]
    result = played.given[-1]
    assert (result.from_seq, result.to_seq) == (3, 12)


def test_patience_is_about_the_waiting_and_a_timeout_about_the_whole_run() -> None:
    waiting: list[Answer] = [
        STREAM,
        BUSY,
        level("s", 7, "running"),
        *[good({"status": "running", "cursor": 7, "reasons": []})] * 50,
    ]
    impatient = run([level("s", 2), *waiting], patience_s=3, terms_=terms(Clock(step_s=0.5)).within(1_000))
    assert isinstance(impatient.error, Refused)
    timed_out = run([level("s", 2), *waiting], patience_s=1_000, terms_=terms(Clock(step_s=0.5)).within(8))
    assert isinstance(timed_out.error, RunTimeout)
    assert timed_out.error.message_id == "m"
