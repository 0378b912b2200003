"""Connections to Redis: redis-py's own, but one that was closed under its user is said to be lost.

    write --> transport that a reset has closed --> RuntimeError (uvloop) --> ConnectionError

Rule 1: uvloop raises a bare RuntimeError when something is written to a transport that was closed meanwhile. Everybody
        waits out a ConnectionError; nobody expects the other, and loops that run for ever would end by it.
"""

from __future__ import annotations

from typing import Any, Final

from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError


class _Closable:
    """Rule 1."""

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        try:
            await super().send_packed_command(*args, **kwargs)  # type: ignore[misc]
        except RuntimeError as error:
            raise RedisConnectionError("the connection was closed") from error


class Tcp(_Closable, Connection):
    """`redis://`"""


class Tls(_Closable, SSLConnection):
    """`rediss://`"""


class Unix(_Closable, UnixDomainSocketConnection):
    """`unix://`"""


CONNECTIONS: Final[dict[str, type[Any]]] = {"redis": Tcp, "rediss": Tls, "unix": Unix}
"""Kind of connection by the scheme of the URL."""
