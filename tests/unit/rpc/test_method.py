"""Methods of the JSON-RPC door: each is a REST call that there is, and nothing else."""

import json
import re
from typing import Any

import pytest

from mailslot.rpc.frame import INVALID_PARAMS, RpcError
from mailslot.rpc.method import METHODS, NOTIFICATIONS, OWN, rest_call
from mailslot_services.ingest.route import resources

ADDRESSES = {(re.sub(r"\{.*?\}", "{}", each.path), method) for each in resources() for method in each.methods}

PROTOCOL = [
    *["initialize", "shutdown"],
    *["session/new", "session/prompt", "session/steer", "session/inject", "session/cancel", "session/close"],
    *["session/subscribe", "session/unsubscribe", "session/status", "session/release"],
    *["session/queue", "session/replace", "session/withdraw", "session/message", "dead/list", "dead/redrive"],
    *["goal/set", "goal/get", "goal/edit", "goal/clear"],
    *["goal/pause", "goal/resume", "goal/complete", "goal/block"],
]
"""Protocol section 2. `approval/answer` comes with approvals."""


def ask(method: str, **params: Any) -> Any:
    return rest_call(METHODS[method], params)


def body(call: Any) -> Any:
    return None if call.request.body is None else json.loads(call.request.body)


def test_every_method_of_the_protocol_is_there_and_no_other() -> None:
    assert sorted([*METHODS, *OWN]) == sorted(PROTOCOL)
    assert NOTIFICATIONS == ("session.event", "session.status", "session.delta", "session.gap")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_stands_for_an_address_of_the_rest_door(name: str) -> None:
    method = METHODS[name]
    assert (re.sub(r"\{.*?\}", "{}", method.path), method.verb) in ADDRESSES


def test_query_names_of_methods_are_query_names_of_their_address() -> None:
    for name, method in METHODS.items():
        address = re.sub(r"\{.*?\}", "{}", method.path)
        known = next(each for each in resources() if re.sub(r"\{.*?\}", "{}", each.path) == address)
        assert set(method.query) <= known.methods[method.verb].query_names(), name


def test_a_prompt_has_an_id_before_it_is_sent_and_its_result_is_exactly_that() -> None:
    made = ask("session/prompt", sessionId="s", content="hello")
    assert made.message_id == body(made)["messageId"]
    answer = {"messageId": "m", "cursor": 3, "duplicate": False, "durability": "fsync"}
    assert made.result(answer) == {"messageId": "m"}


def test_an_id_that_is_given_stays() -> None:
    assert body(ask("session/prompt", sessionId="s", content="x", messageId="mine"))["messageId"] == "mine"


def test_steer_and_inject_say_so_and_cannot_be_told_otherwise() -> None:
    assert body(ask("session/steer", sessionId="s", content="x"))["delivery"] == "steer"
    assert body(ask("session/inject", sessionId="s", content="x", delivery="inject"))["delivery"] == "inject"
    with pytest.raises(RpcError, match="delivery"):
        ask("session/steer", sessionId="s", content="x", delivery="queue")


@pytest.mark.parametrize("session_id", ["a/b", "..", "ü 😀", "{messageId}", "%2F", "a?b#c"])
def test_whatever_an_id_holds_it_is_one_segment_of_the_path(session_id: str) -> None:
    path = ask("session/message", sessionId=session_id, messageId="m").request.path
    assert re.fullmatch(r"/v1/sessions/[^/?#{}]+/messages/m", path)
    assert "/../" not in path


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session/status", {}),
        ("session/status", {"sessionId": 7}),
        ("session/status", {"sessionId": ""}),
        ("session/status", {"sessionId": "\ud800"}),
        ("session/status", {"sessionId": "s", "misspelt": 1}),
        ("session/withdraw", {"sessionId": "s"}),
        ("session/withdraw", {"sessionId": "s", "messageId": "m", "content": "x"}),
        ("session/queue", {"sessionId": "s", "after": {}}),
        ("session/queue", {"sessionId": "s", "after": "\ud800"}),
        ("dead/list", {"after": "\ud800"}),
        ("session/prompt", {"sessionId": "s", "content": "\ud800"}),
        ("goal/edit", {"sessionId": "s", "revision": 'x"\r\nevil: 1'}),
        ("goal/edit", {"sessionId": "s", "revision": True}),
        ("dead/redrive", {"letterId": None}),
    ],
)
def test_params_that_cannot_be_are_invalid_params_with_a_problem(method: str, params: dict[str, Any]) -> None:
    with pytest.raises(RpcError) as raised:
        ask(method, **params)
    failure = raised.value.failure
    assert failure.code == INVALID_PARAMS
    assert failure.data is not None
    assert failure.data["code"] == "bad-input"
    assert failure.data["status"] == 400


def test_a_revision_goes_into_the_header_and_an_operation_into_the_body() -> None:
    made = ask("goal/pause", sessionId="s", revision=3)
    assert made.request.headers == {"if-match": '"3"'}
    assert body(made) == {"operation": "pause"}
