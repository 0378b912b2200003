"""The inbox over HTTP, in memory and on real servers: queue, records, changes, times, holds, the end of a session, dead
letters. What is legal here works; what is not is refused and leaves every byte as it was (M5-M11, S7, C2, R5).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mailslot_contracts import CancelAnswer, CloseAnswer, DeadPage, EraseAnswer, MessageRecord, QueuePage, Redriven
from mailslot_contracts.door import read
from mailslot_contracts.status import Level
from mailslot_core.store import Store
from tests.echo_worker import EchoWorker
from tests.unit.ingest import stages
from tests.unit.ingest.served import PATIENCE_S, House, on_socket, stream
from tests.unit.ingest.stages import LATER, STAGES
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

S = "/v1/sessions/s"


@pytest.fixture
async def house(store: Store) -> AsyncIterator[House]:
    async with on_socket(store) as found:
        yield found


# -- looking ------------------------------------------------------------------------------------------------


async def record(house: House, message_id: str) -> dict[str, Any]:
    """A message's record, held to its contract."""
    response = await house.client.get(f"{S}/messages/{message_id}")
    assert response.status_code == 200, response.json()
    return read(MessageRecord, response.json()).wire()


async def queue(house: House, limit: int = 100) -> list[dict[str, Any]]:
    """The whole queue, page by page."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        query = f"?state=pending&limit={limit}" + (f"&after={after}" if after else "")
        body = (await house.client.get(f"{S}/messages{query}")).json()
        read(QueuePage, body)
        assert len(body["messages"]) <= limit
        found += body["messages"]
        if body["next"] is None:
            return found
        after = body["next"]


async def ids(house: House, limit: int = 100) -> list[str]:
    return [message["messageId"] for message in await queue(house, limit)]


async def types(house: House) -> list[str]:
    return [event.type for event in await house.store.events("s", after=0, limit=1000)]


async def level(house: House) -> Level:
    return read(Level, await house.level("s"))


async def sweep(store: Store) -> None:
    for partition in range(store.partitions):
        await store.sweep(partition, forget_after_ms=86_400_000)


# -- what is illegal ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
async def test_every_illegal_operation_has_its_own_code_and_changes_nothing(house: House, stage: str) -> None:
    """Row by row in one and the same session: none of them changes what the next one finds."""
    illegal = STAGES[stage]
    await illegal[0].stage(house)
    before = await stages.pages(house)
    for each in illegal:
        await stages.refused_and_unchanged(house, each)
    assert await stages.pages(house) == before


# -- the queue ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_the_queue_is_shown_in_the_order_in_which_it_would_be_taken(house: House, limit: int) -> None:
    await house.prompt("s", messageId="claimed")
    await EchoWorker(house.store).acquire()
    for message_id, delivery, fields in [
        ("later", "queue", {"notBefore": LATER}),
        ("follow-up 1", "queue", {}),
        ("inject", "inject", {}),
        ("follow-up 2", "queue", {}),
        ("steer", "steer", {}),
    ]:
        await house.prompt("s", messageId=message_id, delivery=delivery, **fields)
    assert await ids(house, limit) == ["claimed", "inject", "steer", "follow-up 1", "follow-up 2", "later"]


async def test_a_queued_message_is_shown_as_it_would_enter_now(house: House) -> None:
    sent = {"metadata": {"ticket": 7}, "source": {"kind": "system"}, "notBefore": LATER, "expiresAt": LATER + 1}
    cursor = (await house.prompt("s", "hello", messageId="m", **sent)).json()["cursor"]
    assert await queue(house) == [
        {
            "messageId": "m",
            "state": "queued",
            "delivery": "queue",
            "cursor": cursor,
            "due": False,
            "content": [{"type": "text", "text": "hello"}],
            **sent,
        }
    ]


async def test_an_empty_queue_is_an_empty_page(house: House) -> None:
    await stages.resting(house)
    assert (await house.client.get(f"{S}/messages")).json() == {"messages": [], "next": None}


# -- records ------------------------------------------------------------------------------------------------


async def test_a_record_follows_the_message_up_to_its_admission_and_no_further(house: House) -> None:
    cursor = (await house.prompt("s", messageId="m")).json()["cursor"]
    fixed = {"messageId": "m", "delivery": "queue", "cursor": cursor}
    assert await record(house, "m") == {**fixed, "state": "queued", "due": True}
    worker = EchoWorker(house.store)
    grant = await worker.acquire()
    assert grant is not None
    assert (await record(house, "m"))["state"] == "claimed"
    grant = await worker.begin_step(grant)
    admitted = {**fixed, "state": "admitted", "turn": 1, "step": 1}
    assert await record(house, "m") == admitted
    await worker.answer(grant, kind="error")
    assert await record(house, "m") == admitted


async def test_a_record_says_why_a_message_was_not_admitted(house: House) -> None:
    await house.prompt("s", messageId="withdrawn")
    await house.client.delete(f"{S}/messages/withdrawn")
    await house.prompt("s", messageId="cleared")
    await house.client.post(f"{S}/cancel", json={"queue": "clear"})
    found = [await record(house, name) for name in ("withdrawn", "cleared")]
    assert [(one["state"], one["cause"]) for one in found] == [("cancelled", "withdrawn"), ("cancelled", "cancel")]


async def test_ids_of_messages_may_hold_whatever_ids_may(house: House) -> None:
    for name, segment in [
        ("a/b", "a%2Fb"),
        ("é ☂?#", "%C3%A9%20%E2%98%82%3F%23"),
        ("..", "%2E%2E"),
        ("100%", "100%25"),
    ]:
        await house.prompt("s", messageId=name)
        assert (await record(house, segment))["messageId"] == name
        assert (await house.client.delete(f"{S}/messages/{segment}")).json()["state"] == "cancelled"


# -- changes ------------------------------------------------------------------------------------------------


async def test_a_replaced_message_keeps_its_place_and_enters_with_its_new_content(house: House) -> None:
    for name in ("a", "b"):
        await house.prompt("s", f"old {name}", messageId=name)
    response = await house.client.patch(f"{S}/messages/a", json={"content": "new a"})
    assert (response.status_code, response.json()["state"]) == (200, "queued")
    assert [message["content"][0]["text"] for message in await queue(house)] == ["new a", "old b"]
    await EchoWorker(house.store).answer_all()
    events = await house.store.events("s", after=0, limit=1000)
    heard = [event.data["content"][0]["text"] for event in events if event.type == "user/message"]
    assert heard == ["new a", "old b"]


async def test_a_replace_does_not_change_what_the_id_stands_for(house: House) -> None:
    first = (await house.prompt("s", "old", messageId="m")).json()
    await house.client.patch(f"{S}/messages/m", json={"content": "new"})
    again = await house.prompt("s", "old", messageId="m")
    assert again.json() == {**first, "duplicate": True}
    assert (await house.prompt("s", "new", messageId="m")).json()["code"] == "conflict"


async def test_a_withdrawn_message_is_never_admitted_and_the_agent_rests(house: House) -> None:
    await house.prompt("s", messageId="m")
    assert (await level(house)).status == "running"
    assert (await house.client.delete(f"{S}/messages/m")).json()["cause"] == "withdrawn"
    assert (await level(house)).status == "idle"
    assert await EchoWorker(house.store).answer_all() == 0


async def test_steering_with_a_queued_message_puts_it_before_every_follow_up(house: House) -> None:
    for name in ("a", "b", "c"):
        await house.prompt("s", messageId=name)
    response = await house.client.patch(f"{S}/messages/c", json={"delivery": "steer"})
    assert (response.status_code, response.json()["delivery"]) == (200, "steer")
    assert await ids(house) == ["c", "a", "b"]


async def test_steering_with_a_delayed_message_makes_it_due(house: House) -> None:
    await stages.delayed(house)
    assert (await level(house)).status == "idle"
    moved = (await house.client.patch(f"{S}/messages/m", json={"delivery": "steer"})).json()
    assert (moved["due"], (await level(house)).status) == (True, "running")


async def test_of_a_change_and_a_claim_exactly_one_wins(house: House) -> None:
    for n in range(20):
        await house.prompt("s", messageId=f"m{n}")
    worker = EchoWorker(house.store)

    async def withdraw(name: str) -> int:
        return (await house.client.delete(f"{S}/messages/{name}")).status_code

    *withdrawals, _ = await asyncio.gather(*(withdraw(f"m{n}") for n in range(20)), worker.answer_all())
    await worker.answer_all()
    states = [(await record(house, f"m{n}"))["state"] for n in range(20)]
    assert [{200: "cancelled", 409: "admitted"}[status] for status in withdrawals] == states
    assert (await level(house)).conservation == 0


# -- conditions and times -----------------------------------------------------------------------------------


async def test_a_prompt_that_must_not_disturb_is_taken_when_nothing_is_there(house: House) -> None:
    assert (await house.prompt("s", messageId="a", ifBusy="reject")).status_code == 202
    await EchoWorker(house.store).answer_all()
    assert (await house.prompt("s", messageId="later", notBefore=LATER)).status_code == 202
    assert (await house.prompt("s", messageId="inject", delivery="inject")).status_code == 202
    assert (await house.prompt("s", messageId="b", ifBusy="reject")).status_code == 202


async def test_of_many_that_want_to_be_alone_one_gets_in(house: House) -> None:
    answers = await asyncio.gather(*(house.prompt("s", ifBusy="reject") for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 19
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} == {"busy"}


async def test_a_steer_for_the_open_turn_is_taken(house: House) -> None:
    await stages.admitted(house)
    taken = await house.prompt("s", delivery="steer", ifIdle="reject", expectTurn=1)
    assert taken.status_code == 202


async def test_a_repeat_is_a_duplicate_whatever_would_refuse_it_now(house: House) -> None:
    """The duplicate check comes before every other refusal (M3)."""
    steered: dict[str, Any] = {"messageId": "m", "delivery": "steer", "ifBusy": "reject"}
    first = (await house.prompt("s", **steered)).json()
    soon = int(time.time() * 1000) + 150
    timed = (await house.prompt("s", messageId="n", expiresAt=soon)).json()

    async def over() -> bool:
        return (await house.prompt("s", expiresAt=soon)).status_code == 400

    await wait_until(over, PATIENCE_S, "the time to be over")
    await house.client.post(f"{S}/close")
    assert (await house.prompt("s", **steered)).json() == {**first, "duplicate": True}
    assert (await house.prompt("s", **{**steered, "expectTurn": 9, "ifIdle": "reject"})).json()["duplicate"]
    assert (await house.prompt("s", messageId="n", expiresAt=soon)).json() == {**timed, "duplicate": True}
    assert (await house.prompt("s", messageId="n", expiresAt=soon + 1)).json()["code"] == "conflict"


async def test_a_past_not_before_means_now(house: House) -> None:
    await house.prompt("s", messageId="m", notBefore=1)
    assert (await record(house, "m"))["due"] is True
    assert (await level(house)).status == "running"


async def test_a_delayed_message_becomes_due_in_its_time_and_does_nothing_before(house: House) -> None:
    await house.prompt("s", messageId="m", notBefore=int(time.time() * 1000) + 150)
    standing = await level(house)
    assert (standing.status, standing.pending) == ("idle", 1)

    async def due() -> bool:
        await sweep(house.store)
        return (await level(house)).status == "running"

    await wait_until(due, PATIENCE_S, "the message to be due")
    assert (await types(house))[-2:] == ["inbox/due", "agent/status"]
    assert await EchoWorker(house.store).answer_all() == 1


async def test_a_message_that_is_still_queued_at_its_time_expires(house: House) -> None:
    await house.prompt("s", messageId="m", expiresAt=int(time.time() * 1000) + 150)

    async def expired() -> bool:
        await sweep(house.store)
        return bool((await record(house, "m"))["state"] == "expired")

    await wait_until(expired, PATIENCE_S, "the message to expire")
    assert (await level(house)).status == "idle"
    assert await EchoWorker(house.store).answer_all() == 0


async def test_a_batch_takes_the_same_options_and_refuses_item_by_item(house: House) -> None:
    items = [
        {"messageId": "a", "content": "a", "ifBusy": "reject"},
        {"messageId": "b", "content": "b", "ifBusy": "reject"},
        {"messageId": "c", "content": "c", "notBefore": LATER, "expiresAt": LATER},
        {"messageId": "d", "content": "d", "expiresAt": 1},
        {"messageId": "e", "content": "e", "delivery": "steer", "expectTurn": 4},
        {"messageId": "f", "content": "f", "notBefore": LATER},
    ]
    answers = (await house.client.post(f"{S}/prompts", json=items)).json()
    assert [answer.get("code", "taken") for answer in answers] == [
        "taken", "busy", "bad-input", "expired", "turn-mismatch", "taken",
    ]  # fmt: skip
    assert await ids(house) == ["a", "f"]


# -- cancel, hold, release ----------------------------------------------------------------------------------


async def cancel(house: House, **body: Any) -> CancelAnswer:
    response = await house.client.post(f"{S}/cancel", json=body)
    assert response.status_code == 202, response.json()
    return read(CancelAnswer, response.json())


async def test_a_cancel_that_clears_leaves_nothing_queued(house: House) -> None:
    await stages.admitted(house)
    await house.prompt("s", messageId="later", notBefore=LATER)
    answer = await cancel(house, queue="clear")
    assert (answer.outcome, answer.turn, answer.still_queued) == ("requested", 1, ())
    assert [(await record(house, name))["state"] for name in ("n", "later")] == ["cancelled", "cancelled"]


async def test_a_cancel_that_holds_keeps_the_queue_until_it_is_released(house: House) -> None:
    await house.prompt("s", messageId="a")
    worker, grant = await stages.begun(house)
    await house.prompt("s", messageId="b")
    assert (await cancel(house, queue="hold")).still_queued == ("b",)
    await worker.answer(grant, kind="error")
    standing = await level(house)
    assert (standing.status, standing.held, standing.hold) == ("idle", 1, "cancel")
    assert (await record(house, "b"))["state"] == "held"
    assert await worker.answer_all() == 0
    response = await house.client.post(f"{S}/release")
    assert response.json() == {"sessionId": "s", "cursor": (await level(house)).cursor}
    assert (await types(house))[-2:] == ["inbox/released", "agent/status"]
    assert ((await level(house)).hold, await worker.answer_all()) == (None, 1)


async def test_the_next_word_of_a_person_ends_a_hold(house: House) -> None:
    await stages.held(house)
    await house.prompt("s", messageId="inject", delivery="inject")
    await house.prompt("s", messageId="later", notBefore=LATER)
    assert (await level(house)).hold == "cancel"
    await house.prompt("s", messageId="n")
    assert ((await level(house)).hold, (await level(house)).status) == (None, "running")


async def test_a_session_made_so_holds_its_queue_after_a_failure(house: House) -> None:
    await house.client.post("/v1/sessions", json={"sessionId": "s", "onFailure": "hold"})
    await house.prompt("s", messageId="a")
    await house.prompt("s", messageId="b")
    await EchoWorker(house.store).answer_one(kind="error")
    standing = await level(house)
    assert (standing.status, standing.hold, standing.held) == ("idle", "failure", 1)
    assert (await house.client.post(f"{S}/release")).status_code == 200
    assert await EchoWorker(house.store).answer_all() == 1


# -- the end of a session -----------------------------------------------------------------------------------


async def close(house: House) -> CloseAnswer:
    response = await house.client.post(f"{S}/close")
    assert response.status_code == 202, response.json()
    return read(CloseAnswer, response.json())


async def test_a_session_at_rest_is_closed_at_once_and_its_history_stays(house: House) -> None:
    await stages.resting(house)
    await house.prompt("s", messageId="later", notBefore=LATER)
    answer = await close(house)
    assert answer.closed
    assert (await record(house, "later"))["cause"] == "closed"
    assert (await types(house))[-1] == "session/closed"
    standing = await level(house)
    assert (standing.closed, standing.cursor, standing.pending) == (True, answer.cursor, 0)
    assert await close(house) == answer


async def test_a_session_with_an_open_turn_is_closed_at_its_idle(house: House) -> None:
    await house.prompt("s", messageId="a")
    worker, grant = await stages.begun(house)
    await house.prompt("s", messageId="b")
    assert not (await close(house)).closed
    assert (await record(house, "b"))["cause"] == "closed"
    assert (await house.prompt("s")).json()["code"] == "closed"
    assert not (await close(house)).closed
    await worker.answer(grant, kind="error")
    assert (await types(house))[-2:] == ["agent/status", "session/closed"]
    assert (await types(house)).count("cancel/requested") == 1
    assert (await close(house)).closed


async def erase(house: House, query: str = "", status: int = 200) -> EraseAnswer:
    response = await house.client.delete(f"{S}{query}")
    assert response.status_code == status, response.json()
    answer = read(EraseAnswer, response.json())
    assert answer.erased is (status == 200)
    return answer


async def gone(house: House) -> bool:
    return (await house.client.get(S)).status_code == 404


async def test_an_erased_session_leaves_nothing_and_its_id_is_free(house: House) -> None:
    await stages.resting(house)
    await house.prompt("s", messageId="n")
    before = (await level(house)).cursor
    receipt = (await erase(house)).stores["ledger"]
    assert (receipt.erased, receipt.messages) == (True, 2)
    assert receipt.events is not None
    assert receipt.events > before
    accept = {"Accept": "application/json"}
    for address in ("", "/events", "/messages", "/messages/m", "/idle", "/goal"):
        assert (await house.client.get(f"{S}{address}", headers=accept)).json()["code"] == "not-found"
    assert (await house.client.get("/v1/sessions")).json()["sessions"] == []
    assert (await house.client.delete(S)).json()["code"] == "not-found"
    assert (await house.prompt("s", messageId="m")).json()["duplicate"] is False
    assert await types(house) == ["session/created", "inbox/queued", "agent/status"]


async def test_a_session_with_an_open_turn_is_erased_once_that_has_ended(house: House) -> None:
    await stages.admitted(house)
    receipt = (await erase(house, status=202)).stores["ledger"]
    assert not receipt.erased
    assert not (await level(house)).closed or await gone(house)
    await erase(house, "?wait=0.05", status=202)


async def test_an_erase_that_waits_is_told_when_nothing_is_left(house: House) -> None:
    await house.prompt("s", messageId="a")
    worker, grant = await stages.begun(house)
    waiting = asyncio.create_task(erase(house, "?wait=30"))

    async def asked() -> bool:
        return "cancel/requested" in await types(house)

    await wait_until(asked, PATIENCE_S, "the close to be recorded")
    assert not waiting.done()
    await worker.answer(grant, kind="error")
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert await gone(house)


async def test_an_erase_that_waits_is_told_so_when_somebody_else_was_faster(house: House) -> None:
    await house.prompt("s", messageId="a")
    worker, grant = await stages.begun(house)
    waiting = asyncio.create_task(erase(house, "?wait=30"))

    async def followed() -> bool:
        return house.metric("event_readers") == 1

    await wait_until(followed, PATIENCE_S, "the erase to wait")
    await worker.answer(grant, kind="error")
    await sweep(house.store)
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert await gone(house)


async def test_an_erase_that_nobody_waits_for_is_finished_by_the_sweep(house: House) -> None:
    await house.prompt("s", messageId="a")
    worker, grant = await stages.begun(house)
    await erase(house, status=202)
    await worker.answer(grant, kind="error")

    async def swept() -> bool:
        await sweep(house.store)
        return await gone(house)

    await wait_until(swept, PATIENCE_S, "the session to be gone")


async def test_whoever_follows_an_erased_session_is_told_of_the_gap(house: House) -> None:
    await stages.resting(house)
    async with stream(house, "s") as events:
        await events.take((await level(house)).cursor + 1)
        await erase(house)
        frames = await events.rest()
    assert frames[-1].event == "session.gap"
    assert frames[-1].data == {"sessionId": "s", "oldest": 0, "newest": 0}


async def test_whoever_waits_for_the_idle_of_an_erased_session_is_answered(house: House) -> None:
    await house.prompt("s", messageId="later", notBefore=LATER)
    after = (await level(house)).cursor + 10

    async def wait() -> tuple[int, str]:
        response = await house.client.get(f"{S}/idle?after={after - 10}&timeout=30")
        return response.status_code, response.json().get("code", "")

    waiting = asyncio.create_task(wait())

    async def followed() -> bool:
        return house.metric("event_readers") == 1

    await wait_until(followed, PATIENCE_S, "the poll to wait")
    await erase(house)
    assert await asyncio.wait_for(waiting, PATIENCE_S) in [(410, "cursor-expired"), (404, "not-found")]


# -- dead letters -------------------------------------------------------------------------------------------


async def test_a_turn_that_was_given_up_leaves_a_letter_and_its_messages_can_be_redriven(house: House) -> None:
    await stages.dead(house)
    page = read(DeadPage, (await house.client.get("/v1/dead")).json())
    (letter,) = page.letters
    assert (letter.session_id, letter.turn, letter.attempts) == ("s", 1, 3)
    assert [(message.message_id, message.state) for message in letter.messages] == [("m", "dead")]
    assert page.next is None
    found = await record(house, "m")
    assert (found["state"], bool(found["reason"])) == ("dead", True)

    response = await house.client.post(f"/v1/dead/{letter.letter_id}/redrive")
    assert response.status_code == 202
    (receipt,) = read(Redriven, response.json()).receipts
    assert (receipt.message_id, receipt.duplicate) == ("m", False)
    (waiting,) = await queue(house)
    assert (waiting["cursor"], waiting["redrive"]) == (receipt.cursor, True)
    assert await EchoWorker(house.store).answer_all() == 1
    assert (await record(house, "m"))["state"] == "admitted"
    assert (await level(house)).conservation == 0


async def test_a_redriven_message_has_no_times_any_more(house: House) -> None:
    await house.prompt("s", messageId="m", notBefore=1, expiresAt=LATER)
    await stages.give_up(house.store)
    await house.client.post(f"/v1/dead/{await stages.letter(house)}/redrive")
    (waiting,) = await queue(house)
    assert "expiresAt" not in waiting
    assert "notBefore" not in waiting


async def test_letters_are_listed_page_by_page(house: House) -> None:
    for _ in range(3):
        await house.prompt("s")
    worker = EchoWorker(house.store, "crashing")

    async def all_died() -> bool:
        for partition in range(house.store.partitions):
            await house.store.acquire(partition, worker.owner, worker.call(), 1)
            await house.store.sweep(partition, forget_after_ms=86_400_000)
        return len(await house.store.dead(after="", limit=10)) == 3

    await wait_until(all_died, PATIENCE_S, "three turns to be given up")
    whole = (await house.client.get("/v1/dead")).json()["letters"]
    assert [letter["turn"] for letter in whole] == [1, 2, 3]
    paged: list[Any] = []
    after: str | None = ""
    while after is not None:
        page = (await house.client.get(f"/v1/dead?limit=2{f'&after={after}' if after else ''}")).json()
        paged += page["letters"]
        after = page["next"]
    assert paged == whole


# -- goals --------------------------------------------------------------------------------------------------


async def test_of_many_changes_of_one_revision_one_is_made(house: House) -> None:
    """A13: two tabs, one goal. `If-Match` decides inside the store (G1)."""
    made = await house.client.put(f"{S}/goal", json={"objective": "tidy"})
    tag = made.headers["etag"]

    async def edit(n: int) -> Any:
        return await house.client.patch(f"{S}/goal", json={"objective": f"tidy {n}"}, headers={"If-Match": tag})

    answers = await asyncio.gather(*(edit(n) for n in range(10)))
    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 9
    (won,) = [answer for answer in answers if answer.status_code == 200]
    now = await house.client.get(f"{S}/goal")
    assert (now.json(), now.headers["etag"]) == (won.json(), won.headers["etag"])
    before = await stages.pages(house)
    for method, body in [("PUT", {"objective": "b"}), ("PATCH", {"operation": "pause"}), ("DELETE", None)]:
        late = await house.client.request(method, f"{S}/goal", json=body, headers={"If-Match": tag})
        assert (late.status_code, late.json()["code"]) == (412, "revision")
    assert await stages.pages(house) == before
    fresh = await house.client.request("DELETE", f"{S}/goal", headers={"If-Match": now.headers["etag"]})
    assert fresh.status_code == 200
