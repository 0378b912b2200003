"""What was found, and how damage becomes a finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from mailslot_contracts.problems import ContractError

DAMAGE: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What reading, folding and comparing damaged data may raise: once somebody wrote into it, a field can be anything, of
any size and depth. An error of the server or of the connection is none of these, and ends the examination."""
TYPES: Final = {
    **dict.fromkeys(("config", "state", "messages", "counts"), "hash"),
    **dict.fromkeys(("turn", "step", "later", "ready", "active", "leases", "forget", "sessions"), "zset"),
    **dict.fromkeys(("due", "erase"), "zset"),
    **dict.fromkeys(("ledger", "idle", "dead"), "stream"),
    "bell": "list",
    "goals": "set",
}
"""What the server calls the type of each key; `keys` says what they are for."""


class Severity(StrEnum):
    """How much a finding matters."""

    WRONG = "wrong"
    ADVICE = "advice"


class Finding(NamedTuple):
    """One thing that was found. `subject` is `server`, `partition 7` or `session s-1`."""

    severity: Severity
    subject: str
    sentence: str


def wrong(subject: str, sentence: str) -> Finding:
    """Something is not as promised."""
    return Finding(Severity.WRONG, subject, sentence)


def advice(subject: str, sentence: str) -> Finding:
    """Something could be better."""
    return Finding(Severity.ADVICE, subject, sentence)


class PartitionFacts(NamedTuple):
    """The queues of one partition."""

    partition: int
    sessions: int
    ready: int
    oldest_ready_ms: int
    leased: int
    lapsed: int
    active: int
    unserved: int
    fenced_writes: int
    waiting_for_time: int  # messages that become due or expire some time
    dead_letters: int  # with messages that can be redriven
    to_erase: int


@dataclass
class Report:
    """What an examination came to."""

    server: dict[str, Any] = field(default_factory=dict)
    partitions: list[PartitionFacts] = field(default_factory=list)
    sessions: int = 0
    events: int = 0
    conservation: int = 0
    differing: int = 0
    dead_letters: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Nothing is wrong; advice does not count."""
        return not any(finding.severity is Severity.WRONG for finding in self.findings)


# -- damage (rule 4) ----------------------------------------------------------------------------------------


class Unreadable(Exception):
    """`{what} cannot be read ({why})`: a finding."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """What is damaged comes out as `Unreadable`, under its name."""
    try:
        yield
    except DAMAGE as error:
        raise Unreadable(f"{what} cannot be read ({reason(error)})") from error


def reason(error: Exception) -> str:
    """An error in words. Ours are sentences; the others need their type to be understood."""
    said = str(error)
    return said if isinstance(error, ContractError) else ": ".join(filter(None, (type(error).__name__, said)))


async def mistyped(client: Redis, named: Mapping[str, str]) -> dict[str, str]:
    """A sentence for each of these keys that is not of its type; a key that is not there is of every type."""
    async with client.pipeline(transaction=False) as pipe:
        for key in named.values():
            pipe.type(key)
        kinds = [kind.decode() for kind in await pipe.execute()]
    return {
        name: f"{key} is a {kind}, not a {TYPES[name]}"
        for (name, key), kind in zip(named.items(), kinds, strict=True)
        if kind not in ("none", TYPES[name])
    }
