"""What only Redis can get wrong is caught as well: by the walks of the conformance suite, and at the broker door."""

import json
import random
from contextlib import nullcontext
from typing import Final

import pytest

from mailslot_contracts import INTAKE
from mailslot_core.errors import CoreError
from mailslot_core.inbox import Receipt, Submission
from mailslot_core.redis.store import RedisStore
from mailslot_core.session import Data
from mailslot_services.ingest.limit import IntakeLimits
from tests.conformance.steps import BIRTHS, one_step
from tests.conformance.walk import Walk
from tests.conformance.worlds import MemoryWorld, redis_world
from tests.integration.test_ingest_intake import door
from tests.servers import Server
from tests.simulation.mutants import MUTANTS, Mutant, acknowledged_before_it_is_kept, group_at_the_end
from tests.unit.ingest.served import settings

pytestmark = pytest.mark.slow

WALKS: Final = 60
"""Walks in which a mutant must show; most show in the first few."""

STEPS_PER_WALK: Final = 40
CRASHES_MAX: Final = 1
"""Few, so that walks give turns up."""


async def goes_wrong(server: Server, number: int) -> bool:
    """Whether the two stores, or a store and the rules, differ on the way; a reply that makes no sense differs too."""
    rng = random.Random(number)
    async with redis_world(server, steered=True, crashes_max=CRASHES_MAX) as redis:
        walk = Walk([MemoryWorld(crashes_max=CRASHES_MAX), redis], BIRTHS)
        try:
            await walk.run([rng.getrandbits(32) for _ in range(STEPS_PER_WALK)], one_step)
        except (AssertionError, CoreError, LookupError, ValueError):
            return True
    return False


async def first_difference(server: Server) -> int | None:
    for number in range(WALKS):
        if await goes_wrong(server, number):
            return number
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
async def test_a_mutant_of_the_functions_diverges_from_the_model(mutant: Mutant, redis70: Server) -> None:
    with mutant.plant():
        number = await first_difference(redis70)
    assert number is not None, f"{WALKS} walks do not show that {mutant.breaks}"
    print(f"{mutant.breaks}: walk {number}")
    assert not await goes_wrong(redis70, number), "the walk goes wrong without the mutant too"


@pytest.mark.parametrize("planted", [False, True])
async def test_a_group_that_begins_at_the_end_passes_over_what_was_there(planted: bool, clean_server: Server) -> None:
    """One entry is put in before the door has ever run. Another one, put in later, shows that it was passed over."""
    with clean_server.client() as outside:
        outside.xadd(INTAKE, {"data": json.dumps({"sessionId": "s", "content": "hello", "messageId": "first"})})
    with group_at_the_end() if planted else nullcontext():
        async with door(clean_server) as it:
            it.put("s", messageId="second")
            wanted = ["second", "first"] if planted else ["first", "second"]
            assert await it.messages("s", 2) == wanted  # recovery finds it later: the order is lost, the message is not


class BreaksOnce(RedisStore):
    """A store that breaks where it may not, at the first submit."""

    broken = False

    async def submit(self, session_id: str, submission: Submission, created: Data | None) -> Receipt:
        if not self.broken:
            self.broken = True
            raise ZeroDivisionError
        return await super().submit(session_id, submission, created)


@pytest.mark.parametrize("planted", [False, True])
async def test_an_entry_that_is_acknowledged_before_it_is_kept_is_lost(planted: bool, clean_server: Server) -> None:
    """A defect stops the first try. What is not acknowledged is found again."""
    limits = IntakeLimits(recover_ms=20, dead_ms=400, lost_ms=20)
    with acknowledged_before_it_is_kept() if planted else nullcontext():
        async with (
            BreaksOnce.connect(settings(redis_url=clean_server.url)) as store,
            door(clean_server, limits, store) as it,
        ):
            it.put("s", messageId="m")
            if not planted:
                assert await it.messages("s", 1) == ["m"]
            await it.handled()
            assert store.broken
            assert (await store.level("s") is None) is planted
