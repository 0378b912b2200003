"""What is hostile is kept as it is or refused for good, at every door; frames stay whole and sessions usable."""

import asyncio
import json
from asyncio.subprocess import PIPE
from typing import Any, Final, NamedTuple

import msgpack
import pytest

from mailslot import AsyncClient, MailslotError
from mailslot_contracts import INTAKE, INTAKE_DEAD
from tests.chaos.figure import Figure
from tests.chaos.history import History, http, now_ms
from tests.chaos.ledger import Ledger, ledger, of_type
from tests.chaos.stand import Stand, all_idle
from tests.chaos.test_streams import frames
from tests.chaos.trial import hold_trial
from tests.e2e.house import MAILSLOT
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

PATIENCE_S: Final = 40.0
KB: Final = 1024
MB: Final = 1024 * KB
Told = dict[str, Any] | None
"""A receipt, or a refusal."""


class Hostile(NamedTuple):
    """A text somebody sends, and whether it can be kept."""

    name: str
    text: str
    kept: bool = True


TEXTS: Final = [
    Hostile("line separators", "a\u2028b\u2029c\u0085d"),
    Hostile("NUL", "a\0b"),
    Hostile("a frame of its own", "x\n\nid: 99\nevent: session.event\ndata: {}\n\n"),
    Hostile("carriage returns", "x\r\n\r\ndata: y\r"),
    Hostile("controls and escapes", "\x1b[2J\x07\x7f\x9b31m"),
    Hostile("a byte order mark", "\ufeffa"),
    Hostile("beyond the first plane", "\U0001f469\u200d\U0001f680\U0010ffff"),
    Hostile("non-characters", "\ufffe\uffff"),
    Hostile("right to left", "\u202eevil\u2066"),
    Hostile("64 KB - 1", "x" * (64 * KB - 1)),
    Hostile("64 KB", "x" * (64 * KB)),
    Hostile("64 KB + 1", "x" * (64 * KB + 1)),
    Hostile("1 MB", "é" * (MB // 2)),
    Hostile("1 MB + 1", "x" * (MB + 1), kept=False),
    Hostile("a lone high surrogate", "a\ud800b", kept=False),
    Hostile("a lone low surrogate", "\udfff", kept=False),
    Hostile("surrogates in the wrong order", "\udc00\ud800", kept=False),
]
IDS: Final = ["a\0b", "a\nb", "a\u2028b", "a\x1bb", "\ud800", "", "x" * 201, "a\x85b"]
DEEP: Final = json.loads("[" * 70 + "]" * 70)


def escaped(value: object) -> bytes:
    """JSON in ASCII: the one way in which a lone surrogate can be written."""
    return json.dumps(value).encode()


async def by_http(calm: Stand, session: str, body: dict[str, Any]) -> Told:
    """The receipt of the HTTP door, if it kept it."""
    async with http(calm.services[0].url) as client:
        answer = await client.post(f"/v1/sessions/{session}/prompt", content=escaped(body))
    assert answer.status_code in {202, 400, 413}, answer.text
    return answer.json() if answer.status_code == 202 else None


async def by_broker(calm: Stand, session: str, body: dict[str, Any]) -> Told:
    """The receipt of the broker door, which is asked for a reply."""
    return await through_broker(calm, escaped({"sessionId": session, **body}))


async def by_msgpack(calm: Stand, session: str, body: dict[str, Any]) -> Told:
    """The same as msgpack; a lone surrogate is bytes that are no UTF-8 there."""
    return await through_broker(calm, msgpack.packb({"sessionId": session, **body}, unicode_errors="surrogatepass"))


async def through_broker(calm: Stand, data: bytes) -> Told:
    """One entry, and its reply."""
    with calm.client.pubsub(ignore_subscribe_messages=True) as replies:  # type: ignore[no-untyped-call]
        replies.subscribe("T20-replies")
        await wait_until(lambda: calm.client.pubsub_numsub("T20-replies")[0][1] == 1, PATIENCE_S, "the subscription")
        calm.client.xadd(INTAKE, {"data": data, "reply_to": "T20-replies"})
        reply = await wait_until(lambda: replies.get_message(timeout=0), PATIENCE_S, "the reply")
    assert reply is not None
    told = json.loads(reply["data"])
    assert ("messageId" in told and "code" not in told) or told["code"] in {"bad-input", "too-large"}, told
    return told if "code" not in told else None


async def by_sdk(calm: Stand, session: str, body: dict[str, Any]) -> Told:
    """The receipt that the SDK's caller got."""
    async with AsyncClient(calm.services[0].url) as client:
        try:
            receipt = await client.session(session).prompt(
                body["content"], message_id=body.get("messageId"), metadata=body.get("metadata")
            )
        except (MailslotError, ValueError):
            return None
    return receipt.wire()


DOORS: Final = {"http": by_http, "broker": by_broker, "msgpack": by_msgpack, "sdk": by_sdk}


async def is_kept(calm: Stand, history: History, door: str, session: str, body: dict[str, Any]) -> bool:
    """Whether this door gave a receipt. It is noted if it says where the message is: the broker door's does not."""
    sent_ms = now_ms()
    told = await DOORS[door](calm, session, body)
    if told is not None and "cursor" in told:
        history.kept(session, told["messageId"], told["cursor"], sent_ms)
    return told is not None


@pytest.mark.parametrize("door", DOORS)
async def test_hostile_text_is_kept_to_the_last_code_point_or_refused(calm: Stand, figure: Figure, door: str) -> None:
    """T20 (anthropics/claude-code#68325): lone surrogates, separators, NUL, frames inside of texts, sizes at the
    limits. What was kept is in the ledger, in the stream and in the echo as it was sent; the session stays usable."""
    history, session = History(), f"T20-{door}"
    for hostile in TEXTS:
        assert await is_kept(calm, history, door, session, {"content": hostile.text}) == hostile.kept, hostile.name
        figure.fault()
    await all_idle(calm, PATIENCE_S, session)
    facts = hold_trial(calm, history, figure, sessions=session)[session]
    expected = [hostile.text for hostile in TEXTS if hostile.kept]
    assert texts(facts, "user/message") == expected
    assert texts(facts, "assistant/message") == expected
    await stream_is_whole(calm, session, facts)
    assert await is_kept(calm, history, door, session, {"content": "still here"})
    await all_idle(calm, PATIENCE_S, session)
    assert texts(ledger(calm.client, session), "assistant/message")[-1] == "still here"


def texts(facts: Ledger, kind: str) -> list[str]:
    return [each.data["content"][0]["text"] for each in of_type(facts, kind)]


async def stream_is_whole(calm: Stand, session: str, facts: Ledger) -> None:
    """Every event as one frame, and its data as it is in the ledger."""
    async with http(calm.services[0].url, timeout_s=2) as client:
        seen = []
        async for frame in frames(client, session, 0):
            if frame.id is not None:
                seen.append((frame.id, frame.data["type"], frame.data["data"]))
                if frame.id == facts[-1].seq:
                    break
    assert seen == [(each.seq, each.type, each.data) for each in facts]


@pytest.mark.parametrize("door", DOORS)
async def test_hostile_ids_and_nesting_are_refused_and_leave_nothing(calm: Stand, figure: Figure, door: str) -> None:
    """T20 (anthropics/claude-code#68325): control characters, surrogates and lengths in ids; values nested too deep."""
    history, session = History(), f"T20-ids-{door}"
    assert await is_kept(calm, history, door, session, {"content": "first"})
    await all_idle(calm, PATIENCE_S, session)
    before = ledger(calm.client, session)
    for message_id in IDS:
        body = {"content": "hello", "messageId": message_id}
        assert not await is_kept(calm, history, door, session, body), repr(message_id)
        figure.fault()
    assert not await is_kept(calm, history, door, session, {"content": "hello", "metadata": {"deep": DEEP}})
    assert ledger(calm.client, session) == before
    hold_trial(calm, history, figure, sessions=session)


async def test_a_malformed_entry_blocks_nobody_behind_it(calm: Stand, figure: Figure) -> None:
    """T20 (anthropics/claude-code#68325): bytes that are nothing at all, between entries that are fine. They lie with
    the dead letters, each with a reason."""
    session, rubbish = "T20-rubbish", [b"", b"\xff", b"{", b"\x01\xc1", b"null", b"[" * 100_000, b"\0" * 1_000]
    dead = calm.client.xlen(INTAKE_DEAD)
    for number, data in enumerate(rubbish):
        calm.client.xadd(INTAKE, {"data": data})
        calm.client.xadd(INTAKE, {"data": escaped({"sessionId": session, "content": f"fine {number}"})})
        figure.fault()
    await wait_until(lambda: calm.client.xlen(INTAKE) == 0, PATIENCE_S, "the intake to be empty")
    await all_idle(calm, PATIENCE_S, session)
    facts = hold_trial(calm, History(), figure, sessions=session)[session]
    assert texts(facts, "user/message") == [f"fine {number}" for number in range(len(rubbish))]
    assert calm.client.xlen(INTAKE_DEAD) == dead + len(rubbish)


async def test_the_command_line_refuses_bytes_that_are_no_text(calm: Stand, figure: Figure) -> None:
    """T20 (anthropics/claude-code#68325): `mailslot send` reads what is no UTF-8, and what is hostile and fine."""
    words = [str(MAILSLOT), "send", "--stdin", "--session", "T20-cli", "--url"]
    for data, code in [(b"a\xff\xfeb", {2, 4}), ("a\u2028b\0c".encode(), {0})]:
        command = await asyncio.create_subprocess_exec(
            *words, calm.services[0].url, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        _, err = await asyncio.wait_for(command.communicate(data), PATIENCE_S)
        assert command.returncode in code, err
        assert b"Traceback" not in err
        figure.fault()
    await all_idle(calm, PATIENCE_S, "T20-cli")
    facts = hold_trial(calm, History(), figure, sessions="T20-cli")["T20-cli"]
    assert texts(facts, "user/message") == ["a\u2028b\0c"]
