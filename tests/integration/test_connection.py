"""A connection that was closed under its user is a lost connection, also on uvloop, on which services run."""

import asyncio
from typing import Any

import pytest
import uvloop
from redis.exceptions import ConnectionError as RedisConnectionError

from mailslot_core.redis.connection import CONNECTIONS
from mailslot_core.redis.store import connect
from mailslot_core.settings import StoreSettings
from mailslot_services import broker
from tests.servers import Server

pytestmark = pytest.mark.integration


def settings(server: Server) -> StoreSettings:
    return StoreSettings(redis_url=server.url, durability="memory")


@pytest.mark.parametrize("whose", ["store", "broker"])
def test_writing_to_a_connection_that_was_closed_meanwhile_is_a_lost_connection(redis70: Server, whose: str) -> None:
    """uvloop raises a bare RuntimeError there, which ended whoever did not expect it."""

    async def write() -> None:
        if whose == "store":
            client: Any = connect(settings(redis70))
        else:
            client = await broker.make_broker(settings(redis70)).connect()
        connection = await client.connection_pool.get_connection()
        connection._writer.transport.abort()
        await asyncio.sleep(0)  # let the loop close it
        with pytest.raises(RedisConnectionError):
            await connection.send_packed_command([b"*1\r\n$4\r\nPING\r\n"])
        await client.aclose()

    uvloop.run(write())


def test_every_scheme_of_the_broker_has_a_connection_that_can_be_closed() -> None:
    for scheme, kind in broker.CONNECTIONS.items():
        assert issubclass(kind, CONNECTIONS[scheme])
