"""Planted bugs that only Redis can have: a word changed in functions.lua, or in how the broker door reads its stream.

    functions.lua --mutant--> a server --random walks beside MemoryStore--> they diverge: the conformance suite sees it
    intake        --mutant--> a server --entries-----------------------------> one of them is lost, or comes late

Rule 1: a mutant of functions.lua is one text in the place of another that stands there once. When that text changes,
        the test says so: plant the bug anew in the new text.
Rule 2: the memory store is the model (`tests/conformance`): what its twin must catch is any difference at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from redis.asyncio import Redis

from mailslot_contracts import INTAKE, INTAKE_GROUP
from mailslot_core.redis import functions
from mailslot_services.ingest import intake


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed text of functions.lua."""

    name: str
    breaks: str
    text: str
    planted: str

    @contextmanager
    def plant(self) -> Iterator[None]:
        found = functions.SOURCE.count(self.text)
        assert found == 1, f"functions.lua has {found} times what {self.name} changes; plant it anew: {self.text}"
        with patch.object(functions, "SOURCE", functions.SOURCE.replace(self.text, self.planted)):
            yield


MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "no-fence",
        "a former owner's writes are taken",
        "if owned(a, argv_epoch, owner) then return false end",
        "if true then return false end",
    ),
    Mutant(
        "repeat-appends",
        "a repeated commit appends again",
        "if call == a.s.call then return grant(a, { 'ok' }) end",
        "",
    ),
    Mutant(
        "no-wake",
        "a waking message wakes nobody",
        "if a.s.status == 'idle' and waking(a) > 0 then append(",
        "if false then append(",
    ),
    Mutant(
        "blind-idle",
        "idle does not look at what waits",
        "if s.status == 'running' and waking(a) == 0 and s.phase == 'closed'",
        "if s.status == 'running' and s.phase == 'closed'",
    ),
    Mutant(
        "lost-wake",
        "a session with work is not queued for a worker",
        "if redis.call('ZADD', a.p.ready, 'NX', a.now, a.sid) == 1 then ring(a.p) end",
        "",
    ),
    Mutant(
        "held-wakes",
        "what is on hold wakes",
        "if a.s.hold ~= '' then return 0 end",
        "",
    ),
    Mutant(
        "claims-forgotten",
        "an owner is not told what its turn has claimed",
        "for _, mid in ipairs(claimed(a)) do\n    local record = message(a, mid)\n    reply[#reply + 1] = mid",
        "for _, mid in ipairs({}) do\n    local record = message(a, mid)\n    reply[#reply + 1] = mid",
    ),
    Mutant(
        "lost-index",
        "an index does not follow the ledger",
        "add(a, 'waitingBytes', f.size)\n",
        "\n",
    ),
)
"""Changes of functions.lua."""


# -- the broker door ------------------------------------------------------------------------------------------


async def _group_at_the_end(client: Redis, stream: str, group: str) -> None:
    """`ensure_group`, as it is often written: what was put in before is never read."""
    try:
        await client.xgroup_create(stream, group, id="$", mkstream=True)
    except Exception as error:
        if "BUSYGROUP" not in str(error):
            raise


def group_at_the_end() -> AbstractContextManager[object]:
    """The group of the intake stream is made at `$`."""
    return patch.object(intake, "ensure_group", _group_at_the_end)


@contextmanager
def acknowledged_before_it_is_kept() -> Iterator[None]:
    """An entry is acknowledged when it was read, and not when its message is durable."""
    real: Callable[..., Any] = intake.Intake._handle

    async def handle(door: intake.Intake, batch: Any) -> None:
        arrivals = list(batch)
        names = [arrival.entry_id for arrival in arrivals]
        if names:
            await door._client.xack(INTAKE, INTAKE_GROUP, *names)
            await door._client.xdel(INTAKE, *names)
        await real(door, arrivals)

    with patch.object(intake.Intake, "_handle", handle):
        yield
