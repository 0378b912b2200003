"""What kills its worker whenever it is touched costs a bounded amount, and nobody else anything."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.chaos.figure import Figure
from tests.chaos.history import History, http
from tests.chaos.ledger import admitted, ends, held_by, of_type
from tests.chaos.stand import Stand, all_idle, made, passing, ready, without_others
from tests.chaos.trial import hold_trial
from tests.providers import Provider, aimock, provider
from tests.waiting import pace

__all__ = ["aimock", "provider"]  # fixtures

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

CRASHES_MAX: Final = 3
PATIENCE_S: Final = 60.0
ATTEMPTS: Final = 3
OTHERS: Final = 10


@pytest.mark.parametrize(
    ("content", "touched"), [("poison before", None), ("poison after", "die after")], ids=["before", "after"]
)
async def test_a_message_that_kills_its_worker_is_given_up_after_a_few_crashes(
    rough: Stand, figure: Figure, content: str, touched: str | None
) -> None:
    """T10 (curie-eng/curie#236): the worker dies before the model has answered, or after. The turn ends `interrupted`,
    a dead letter names it and its messages, the next message of the session runs, and others are served meanwhile."""
    history, session = History(), f"T10-{content.replace(' ', '-')}"
    async with http(rough.of_kind("ingest")[0].url) as client, supervised(rough, figure):
        await made(client, [session], "handy")
        await history.surely(client, session, content, message_id="poison")
        await history.surely(client, session, "and then", message_id="next")
        await served_meanwhile(rough, client, history, session)
        await all_idle(rough, PATIENCE_S)
        letters = (await client.get("/v1/dead")).json()["letters"]
    facts = hold_trial(rough, history, figure, sessions=session)[session]
    assert figure.faults == CRASHES_MAX, "each time that it was touched ended a worker, and nothing else did"
    assert touched is None or len(rough.entries(touched)) == CRASHES_MAX
    assert ends(facts) == ["interrupted", "completed"]
    assert admitted(facts) == ["poison", "next"]
    (letter,) = [letter for letter in letters if letter["sessionId"] == session]
    assert (letter["turn"], letter["reason"], letter["attempts"]) == (1, "interrupted", CRASHES_MAX)
    assert [message["messageId"] for message in letter["messages"]] == ["poison"]
    assert [each.data["attempt"] for each in of_type(facts, "turn/recovered")] == list(range(2, CRASHES_MAX + 1))
    answers = [each for each in of_type(facts, "assistant/message") if each.data["turn"] == 1]
    assert len(answers) == (1 if touched else 0), "what was answered is not asked for again"


async def test_a_message_that_died_before_it_was_admitted_is_queued_again_under_its_id(
    rough: Stand, figure: Figure
) -> None:
    """T10 (curie-eng/curie#236): an admission hook kills the worker, so the message never entered: it is dead. Once the
    hook is mended, it is redriven, and answered; a second redrive is refused."""
    history, session = History(), "T10-gate"
    async with http(rough.of_kind("ingest")[0].url) as client, supervised(rough, figure):
        await made(client, [session], "guarded")
        await history.surely(client, session, "poison at the gate", message_id="poison")
        await history.surely(client, session, "and then", message_id="next")
        await all_idle(rough, PATIENCE_S)
        record = (await client.get(f"/v1/sessions/{session}/messages/poison")).json()
        assert record["state"] == "dead"
        letters = (await client.get("/v1/dead")).json()["letters"]
        (letter,) = [letter for letter in letters if letter["sessionId"] == session]
        assert letter["messages"] == [{"messageId": "poison", "state": "dead"}]
        with rough.diary.open("a") as diary:
            diary.write("antidote\n")
        answer = await client.post(f"/v1/dead/{letter['letterId']}/redrive")
        assert answer.status_code == 202, answer.text
        (receipt,) = answer.json()["receipts"]
        assert receipt["messageId"] == "poison"
        await all_idle(rough, PATIENCE_S)
        again = await client.post(f"/v1/dead/{letter['letterId']}/redrive")
        assert (again.status_code, again.json()["code"]) == (409, "not-dead")
    facts = hold_trial(rough, history, figure, sessions=session)[session]
    assert len(rough.entries("gate")) == CRASHES_MAX
    assert ends(facts) == ["interrupted", "completed", "completed"]
    assert admitted(facts) == ["next", "poison"]
    (reborn,) = [each for each in of_type(facts, "inbox/queued") if each.data.get("redrive")]
    assert reborn.seq == receipt["cursor"]


@asynccontextmanager
async def supervised(own: Stand, figure: Figure) -> AsyncIterator[None]:
    """Workers that die are started again, as an orchestrator does it."""

    async def watch() -> None:
        while True:
            for worker in own.of_kind("worker"):
                if not worker.is_alive():
                    figure.fault()
                    worker.start()
            await pace(0.05)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


async def served_meanwhile(own: Stand, client: httpx2.AsyncClient, history: History, session: str) -> None:
    """Messages to other sessions, all of which are answered."""
    others = [f"{session}-{number}" for number in range(OTHERS)]
    for other in others:
        await history.surely(client, other, "hello")
    await all_idle(own, PATIENCE_S, *others)


async def test_a_storm_of_refusals_by_a_provider_costs_a_bounded_number_of_calls(
    rough: Stand, tmp_path: Path, figure: Figure, provider: Provider
) -> None:
    """T10 (curie-eng/curie#236): a provider that answers every call with 429. Each turn asks as often as it may, ends
    with an error, and other sessions are served meanwhile."""
    provider.fail(429, "slow down", retry_after_s=1)
    agents = tmp_path / "agents.toml"
    agents.write_text(
        f'[agents.default]\nmodel = "echo"\n\n[agents.storm]\nmodel = "openai:some-model"\n'
        f'base_url = "{provider.openai_url}"\n\n[agents.storm.limits]\nattempts = {ATTEMPTS}\n'
    )
    history, sessions = History(), [f"T10-storm-{number}" for number in range(4)]
    worker = rough.worker(agents=agents)
    with passing(rough, worker), without_others(rough, worker):
        await ready(worker)
        async with http(rough.of_kind("ingest")[0].url) as client:
            await made(client, sessions, "storm")
            await asyncio.gather(*(history.surely(client, session, "hello") for session in sessions))
            await served_meanwhile(rough, client, history, "T10-storm-beside")
            assert set(sessions) & set(held_by(rough.client, worker.pid)), "the storm is not over"
            await all_idle(rough, PATIENCE_S)
    found = hold_trial(rough, history, figure, sessions="T10-storm-")
    asked = provider.asked()
    figure.fault(len(asked))
    assert len(asked) == len(sessions) * ATTEMPTS
    for session in sessions:
        (end,) = of_type(found[session], "turn/end")
        assert (end.data["reason"]["kind"], end.data["reason"]["code"]) == ("error", "rate-limited")
        assert len(list(of_type(found[session], "llm/retry"))) == ATTEMPTS - 1
