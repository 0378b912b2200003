"""A database of the user's own server that nobody uses, for as long as a verification takes.

    0: the user's   1 … 14   15: empty ──mark──> ours ──emptied──> empty

Rule 1: only an empty database is taken, never the one that the URL names; the mark decides between two who look.
Rule 2: what is removed at the end is what was made: the database is flushed if all of its keys are the product's, else
        the product's keys are removed one by one.
Rule 3: keys are apart, notices are not: a server has one pub/sub for all its databases. Sessions of a verification are
        called `verify-<seed>-…`, so nobody mistakes one for his own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from redis.asyncio import Redis
from redis.asyncio.connection import parse_url
from redis.exceptions import ResponseError

from mailslot_core.errors import CoreError, Misconfigured, StoreUnavailable
from mailslot_core.redis.store import connect
from mailslot_core.redis.wire import UNREACHABLE
from mailslot_core.settings import StoreSettings

MARK: Final = "mailslot:verify"
"""Says whose the database is. It goes when the database is emptied."""
OURS: Final = b"mailslot:"
"""What every key of the product begins with."""
DATABASES_DEFAULT: Final = 16
"""Databases of a server that does not tell how many it has."""
SCAN_COUNT: Final = 1_000
"""Keys that are looked at, or removed, at a time."""


class NoDatabase(CoreError):
    """There is no empty database; the sentence says what to do."""

    code = "no-database"


class Database(NamedTuple):
    """An empty database that is ours now."""

    number: int
    url: str


def with_database(url: str, number: int, name: str) -> str:
    """The same server, another database; `name` is what its connections are called on the server."""
    base, _, query = url.partition("?")
    words = [
        (key, value) for key, value in parse_qsl(query, keep_blank_values=True) if key not in ("db", "client_name")
    ]
    words.append(("client_name", name))
    scheme, _, rest = base.partition("://")
    if scheme == "unix":
        words.append(("db", str(number)))
    else:
        base = f"{scheme}://{rest.partition('/')[0]}/{number}"
    return f"{base}?{urlencode(words)}"


def shown(url: str) -> str:
    """The URL without password and options."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


@asynccontextmanager
async def borrowed(settings: StoreSettings, wanted: int | None, name: str, *, keep: bool) -> AsyncIterator[Database]:
    """A database that is empty when the block is entered and, unless kept, when it is left. Raises `NoDatabase`, or
    `StoreUnavailable` when the server cannot be reached."""
    database = await take(settings, wanted, name)
    try:
        yield database
    finally:
        if not keep:
            async with reached(_at(settings, database.url)) as client:
                await empty(client)


async def take(settings: StoreSettings, wanted: int | None, name: str) -> Database:
    """Mark an empty database as ours (rule 1)."""
    async with reached(settings) as client:
        if (await client.info("cluster")).get("cluster_enabled"):
            raise NoDatabase(
                "a Cluster has database 0 only, and that is yours: verify needs a server with an empty one"
            )
        count = await _count(client)
    own = int(parse_url(settings.redis_url).get("db", 0))
    if wanted == own and wanted is not None:
        raise NoDatabase(f"database {own} is the one that --redis-url names: give another --database")
    candidates: Iterable[int] = reversed(range(count)) if wanted is None else (wanted,)
    for number in candidates:
        if number == own:
            continue
        url = with_database(settings.redis_url, number, name)
        refusal = await _take_if_empty(_at(settings, url), number, name)
        if refusal is None:
            return Database(number, url)
        if wanted is not None:
            raise NoDatabase(refusal)
    if count == 1:
        raise NoDatabase("the server has database 0 only, and that is yours: set databases 2 on it")
    raise NoDatabase(f"none of the {count} databases of the server is empty: empty one, or set more databases on it")


async def _take_if_empty(settings: StoreSettings, number: int, name: str) -> str | None:
    """None when the database is ours now, else why it is not."""
    try:
        async with reached(settings) as client:
            size = await client.dbsize()
            if size:
                left = ", left by a verification that was kept or killed" if await client.exists(MARK) else ""
                return f"database {number} is not empty ({size} keys{left}): give another --database"
            marked = await client.set(MARK, name, nx=True)
            if marked and await client.dbsize() == 1:
                return None
            if marked:
                await client.delete(MARK)
            return f"database {number} was taken by somebody else just now: try again"
    except StoreUnavailable as error:
        if isinstance(error.__cause__, ResponseError):
            return f"the server has no database {number}: {error.__cause__}"
        raise


async def _count(client: Redis) -> int:
    """How many databases the server has. Not every server lets us ask."""
    try:
        found = await client.config_get("databases")
    except ResponseError:
        return DATABASES_DEFAULT
    return int(found.get("databases") or DATABASES_DEFAULT)


async def empty(client: Redis) -> None:
    """Remove what was made (rule 2)."""
    ours: list[Any] = []
    foreign = 0
    async for key in client.scan_iter(count=SCAN_COUNT):
        if key.startswith(OURS):
            ours.append(key)
        else:
            foreign += 1
    if not foreign:
        try:
            await client.flushdb()
        except ResponseError:  # the user may not flush
            pass
        else:
            return
    for start in range(0, len(ours), SCAN_COUNT):
        await client.unlink(*ours[start : start + SCAN_COUNT])


def _at(settings: StoreSettings, url: str) -> StoreSettings:
    return settings.model_copy(update={"redis_url": url})


@asynccontextmanager
async def reached(settings: StoreSettings) -> AsyncIterator[Redis]:
    """A client of a server that answers. Whatever it refuses is `StoreUnavailable`, with the refusal as cause."""
    try:
        client = connect(settings)
    except ValueError as error:
        raise Misconfigured(f"{shown(settings.redis_url)}: is no URL of a store ({error})") from error
    try:
        await client.ping()
        yield client
    except UNREACHABLE as error:
        raise StoreUnavailable(f"the store at {shown(settings.redis_url)} cannot be used: {error}") from error
    finally:
        await client.aclose()
