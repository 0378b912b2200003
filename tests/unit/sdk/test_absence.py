"""What is not there, on purpose, and what is there twice and must be the same twice."""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import mailslot
from mailslot import (
    AsyncClient,
    AsyncExclusive,
    AsyncRun,
    AsyncSession,
    AsyncSessionGoal,
    Client,
    Closing,
    DeadLetter,
    Delta,
    Erasure,
    Event,
    Exclusive,
    Level,
    MessageRecord,
    QueuedMessage,
    Receipt,
    Run,
    RunResult,
    Session,
    SessionGoal,
)

SOURCE = Path(mailslot.__file__).parent


def fields(of: type) -> list[str]:
    assert dataclasses.is_dataclass(of)
    return [field.name for field in dataclasses.fields(of)]


def public(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def test_a_receipt_has_exactly_these_fields() -> None:
    assert fields(Receipt) == ["message_id", "cursor", "duplicate", "durability"]
    assert public(Receipt) == {"message_id", "cursor", "duplicate", "durability", "wire"}
    assert set(Receipt("m", 1, duplicate=False, durability="fsync").wire()) == {
        "messageId",
        "cursor",
        "duplicate",
        "durability",
    }


def test_a_run_result_has_exactly_these_fields_and_no_status() -> None:
    assert fields(RunResult) == [
        "session_id",
        "message_id",
        "final_response",
        "finish_reason",
        "events",
        "from_seq",
        "to_seq",
        "message",
    ]
    assert public(RunResult) == {*fields(RunResult), "wire"}


def test_a_messages_record_says_nothing_of_how_a_turn_ended() -> None:
    record = ["message_id", "state", "turn", "step", "cause", "reason", "delivery", "cursor", "due"]
    assert fields(MessageRecord) == record
    queued = ["content", "source", "not_before", "expires_at", "redrive", "metadata"]
    assert fields(QueuedMessage) == [*record, *queued]


def test_an_event_has_exactly_these_fields_and_a_delta_has_no_seq() -> None:
    assert fields(Event) == ["seq", "type", "time", "epoch", "data"]
    assert fields(Delta) == ["turn", "step", "text"]


VALUES: list[Any] = [value for name in mailslot.__all__ if dataclasses.is_dataclass(value := getattr(mailslot, name))]


@pytest.mark.parametrize("value", VALUES, ids=[value.__name__ for value in VALUES])
def test_a_value_cannot_be_changed_and_holds_nothing_else(value: Any) -> None:
    assert value.__dataclass_params__.frozen
    assert "__slots__" in vars(value)


def test_the_values_are_these_and_the_package_says_that_it_is_typed() -> None:
    given = {Receipt, RunResult, MessageRecord, QueuedMessage, Event, Delta, Level, DeadLetter, Closing, Erasure}
    assert given <= set(VALUES)
    assert (SOURCE / "py.typed").is_file()


def test_a_session_can_do_exactly_this() -> None:
    assert public(Session) == {
        "id",
        "prompt",
        "steer",
        "inject",
        "queue",
        "message",
        "replace",
        "move",
        "withdraw",
        "cancel",
        "release",
        "close",
        "delete",
        "events",
        "status",
        "when_idle",
        "run",
        "stream",
        "exclusive",
    }
    assert public(Exclusive) == {"prompt", "run", "stream"}
    assert public(SessionGoal) == {"set", "get", "edit", "pause", "resume", "complete", "block", "clear"}
    assert public(Client) == {"session", "sessions", "dead", "redrive", "close"}


def test_a_prompt_takes_exactly_this() -> None:
    taken = list(inspect.signature(Session.prompt).parameters)
    times, conditions = ["not_before", "expires_at"], ["if_busy", "if_idle", "expect_turn"]
    assert taken == ["self", "content", "message_id", "delivery", *times, *conditions, "source", "metadata"]
    assert list(inspect.signature(Session.steer).parameters) == ["self", "content", "message_id", *times, *conditions]
    assert list(inspect.signature(Session.inject).parameters) == ["self", "content", "message_id", *times, "if_busy"]
    assert list(inspect.signature(Session.run).parameters) == ["self", "content", "timeout", "cancel_on_abort"]


def test_nothing_is_called_finished() -> None:
    for path in SOURCE.rglob("*.py"):
        assert not re.search(r"session\.finished|\.finished\b|on_result|wait_for_answer", path.read_text("utf-8")), path


TWINS = [
    *((Client, AsyncClient), (Session, AsyncSession), (SessionGoal, AsyncSessionGoal)),
    *((Run, AsyncRun), (Exclusive, AsyncExclusive)),
]
AWAITED = {"close": "aclose"}
"""What frees a connection has the name that `contextlib.aclosing` knows; closing a session is another thing."""


def test_every_asynchronous_class_is_a_twin() -> None:
    assert {awaited.__name__ for _, awaited in TWINS} == {name for name in mailslot.__all__ if name.startswith("Async")}
    assert all(awaited.__name__ == f"Async{blocking.__name__}" for blocking, awaited in TWINS)


@pytest.mark.parametrize(("blocking", "awaited"), TWINS, ids=[one.__name__ for one, _ in TWINS])
def test_the_two_clients_have_the_same_names_with_the_same_parameters(blocking: type, awaited: type) -> None:
    renamed = {} if blocking is Session else AWAITED
    assert {renamed.get(name, name) for name in public(blocking)} == public(awaited)
    for name in public(blocking):
        one, other = getattr(blocking, name), getattr(awaited, renamed.get(name, name))
        if callable(one):
            assert list(inspect.signature(one).parameters.values()) == list(
                inspect.signature(other).parameters.values()
            ), name


def test_everything_public_is_named_at_the_door_and_explained() -> None:
    for name in mailslot.__all__:
        assert (getattr(mailslot, name).__doc__ or "").strip(), name
    assert mailslot.__all__ == sorted(mailslot.__all__)


def test_every_error_has_a_code_and_stands_in_the_tree() -> None:
    errors = [getattr(mailslot, name) for name in mailslot.__all__ if name.endswith(("Lost", "Unknown", "Expired"))]
    errors += [mailslot.BadAnswer, mailslot.RunTimeout]
    assert all(issubclass(error, mailslot.MailslotError) for error in errors)
    assert len({error.code for error in errors}) == len(errors) == 5
