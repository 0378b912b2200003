"""The real-input run: real prompts, real doors, a real model, a real provider server, and a worker killed with -9.

    25 prompts --http, redis-cli, sdk--> 10 sessions <-- two workers, one of which dies in the middle

Run it alone and watch it: `make e2e ARGS="-k real_input -s"`.
"""

import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import httpx2
import pytest

from mailslot import AsyncClient, Event
from mailslot_contracts import INTAKE, INTAKE_DEAD
from mailslot_core import invariants
from mailslot_core import session as core
from tests.e2e.doors import Letter, letters, send
from tests.e2e.house import MAILSLOT, House, Process, all_ready, running_house
from tests.providers import Provider, aimock, provider
from tests.waiting import wait_until

__all__ = ["aimock", "provider"]  # fixtures

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(270)]

HERE: Final = Path(__file__).parent
SENT_BEFORE_KILL: Final = 15
ADMITTED_BEFORE_KILL: Final = 6
LOCAL_ANSWERS_MIN: Final = 10
RETRY_AFTER_S: Final = 1
KILL_S_MAX: Final = 60.0
DONE_S_MAX: Final = 150.0
"""How long all answers may take: the small model says some ten tokens a second, on two cores that it shares."""

Ledger = list[Event]


class Report:
    """What the run says while it goes on; `pytest -s` shows it."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        print()

    def say(self, sentence: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {sentence}", flush=True)


@pytest.fixture
def report() -> Report:
    return Report()


# -- the provider ---------------------------------------------------------------------------------------------


def teach(provider: Provider) -> None:
    """What the independent provider answers, and how it fails. Of several that match, what was told first wins."""
    for number, title in enumerate(("Moby-Dick", "Walden", "Leaves of Grass"), 1):
        asked = {"userMessage": title, "toolName": "look_up"}
        call = {"id": f"call_{number}", "name": "look_up", "arguments": {"title": title}}
        provider.on({**asked, "hasToolResult": True}, {"content": f"I have looked for {title}."})
        provider.on({**asked, "hasToolResult": False}, {"toolCalls": [call]})
    # Failures that pass come with prompts that are sent after the kill: a killed worker would hide one of them.
    slow_down = {"error": {"message": "slow down"}, "status": 429, "retryAfter": RETRY_AFTER_S}
    provider.on({"userMessage": "next train"}, {"content": "At 10:03, from platform 7."})
    provider.on({"userMessage": "one after", "sequenceIndex": 0}, slow_down)
    provider.on({"userMessage": "one after"}, {"content": "At 11:03, from platform 7."})
    opening = {"content": "Some years ago, having little or no money in my purse, I thought I would sail about."}
    going_on = {"content": "Then, I account it high time to get to sea as soon as I can."}
    broken_off = {"disconnectAfterMs": 150, "chunkSize": 3, "latency": 30}
    provider.on({"userMessage": "opening"}, opening)
    provider.on({"userMessage": "November", "sequenceIndex": 0}, going_on, **broken_off)
    provider.on({"userMessage": "November"}, going_on)
    provider.on({"userMessage": "vault"}, {"error": {"message": "no"}, "status": 403})
    provider.on({}, {"content": "Very well."})


@pytest.fixture
def house(tmp_path: Path, provider: Provider) -> Iterator[House]:
    teach(provider)
    agents = tmp_path / "agents.toml"
    agents.write_text((HERE / "agents.toml").read_text().replace("{provider}", provider.openai_url))
    (tmp_path / "shelf.py").write_text((HERE / "shelf.py").read_text())
    with running_house(tmp_path, agents) as running:
        yield running


# -- the run --------------------------------------------------------------------------------------------------


async def test_real_prompts_through_every_door_survive_a_killed_worker(house: House, report: Report) -> None:
    await all_ready(house)
    report.say("ready: store, ingest, two workers, goals")
    post = letters(HERE / "prompts.toml")

    sent = send_all(house, post[:SENT_BEFORE_KILL], report)
    dead, orphans = await kill_a_worker_at_work(house)
    report.say(f"{dead.name} (pid {dead.pid}) killed with -9; it held {', '.join(orphans)}")
    sent |= send_all(house, post[SENT_BEFORE_KILL:], report)
    ledgers = await all_rested(house, post, report)

    tell_answers(ledgers)
    tell_counts(ledgers, report)
    check_each_is_admitted_once(sent, ledgers)
    check_ledgers_are_sound(ledgers)
    check_orphans_went_on(orphans, ledgers)
    check_models_and_failures(ledgers)
    await check_the_same_again_changes_nothing(house, post, sent, ledgers)
    check_doctor(house, report)


def send_all(house: House, post: Sequence[Letter], report: Report) -> dict[str, Letter]:
    sent = {send(house, letter): letter for letter in post}
    assert len(sent) == len(post), "each message has an id of its own"
    doors = Counter(letter.door for letter in post)
    report.say(f"{len(sent)} sent: {', '.join(f'{count} by {door}' for door, count in doors.items())}")
    return sent


async def kill_a_worker_at_work(house: House) -> tuple[Process, list[str]]:
    """Kill the worker that drives most, while it does; the sessions whose open turns it left behind."""

    def at_work() -> Process | None:
        """The busiest worker, frozen so that what it holds when it is killed is known."""
        seen = house.sessions()
        busiest = max(house.workers, key=lambda worker: sum(each.is_driven_by(worker) for each in seen))
        if sum(int(each.admitted or 0) for each in seen) < ADMITTED_BEFORE_KILL:
            return None
        busiest.freeze()
        if any(each.is_driven_by(busiest) for each in house.sessions()):
            return busiest
        busiest.thaw()
        return None

    worker = await wait_until(at_work, KILL_S_MAX, "a worker in the middle of a turn")
    assert worker is not None
    orphans = sorted(each.name for each in house.sessions() if each.is_driven_by(worker))
    worker.kill()
    return worker, orphans


async def all_rested(house: House, post: Sequence[Letter], report: Report) -> dict[str, Ledger]:
    """Wait until the intake is empty and every agent is idle; every ledger, by session."""
    with house.store.client() as client:
        await wait_until(lambda: client.xlen(INTAKE) == 0, DONE_S_MAX, "the intake to be empty")
        assert client.xlen(INTAKE_DEAD) == 0, "no prompt was malformed"
    deadline = time.monotonic() + DONE_S_MAX
    ledgers: dict[str, Ledger] = {}
    async with AsyncClient(house.url) as client:
        for name in dict.fromkeys(letter.session for letter in post):
            session = client.session(name)
            idle = await session.when_idle(timeout=deadline - time.monotonic())
            level = await session.status()
            assert (level.status, level.pending, level.conservation) == ("idle", 0, 0)
            assert level.cursor == idle, "nothing stands after the last idle"
            report.say(f"{name} is idle at seq {idle}")
            ledgers[name] = await ledger(house, name)
    return ledgers


async def ledger(house: House, session: str) -> Ledger:
    """The whole ledger, as the HTTP door gives it."""
    async with httpx2.AsyncClient(base_url=house.url, trust_env=False) as client:
        answer = await client.get(f"/v1/sessions/{session}/events", headers={"Accept": "application/json"})
    page = answer.json()
    assert page["next"] is None, "it fits on one page"
    return [Event(each["seq"], each["type"], each["time"], each["epoch"], each["data"]) for each in page["events"]]


# -- what has to be true at the end ---------------------------------------------------------------------------


def check_each_is_admitted_once(sent: dict[str, Letter], ledgers: dict[str, Ledger]) -> None:
    """Every message is queued once and admitted once, in its own session, with the words that were sent."""
    for kind in ("inbox/queued", "user/message"):
        found = [
            (event.data["messageId"], name)
            for name, events in ledgers.items()
            for event in events
            if event.type == kind
        ]
        assert sorted(found) == sorted((message_id, letter.session) for message_id, letter in sent.items()), kind
    said = {event.data["messageId"]: event.data["content"] for event in flat(ledgers) if event.type == "user/message"}
    assert said == {message_id: [{"type": "text", "text": letter.text}] for message_id, letter in sent.items()}


def check_ledgers_are_sound(ledgers: dict[str, Ledger]) -> None:
    for name, events in ledgers.items():
        assert [event.seq for event in events] == list(range(1, len(events) + 1)), f"{name} has a gap"
        assert (
            invariants.violations(
                [core.Event(each.seq, each.type, each.time, each.epoch, each.data) for each in events]
            )
            == []
        ), name
        assert events[-1].data == {"status": "idle"}


def check_orphans_went_on(orphans: Sequence[str], ledgers: dict[str, Ledger]) -> None:
    """Each turn that the killed worker left open was taken up, under a later epoch."""
    for name in orphans:
        (taken_up, *_) = [event for event in ledgers[name] if event.type == "turn/recovered"]
        assert taken_up.data["reason"] == "crash"
        assert taken_up.epoch > min(event.epoch for event in ledgers[name] if event.type == "turn/start")


def check_models_and_failures(ledgers: dict[str, Ledger]) -> None:
    """The real model answered; the tool ran; each failure of the provider came to what it has to."""
    local = [event for event in answers(flat(ledgers)) if event.data["model"] == "local:smollm2"]
    assert len(local) >= LOCAL_ANSWERS_MIN
    assert all(text(event).strip() for event in local)

    results = {text(event) for event in ledgers["library"] if event.type == "tool/result"}
    # The steer may stand in one step with a follow-up, and is then answered with it.
    assert {"third row, on the left", "lent until Friday"} <= results
    assert results <= {"third row, on the left", "lent until Friday", "not on the shelf"}

    retries = {name: [event.data for event in ledgers[name] if event.type == "llm/retry"] for name in ledgers}
    assert {(data["code"], data["delayMs"]) for data in retries["timetable"]} == {
        ("rate-limited", RETRY_AFTER_S * 1_000)
    }
    assert {data["code"] for data in retries["tunnel"]} == {"connection"}

    ends = [event.data["reason"] for event in ledgers["strongroom"] if event.type == "turn/end"]
    assert [end["kind"] for end in ends] == ["error", "completed"], "the session goes on after a failure (T7)"
    assert ends[0]["code"] == "forbidden"


async def check_the_same_again_changes_nothing(
    house: House, post: Sequence[Letter], sent: dict[str, Letter], ledgers: dict[str, Ledger]
) -> None:
    """Every message with an id of its sender's, once more through its door, long after it was admitted."""
    again = [letter for letter in post if letter.message_id]
    assert {send(house, letter) for letter in again} <= sent.keys()
    with house.store.client() as client:
        await wait_until(lambda: client.xlen(INTAKE) == 0, DONE_S_MAX, "the intake to be empty")
    assert {name: await ledger(house, name) for name in ledgers} == ledgers


