"""A backend that speaks FastStream: it puts a prompt into the intake stream and hears what happens by the topics.

    mailslot:intake            we publish     a prompt; `request` waits for its receipt on a channel of its own
    session.event.{session}    we hear        every event of every session but `agent/status`, and deltas
    session.status             we hear        `agent/status` of every session

Shows: FastStream as it comes, with nothing of ours in it. Topics are hints: what is said while nobody listens is lost
to the listener, never to the ledger. Who must have everything reads `/v1/sessions/{id}/events`.

Run it beside `mailslot up`, whose screen says where the store is:

    pip install 'faststream[redis]' msgpack
    MAILSLOT_REDIS_URL=redis://127.0.0.1:6379/0 python examples/faststream_subscriber.py
"""

import asyncio
import logging
import os
from typing import Any

import msgpack
from faststream import FastStream, Path
from faststream.redis import RedisBroker, RedisMessage

SESSION = "faststream"
STORE = os.environ.get("MAILSLOT_REDIS_URL", "redis://127.0.0.1:6379/0")
VERSION = b"\x01"
"""What travels inside Redis is one version byte and msgpack (see the AsyncAPI document, `/asyncapi`)."""

broker = RedisBroker(STORE, logger=logging.getLogger(__name__))
app = FastStream(broker, logger=None)


async def unpack(message: RedisMessage) -> dict[str, Any]:
    """An envelope `{v, seq, sessionId, type, time, epoch, data}`, or a delta."""
    assert message.body[:1] == VERSION, "a newer server: read its AsyncAPI document"
    fact: dict[str, Any] = msgpack.unpackb(message.body[1:])
    return fact


heard: dict[int, str] = {}
"""What both topics said about our session, by its place in the ledger: together they are all of it."""


@broker.subscriber("session.event.{session}", decoder=unpack)
async def hear(event: dict[str, Any], session: str = Path()) -> None:
    """What happens in any session. Deltas have no place in the ledger."""
    if session == SESSION and "seq" in event:
        keep(event, event["type"])


@broker.subscriber("session.status", decoder=unpack)
async def hear_status(event: dict[str, Any]) -> None:
    """Whether agents run or rest, of every session."""
    if event["sessionId"] == SESSION:
        keep(event, event["data"]["status"])


def keep(event: dict[str, Any], what: str) -> None:
    """Two topics are two streams: what was said first may be heard last, so the example is over when the agent has come
    to rest and nothing before that is outstanding."""
    heard[event["seq"]] = what
    rest = max((seq for seq, said in heard.items() if said == "idle"), default=0)
    if rest and all(seq in heard for seq in range(min(heard), rest)):
        for seq in sorted(heard):
            print("event", seq, heard[seq], flush=True)
        app.exit()


@app.after_startup
async def send() -> None:
    """Everybody listens; now there is something to hear."""
    letter = {"sessionId": SESSION, "content": "hello from FastStream"}
    reply = await broker.request(letter, stream="mailslot:intake", timeout=30)
    print("receipt", await reply.decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(app.run())
