"""What a sender may say, what is refused with which code, and how little a receipt tells."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mailslot_contracts import messages
from mailslot_contracts.door import read
from mailslot_contracts.messages import Accepted, IntakeEntry, MessagePatch, Prompt, Receipt, body_fingerprint
from mailslot_contracts.problems import Code, ContractError

PNG = base64.b64encode(b"\x89PNG").decode()
IMAGE = {"type": "image", "mediaType": "image/png", "data": PNG}
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: not text.isspace())


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def fingerprint(**prompt: Any) -> bytes:
    return body_fingerprint(read(Prompt, {"content": "x", **prompt}).body())


@given(WORDS)
def test_a_bare_string_is_one_text_block(said: str) -> None:
    bare, block = read(Prompt, {"content": said}), read(Prompt, {"content": [text(said)]})
    assert bare == block
    assert bare.wire()["content"] == [text(said)]
    assert body_fingerprint(bare.body()) == body_fingerprint(block.body())


def test_a_prompt_with_everything_comes_back_as_it_was_sent() -> None:
    sent = {
        "messageId": "m-1",
        "content": [text("look"), IMAGE, {"type": "image", "mediaType": "image/webp", "url": "https://a.example/b"}],
        "delivery": "steer",
        "ifBusy": "reject",
        "ifIdle": "reject",
        "expectTurn": 4,
        "notBefore": 1_764_554_400_123,
        "expiresAt": 1_764_554_400_124,
        "source": {"kind": "plugin"},
        "metadata": {"n": 1, "f": 1.0, "none": None, "deep": [{"a": True}]},
        "createSession": False,
    }
    assert read(Prompt, sent).wire() == sent


def test_a_prompt_that_says_only_its_content_is_queued_from_a_user_and_makes_its_session() -> None:
    prompt = read(Prompt, {"content": "hi"})
    assert prompt.message_id is None
    assert prompt.delivery is messages.Delivery.QUEUE
    assert prompt.create_session is True
    assert prompt.body()["source"] == {"kind": "user"}


def test_null_for_an_optional_field_is_the_same_as_leaving_it_out() -> None:
    assert read(Prompt, {"content": "x", "messageId": None, "source": None}) == read(Prompt, {"content": "x"})


def test_delivery_decides_lane_and_wake() -> None:
    assert messages.DELIVERY == {
        "queue": ("next-turn", True),
        "steer": ("next-step", True),
        "inject": ("next-step", False),
    }


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        (None, "must be an object"),
        ([], "must be an object"),
        ("hi", "must be an object"),
        ({}, "content: is missing"),
        ({"content": None}, "content: must be a list"),
        ({"content": 5}, "content: must be a list"),
        ({"content": text("x")}, "content: must be a list"),
        ({"content": [5]}, "content.0: must be an object"),
        ({"content": ["x"]}, "content.0: must be an object"),
        ({"content": []}, "must not be empty"),
        ({"content": ""}, "must say something"),
        ({"content": " \n\t\u2028"}, "must say something"),
        ({"content": [text("a"), text("")]}, "must say something"),
        ({"content": [{"text": "a"}]}, "unable to extract tag"),
        ({"content": [{"type": "video"}]}, "video"),
        ({"content": [{"type": "text"}]}, "text: is missing"),
        ({"content": [{"type": "text", "text": 5}]}, "must be text"),
        ({"content": [{**text("a"), "bold": True}]}, "bold: is not a field"),
        ({"content": [{"type": "image", "mediaType": "image/png"}]}, "either data or url"),
        ({"content": [{**IMAGE, "url": "https://a.example/"}]}, "either data or url"),
        ({"content": [{**IMAGE, "data": "a"}]}, "base64"),
        ({"content": [{**IMAGE, "data": ""}]}, "must not be empty"),
        ({"content": [{**IMAGE, "data": "aé=="}]}, "base64"),
        ({"content": [{**IMAGE, "mediaType": "text/html"}]}, "mediaType"),
        ({"content": [{"type": "image", "mediaType": "image/png", "url": "file:///etc/passwd"}]}, "http or https"),
        ({"content": [{"type": "image", "mediaType": "image/png", "url": "https://a b"}]}, "http or https"),
        ({"content": "x", "messageId": ""}, "messageId must not be empty"),
        ({"content": "x", "messageId": 5}, "messageId: must be text"),
        ({"content": "x", "messageId": "a\x00"}, r"messageId must not hold the control character U\+0000"),
        ({"content": "x", "messageId": "a" * 201}, "201 bytes"),
        ({"content": "x", "messageId": "\ud800"}, "lone surrogate"),
        ({"content": "x\ud800"}, "value.content: must not hold a lone surrogate"),
        ({"content": "x", "delivery": "now"}, "delivery: .*queue"),
        ({"content": "x", "delivery": None}, "delivery"),
        ({"content": "x", "delivery": 1}, "delivery"),
        ({"content": "x", "source": "user"}, "source: must be an object"),
        ({"content": "x", "source": {}}, "kind: is missing"),
        ({"content": "x", "source": {"kind": "root"}}, "source.kind"),
        ({"content": "x", "source": {"kind": "child"}}, "source.kind"),
        ({"content": "x", "source": {"kind": "goal", "goalId": "g", "revision": 1, "round": 1}}, "source.kind"),
        ({"content": "x", "source": {"kind": "user", "admin": True}}, "admin: is not a field"),
        ({"content": "x", "metadata": []}, "metadata: must be an object"),
        ({"content": "x", "metadata": {"a": float("nan")}}, "value.metadata.a: must be a finite number"),
        ({"content": "x", "metadata": {"a": 2**63}}, "64 bits"),
        ({"content": "x", "metadata": {"a": b"x"}}, "not bytes"),
        ({"content": "x", "createSession": 1}, "createSession: must be true or false"),
        ({"content": "x", "createSession": "true"}, "createSession: must be true or false"),
        ({"content": "x", "message_id": "m"}, "message_id: is not a field"),
        ({"content": "x", "create_session": True}, "create_session: is not a field"),
        ({"content": "x", "ifBusy": "wait"}, "ifBusy"),
        ({"content": "x", "ifBusy": True}, "ifBusy"),
        ({"content": "x", "ifIdle": "reject"}, "ifIdle: only a steer can have it; delivery is queue"),
        ({"content": "x", "ifIdle": "reject", "delivery": "inject"}, "ifIdle: only a steer can have it"),
        ({"content": "x", "expectTurn": 1}, "expectTurn: only a steer can have it"),
        ({"content": "x", "expectTurn": 0, "delivery": "steer"}, "expectTurn"),
        ({"content": "x", "expectTurn": "1", "delivery": "steer"}, "expectTurn: must be an integer"),
        ({"content": "x", "expectTurn": 1.0, "delivery": "steer"}, "expectTurn: must be an integer"),
        ({"content": "x", "notBefore": "2026-01-01T00:00:00Z"}, "notBefore: must be an integer"),
        ({"content": "x", "notBefore": 1.5}, "notBefore: must be an integer"),
        ({"content": "x", "notBefore": 1.0}, "notBefore: must be an integer"),
        ({"content": "x", "notBefore": True}, "notBefore: must be an integer"),
        ({"content": "x", "notBefore": -1}, "notBefore"),
        ({"content": "x", "notBefore": 2**63}, "64 bits"),
        ({"content": "x", "expiresAt": "soon"}, "expiresAt: must be an integer"),
        ({"content": "x", "expiresAt": 1e12}, "expiresAt: must be an integer"),
        ({"content": "x", "notBefore": 7, "expiresAt": 7}, "expiresAt: must be later than notBefore"),
        ({"content": "x", "notBefore": 7, "expiresAt": 6}, "expiresAt: must be later than notBefore"),
        ({"content": "x", "not_before": 7}, "not_before: is not a field"),
        ({"content": "x", "sessionId": "s"}, "sessionId: is not a field"),
    ],
)
def test_bad_input_is_refused_with_a_code_and_a_sentence(prompt: object, sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence) as caught:
        read(Prompt, prompt)
    assert caught.value.code is Code.BAD_INPUT
    str(caught.value).encode("utf-8")


@pytest.mark.parametrize(
    "said",
    ["a\u2028b\u2029c", "a\x00b", "\x00", "\x1b[31m", "\ufeffa", "\u202ea", "x" * (64 * 1024 + 1), "\U0010ffff"],
)
def test_hostile_text_that_is_well_formed_is_kept(said: str) -> None:
    assert read(Prompt, {"content": said}).wire()["content"] == [text(said)]


LIMIT = messages.CONTENT_BYTES_MAX


@pytest.mark.parametrize(
    "content",
    [
        "x" * LIMIT,
        "é" * (LIMIT // 2),
        [text("x" * (LIMIT // 2)), text("y" * (LIMIT // 2))],
        [text("x")] * messages.CONTENT_BLOCKS_MAX,
        [{**IMAGE, "data": "AAAA" * (LIMIT // 4)}],
    ],
)
def test_content_up_to_its_limits_is_taken(content: object) -> None:
    assert read(Prompt, {"content": content}).content


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ({"content": "x" * (LIMIT + 1)}, f"content has {LIMIT + 1} bytes; the limit is {LIMIT}"),
        ({"content": "é" * (LIMIT // 2 + 1)}, f"content has {LIMIT + 2} bytes"),
        ({"content": [text("x" * LIMIT), text("y")]}, f"content has {LIMIT + 1} bytes"),
        ({"content": [{**IMAGE, "data": "AAAA" * (LIMIT // 4 + 1)}]}, f"content has {LIMIT + 4} bytes"),
        ({"content": [text("x")] * (messages.CONTENT_BLOCKS_MAX + 1)}, "content has 257 blocks; the limit is 256"),
        (
            {"content": [{"type": "image", "mediaType": "image/png", "url": "https://a.example/" + "x" * 8192}]},
            "url has 8210 bytes; the limit is 8192",
        ),
        ({"content": "x", "metadata": {"a": "x" * messages.METADATA_BYTES_MAX}}, "metadata has 16390 bytes"),
    ],
)
def test_what_is_over_a_limit_is_too_large_and_says_by_how_much(prompt: object, sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence) as caught:
        read(Prompt, prompt)
    assert caught.value.code is Code.TOO_LARGE
    assert caught.value.problem().status == 413


def test_metadata_up_to_its_limit_is_taken() -> None:
    metadata = {"a": "x" * (messages.METADATA_BYTES_MAX - 6)}
    assert read(Prompt, {"content": "x", "metadata": metadata}).metadata == metadata


def test_deep_metadata_is_refused_at_the_same_depth_on_every_door() -> None:
    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"d": deep}
    for door in (Prompt, IntakeEntry):
        with pytest.raises(ContractError, match="deeper than 64"):
            read(door, {"content": "x", "sessionId": "s", "metadata": deep})


def test_a_refusal_never_repeats_a_huge_field_name() -> None:
    with pytest.raises(ContractError) as caught:
        read(Prompt, {"content": "x", "f" * 100_000: 1})
    assert len(str(caught.value)) < 300


def test_an_intake_entry_names_its_session_and_may_name_an_agent() -> None:
    sent = {"sessionId": "s", "content": "x", "agent": "writer", "messageId": "m"}
    entry = read(IntakeEntry, sent)
    assert (entry.session_id, entry.agent, entry.message_id) == ("s", "writer", "m")
    with pytest.raises(ContractError, match="sessionId: is missing"):
        read(IntakeEntry, {"content": "x"})
    with pytest.raises(ContractError, match="U\\+000A"):
        read(IntakeEntry, {**sent, "agent": "a\nb"})


def test_the_same_prompt_has_the_same_body_on_every_door() -> None:
    sent = {"content": "x", "delivery": "inject", "metadata": {"b": 1, "a": 2}}
    over_http = read(Prompt, sent)
    over_broker = read(IntakeEntry, {**sent, "sessionId": "s", "agent": "a", "createSession": False, "messageId": "m"})
    assert body_fingerprint(over_http.body()) == body_fingerprint(over_broker.body())


def test_the_fingerprint_knows_every_part_of_the_body_and_nothing_else() -> None:
    base = fingerprint()
    assert len(base) == messages.FINGERPRINT_BYTES
    same = [
        fingerprint(delivery="queue"),
        fingerprint(source={"kind": "user"}),
        fingerprint(metadata={}),
        fingerprint(messageId="m"),
        fingerprint(createSession=False),
        fingerprint(ifBusy="reject"),
        fingerprint(notBefore=None, expiresAt=None),
    ]
    assert same == [base] * len(same)
    others = [
        fingerprint(content="y"),
        fingerprint(content=[text("x"), text("x")]),
        fingerprint(content=[{**IMAGE}]),
        fingerprint(delivery="steer"),
        fingerprint(delivery="inject"),
        fingerprint(source={"kind": "system"}),
        fingerprint(metadata={"a": 1}),
        fingerprint(metadata={"a": 1.0}),
        fingerprint(metadata={"a": True}),
        fingerprint(metadata={"a": "1"}),
        fingerprint(metadata={"a": None}),
        fingerprint(notBefore=7),
        fingerprint(expiresAt=7),
        fingerprint(notBefore=6, expiresAt=7),
    ]
    assert len({base, *others}) == len(others) + 1


def test_the_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    left = fingerprint(metadata={"a": {"x": 1, "y": 2}, "b": 3})
    assert left == fingerprint(metadata={"b": 3, "a": {"y": 2, "x": 1}})


def test_what_a_submit_depends_on_is_no_part_of_the_body() -> None:
    conditions = {"ifBusy": "reject", "ifIdle": "reject", "expectTurn": 2}
    assert fingerprint(delivery="steer", **conditions) == fingerprint(delivery="steer")


def test_times_are_part_of_a_body_that_has_them() -> None:
    assert read(Prompt, {"content": "x"}).body().keys() == {"content", "delivery", "source", "metadata"}
    timed = read(Prompt, {"content": "x", "notBefore": 0, "expiresAt": 1}).body()
    assert (timed["notBefore"], timed["expiresAt"]) == (0, 1)


@pytest.mark.parametrize("patch", [{"content": "y"}, {"content": [text("y")]}, {"delivery": "steer"}])
def test_a_change_of_a_message_is_new_content_or_a_steer(patch: dict[str, Any]) -> None:
    assert read(MessagePatch, patch).wire().keys() == patch.keys()


@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        (None, "must be an object"),
        ({}, "either content or delivery"),
        ({"content": None}, "either content or delivery"),
        ({"content": "y", "delivery": "steer"}, "either content or delivery"),
        ({"content": ""}, "must say something"),
        ({"content": []}, "must not be empty"),
        ({"content": "y", "metadata": {}}, "metadata: is not a field"),
        ({"delivery": "queue"}, "delivery"),
        ({"delivery": "inject"}, "delivery"),
        ({"notBefore": 5}, "notBefore: is not a field"),
    ],
)
def test_what_is_no_change_of_a_message_is_refused(patch: object, sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence) as caught:
        read(MessagePatch, patch)
    assert caught.value.code is Code.BAD_INPUT


def test_the_fingerprint_of_a_body_never_changes() -> None:
    # Fingerprints are kept for a day: another value here turns honest repeats into conflicts during a deploy.
    made = fingerprint(content="hello", metadata={"b": [1, 2.5, None], "a": "é"})
    assert made.hex() == "312c58ddea7e6c37de9b5e3357e78d87"


def test_a_receipt_says_that_the_message_is_kept_and_nothing_else() -> None:
    assert list(Receipt.model_fields) == ["message_id", "cursor", "duplicate", "durability"]
    receipt = read(Receipt, {"messageId": "m", "cursor": 7, "duplicate": False, "durability": "fsync"})
    assert receipt.wire() == {"messageId": "m", "cursor": 7, "duplicate": False, "durability": "fsync"}


@pytest.mark.parametrize("extra", ["status", "result", "reason", "turn", "finishReason", "outcome", "answer"])
def test_a_receipt_with_an_outcome_is_not_a_receipt(extra: str) -> None:
    with pytest.raises(ContractError, match="is not a field"):
        read(Receipt, {"messageId": "m", "cursor": 7, "duplicate": False, "durability": "fsync", extra: "x"})
    with pytest.raises(ContractError, match="is not a field"):
        read(Accepted, {"messageId": "m", extra: "x"})


def test_what_the_broker_door_answers_is_the_message_id_alone() -> None:
    assert list(Accepted.model_fields) == ["message_id"]


def test_a_message_cannot_be_changed_once_it_is_read() -> None:
    prompt = read(Prompt, {"content": "x"})
    with pytest.raises(ValidationError, match="frozen"):
        prompt.delivery = messages.Delivery.STEER  # type: ignore[misc]