def check_doctor(house: House, report: Report) -> None:
    words = [str(MAILSLOT), "doctor", "--redis-url", house.store.url]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        report.say(f"doctor: {line}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("conservation 0 · 10 sessions · ")
    assert done.stdout.rstrip().endswith("fold matches")


# -- telling --------------------------------------------------------------------------------------------------


def tell_answers(ledgers: dict[str, Ledger]) -> None:
    """Who said what, for whoever watches."""
    for name, events in ledgers.items():
        print(f"  --- {name}")
        for event in events:
            words = SAID.get(event.type, "").format(event, text=short(text(event))).rstrip()
            if words:
                print(f"  {event.seq:>4} {words}")


def tell_counts(ledgers: dict[str, Ledger], report: Report) -> None:
    """The run in three lines."""
    kinds = Counter(event.type for event in flat(ledgers))
    models = Counter(event.data["model"] for event in answers(flat(ledgers)))
    crashes = sum(event.data["reason"] == "crash" for event in flat(ledgers) if event.type == "turn/recovered")
    report.say(f"{kinds['inbox/queued']} queued, {kinds['user/message']} admitted, in {kinds['turn/start']} turns")
    report.say(f"answers: {', '.join(f'{count} by {model}' for model, count in models.items())}")
    report.say(f"{crashes} turns taken up after a crash, {kinds['llm/retry']} retries, {kinds['tool/call']} tool calls")


SAID: Final = {
    "user/message": "> {text}",
    "assistant/message": "  {text}",
    "tool/call": "  tool {0.data[name]} {0.data[arguments]}",
    "tool/result": "  tool says: {text}",
    "llm/retry": "  retry in {0.data[delayMs]} ms: {0.data[code]}",
    "turn/recovered": "  turn {0.data[turn]} taken up after a {0.data[reason]}",
    "turn/end": "  turn {0.data[turn]} ended {0.data[reason][kind]}",
}


def text(event: Event) -> str:
    """The words in an event."""
    content = event.data.get("content", "")
    return content if isinstance(content, str) else " ".join(block["text"] for block in content)


def short(words: str) -> str:
    flat_words = " ".join(words.split())
    return flat_words if len(flat_words) <= 90 else flat_words[:89] + "…"


def flat(ledgers: dict[str, Ledger]) -> list[Event]:
    return [event for events in ledgers.values() for event in events]


def answers(events: Sequence[Event]) -> list[Event]:
    """The answers that say something."""
    return [event for event in events if event.type == "assistant/message" and event.data["content"]]
