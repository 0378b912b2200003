"""A session that never keeps still is examined rightly all the same: indexes against the ledger up to their own seq."""

from mailslot_core.memory import MemoryStore
from mailslot_core.session import Data
from mailslot_core.store import Level
from mailslot_services.doctor import examine
from tests.echo_worker import EchoWorker, prompt


class RestlessStore(MemoryStore):
    """Somebody sends a message after every look at the session."""

    sent = 0

    async def level(self, session_id: str) -> Level | None:
        found = await super().level(session_id)
        await self.send(session_id)
        return found

    async def indexes(self, session_id: str) -> Data | None:
        found = await super().indexes(session_id)
        await self.send(session_id)
        return found

    async def send(self, session_id: str) -> None:
        self.sent += 1
        await prompt(self, session_id, f"m-{self.sent}")


async def test_a_session_that_grows_with_every_look_is_sound() -> None:
    store = RestlessStore()
    await store.send("s")
    found = await examine(store, "s")
    assert (found.violations, found.differences, found.conservation) == ([], [], 0)
    assert found.events > 1


async def test_a_session_that_was_answered_is_sound() -> None:
    store = MemoryStore()
    await prompt(store, "s", "A")
    await EchoWorker(store).answer_all()
    found = await examine(store, "s")
    assert (found.violations, found.differences, found.events) == ([], [], 11)


async def test_a_session_that_is_not_there_has_no_state() -> None:
    assert (await examine(MemoryStore(), "nobody")).differences == ["is listed and has no state"]
