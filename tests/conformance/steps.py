"""What one step of a random walk may be: every call of the port, rightly and wrongly made.

Each function takes the walk and a random number generator, makes up its arguments from what the walk has seen, and
makes one call. STEPS weighs them: mostly work that goes on, often enough everything that may come between.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from mailslot_core.goal import PHASES, Change
from mailslot_core.redis.keys import partition_of
from mailslot_core.session import Data, MessageState, Phase, Status
from mailslot_core.store import Grant, Lease, QueuePage
from mailslot_core.turn import Draft, Then
from tests.conformance.dialogue import BIRTH, CAREFUL, LEASE_MS, NEVER_MS, ending, goal_round, message, text
from tests.conformance.pen import Pen
from tests.conformance.walk import LONG_MS, Place, Walk, agree
from tests.conformance.worlds import PARTITIONS

Step = Callable[[Walk, random.Random], Awaitable[None]]

BIRTHS: Final[dict[str, Data]] = {"s1": BIRTH, "s2": CAREFUL, "s3": {**BIRTH, "agent": "other"}}
ENDS: Final[tuple[str | Data, ...]] = (
    *["completed"] * 8,
    *["error"] * 2,
    "max-tokens",
    "blocked",
    "aborted",
    {"kind": "aborted", "cause": "parent"},
    {"kind": "error", "code": "budget-steps", "message": "enough", "retryable": False},
    "interrupted",
    "unheard-of",
)


async def one_step(walk: Walk, rng: random.Random) -> None:
    """One step of a walk."""
    (chosen,) = rng.choices(list(STEPS), list(STEPS.values()))
    await chosen(walk, rng)


# -- doors --------------------------------------------------------------------------------------------------


def any_session(rng: random.Random) -> str:
    return rng.choice(list(BIRTHS))


def known_session(walk: Walk, rng: random.Random) -> str:
    """One that there is, nearly always."""
    there = [session_id for session_id in BIRTHS if walk.session(session_id).created]
    return rng.choice(there) if there and rng.random() < 0.95 else any_session(rng)


async def create(walk: Walk, rng: random.Random) -> None:
    session_id = any_session(rng)
    birth = BIRTHS[session_id] if rng.random() < 0.8 else {**BIRTH, "metadata": {"other": 1}}
    await walk.call("create", session_id, birth, touches=[session_id])


async def submit(walk: Walk, rng: random.Random) -> None:
    session_id = any_session(rng)
    delivery = rng.choices(["queue", "steer", "inject"], [5, 3, 2])[0]
    source = rng.choices(["user", "child", "schedule"], [8, 1, 1])[0]
    sent = walk.sent[session_id]
    submission = message(walk.next_name("m"), delivery, source=source, **times(walk, rng))
    if rng.random() < 0.1:
        submission = replace(submission, **conditions(walk.session(session_id).turn, rng))
    if sent and rng.random() < 0.2:
        submission = rng.choice(sent)
    elif sent and rng.random() < 0.05:
        submission = message(rng.choice(sent).message_id, delivery, "other words")
    else:
        sent.append(submission)
    created = None if rng.random() < 0.1 else BIRTHS[session_id]
    await walk.call("submit", session_id, submission, created, touches=[session_id])


def times(walk: Walk, rng: random.Random) -> dict[str, Any]:
    """A message's times, seldom: some are over, some come soon, some only with a long wait."""
    ahead = {"notBefore": rng.choice([-50, 0, 3, 20, LONG_MS]), "expiresAt": rng.choice([-1, 2, 25, 60, LONG_MS])}
    return {name: walk.now_ms() + ms for name, ms in ahead.items() if rng.random() < 0.15}


def conditions(turn: int, rng: random.Random) -> dict[str, Any]:
    """What a submit depends on."""
    given = {"if_busy": True, "if_idle": True, "expect_turn": turn + rng.choice([0, 0, 1])}
    name = rng.choice(list(given))
    return {name: given[name]}


async def revise(walk: Walk, rng: random.Random) -> None:
    """Replace, withdraw or move a message, one that waits more often than others."""
    session_id = known_session(walk, rng)
    waiting = sorted(walk.session(session_id).waiting)
    others = [*walk.session(session_id).messages, "nobody's"]
    message_id = rng.choice(waiting if waiting and rng.random() < 0.8 else others)
    name = rng.choice(["replace", "withdraw", "move"])
    content = [text(rng.choice(["", "other words", "many more words than before " * 9]))] if name == "replace" else []
    await walk.call(name, session_id, message_id, *content, touches=[session_id])


async def release(walk: Walk, rng: random.Random) -> None:
    """Of a held session if there is one."""
    held_now = [session_id for session_id in BIRTHS if walk.session(session_id).hold]
    session_id = rng.choice(held_now) if held_now else known_session(walk, rng)
    await walk.call("release", session_id, touches=[session_id])


async def close(walk: Walk, rng: random.Random) -> None:
    """Mostly to be erased, so that the walk can go on with a new session of the name."""
    closed = [session_id for session_id in BIRTHS if walk.session(session_id).closed]
    session_id = rng.choice(closed) if closed else known_session(walk, rng)
    await walk.call("close_session", session_id, erase=rng.random() < 0.7, touches=[session_id])


async def redrive(walk: Walk, rng: random.Random) -> None:
    """A letter of which something is dead, more often than one of which nothing is. None there: somebody dies."""
    letters = await walk.letters()
    if not letters:
        await lapse(walk, rng)
        return
    dead = [letter for letter in letters if any(state == MessageState.DEAD for _, state in letter.messages)]
    letter = rng.choice(dead if dead and rng.random() < 0.8 else letters)
    letter_id = letter.letter_id if rng.random() < 0.9 else f"1-0-{rng.randrange(PARTITIONS)}"
    await walk.call("redrive", letter_id, touches=[letter.session_id])


async def cancel(walk: Walk, rng: random.Random) -> None:
    session_id = known_session(walk, rng)
    turn = rng.choices([None, walk.session(session_id).turn, walk.session(session_id).turn + 1], [6, 3, 1])[0]
    cause = rng.choice(["user", "user", "parent"])
    queue = rng.choices(["keep", "hold", "clear"], [3, 3, 1])[0]
    await walk.call("cancel", session_id, cause=cause, queue=queue, turn=turn, touches=[session_id])


async def goal_change(walk: Walk, rng: random.Random) -> None:
    """Any operation, the ones that the goal's phase allows more often than the others."""
    session_id = any_session(rng)
    goal = walk.session(session_id).goal
    phase = goal["phase"] if goal else None
    allowed = sorted({operation for operation, before in PHASES if before == phase})
    operation = rng.choice(allowed if rng.random() < 0.8 else sorted({operation for operation, _ in PHASES}))
    expected = (goal["goalId"], goal["revision"]) if goal else None
    if rng.random() < 0.1:
        expected = ("goal-1", 1)
    elif rng.random() < 0.2:
        expected = None
    change = Change(operation, expected)
    if operation == "create":
        budgets = {"rounds": rng.randint(1, 3), "cost": 1.5}
        change = Change(operation, None, walk.next_name("goal-"), "keep the garden", budgets)
    elif operation == "edit":
        change = Change(operation, expected, objective="keep the yard", budgets={"rounds": rng.randint(1, 4)})
    elif operation == "block":
        change = Change(operation, expected, reason={"code": "stuck", "message": "no key"})
    created = None if rng.random() < 0.2 else BIRTHS[session_id]
    await walk.call("goal_change", session_id, change, created, touches=[session_id])


async def goal_advance(walk: Walk, rng: random.Random) -> None:
    """A round, proposed for a goal that could have one if there is any; now and then for a stale notice."""
    resting = [
        s
        for s in BIRTHS
        if walk.session(s).status is Status.IDLE and (walk.session(s).goal or {}).get("phase") == "active"
    ]
    if not resting and rng.random() < 0.5:
        await goal_change(walk, rng)
        return
    session_id = rng.choice(resting or list(BIRTHS))
    session = walk.session(session_id)
    goal = session.goal or {"goalId": "goal-0", "revision": 1, "rounds": 0}
    slip = [0, 0, 0]
    if rng.random() < 0.2:
        slip[rng.randrange(3)] = rng.choice([-1, 1])
    number = goal["rounds"] + 1 + slip[1]
    proposed = goal_round(goal["goalId"], goal["revision"] + slip[0], number, session.idle_seq + slip[2])
    await walk.call("goal_advance", session_id, proposed, touches=[session_id])


# -- workers ------------------------------------------------------------------------------------------------


def busy(walk: Walk, rng: random.Random) -> Place | None:
    """A slot that holds a session."""
    holding = [place for place in walk.places if place.grant is not None]
    return rng.choice(holding) if holding else None


async def acquire(walk: Walk, rng: random.Random) -> None:
    free = [place for place in walk.places if place.grant is None]
    if not free:
        await work(walk, rng)
        return
    place = rng.choice(free)
    held_now = {lease.session_id for lease in leases_of(walk)}
    wanted = [s for s in BIRTHS if walk.session(s).status is Status.RUNNING and s not in held_now]
    partition = partition_of(rng.choice(wanted), PARTITIONS) if wanted else rng.randrange(PARTITIONS)
    await walk.numbered(place, "acquire", partition, place.owner, place.next_call(), LEASE_MS)


async def work(walk: Walk, rng: random.Random) -> None:
    """Commit some facts that may stand where they do, or end the turn with them."""
    place = busy(walk, rng)
    if place is None:
        await acquire(walk, rng)
        return
    grant = held(place)
    pen = Pen(grant)
    while rng.random() < 0.75:
        scribble(pen, walk, rng)
    if pen.phase is Phase.BOUNDARY and rng.random() < 0.6:
        await settle(walk, rng, place, pen.drafts)
    else:
        take = pen.phase is Phase.BOUNDARY and rng.random() < 0.5
        await walk.numbered(place, "commit", grant.lease, place.next_call(), pen.drafts, take=take)


def scribble(pen: Pen, walk: Walk, rng: random.Random) -> None:
    """One more fact, whichever may come."""
    {Phase.BOUNDARY: enter, Phase.OPEN: answer, Phase.ANSWERED: use_tools}[pen.phase](pen, walk, rng)


def enter(pen: Pen, walk: Walk, rng: random.Random) -> None:
    if pen.batch and rng.random() < 0.1:
        pen.reject(rng.choice(pen.batch))
        return
    pen.start()
    for message_id in list(pen.batch):
        if rng.random() < 0.95:
            pen.admit(message_id)
    if rng.random() < 0.05:
        pen.admit(walk.next_name("hook-"))


def answer(pen: Pen, walk: Walk, rng: random.Random) -> None:
    match rng.choices(["say", "fail", "retry", "spend"], [8, 1, 1, 2])[0]:
        case "say":
            pen.say("well", *(walk.next_name("call-") for _ in range(rng.choice([0, 0, 1, 2]))))
        case "fail":
            pen.end_step()
        case "retry":
            pen.retry()
        case "spend":
            pen.spend(rng.randrange(1000), rng.randrange(100), **({"cost": 0.1} if rng.random() < 0.5 else {}))


def use_tools(pen: Pen, walk: Walk, rng: random.Random) -> None:
    if not pen.calls:
        pen.end_step()
        return
    call_id = rng.choice(list(pen.calls))
    if pen.calls[call_id] == "asked" and rng.random() < 0.8:
        pen.call(call_id)
    else:
        pen.result(call_id)


async def settle(walk: Walk, rng: random.Random, place: Place, drafts: list[Draft]) -> None:
    then = rng.choices([Then.TAKE, Then.YIELD], [4, 1])[0]
    usage = {"inputTokens": 3, "outputTokens": 1} if rng.random() < 0.3 else None
    await walk.settle(place, drafts, rng.choice(ENDS), then=then, hand_out=rng.random() < 0.6, usage=usage)


async def take(walk: Walk, rng: random.Random) -> None:
    place = busy(walk, rng)
    if place is None:
        await submit(walk, rng)
    else:
        await walk.numbered(place, "take", held(place).lease, place.next_call())


async def nonsense(walk: Walk, rng: random.Random) -> None:
    """A fact that may not stand where it does, after some that may."""
    place = busy(walk, rng)
    if place is None:
        await submit(walk, rng)
        return
    pen = Pen(held(place))
    while rng.random() < 0.4:
        scribble(pen, walk, rng)
    sent = [submission.message_id for submission in walk.sent[held(place).lease.session_id]]
    pen.drafts.append(blunder(pen, rng, rng.choice([*sent, "nobody's"])))
    if rng.random() < 0.5:
        await walk.settle(place, pen.drafts, "completed")
    else:
        take = rng.random() < 0.3
        await walk.numbered(place, "commit", held(place).lease, place.next_call(), pen.drafts, take=take)


def blunder(pen: Pen, rng: random.Random, message_id: str) -> Draft:
    """A fact that is wrong nearly everywhere; the message may happen to be one that may be admitted or rejected."""
    step = {Phase.BOUNDARY: pen.step + 2}.get(pen.phase, pen.step)
    here = {"turn": pen.turn, "step": step}
    said = {"content": text("what"), "model": "m", "source": {"kind": "user"}}
    kinds: dict[str, dict[str, Any]] = {
        "step/start": here,
        "step/end": {**here, "step": step + 1},
        "user/message": {**here, **said, "messageId": message_id, "turn": pen.turn + rng.choice([0, 0, 1])},
        "inbox/rejected": {"messageId": message_id, "turn": pen.turn, "reason": "hook"},
        "assistant/message": {**here, **said, "turn": pen.turn + 1},
        "tool/call": {**here, "callId": "never asked", "name": "clock", "arguments": {}},
        "tool/result": {**here, "callId": "never asked", "content": "noon"},
        "llm/retry": {**here, "step": step + 1, "attempt": 1, "delayMs": 1, "code": "busy", "message": "busy"},
        "turn/start": {"turn": pen.turn + 1},
        "turn/end": {"turn": pen.turn, "reason": {"kind": "completed"}},
        "agent/status": {"status": "idle"},
        "inbox/queued": dict(message("smuggled").data),
        "unheard/of": {},
    }
    likely = {Phase.BOUNDARY: "inbox/rejected", Phase.OPEN: "user/message", Phase.ANSWERED: "tool/result"}[pen.phase]
    kind = likely if rng.random() < 0.4 else rng.choice(list(kinds))
    return Draft(kind, kinds[kind])


async def repeat(walk: Walk, rng: random.Random) -> None:
    """A slot asks again, under the same number, because it lost an answer."""
    asked = [(place, place.last) for place in walk.places if place.last is not None]
    if not asked:
        await acquire(walk, rng)
        return
    await walk.ask(*rng.choice(asked))


async def handback(walk: Walk, rng: random.Random) -> None:
    place = busy(walk, rng)
    if place is not None:
        await walk.numbered(place, "handback", held(place).lease, place.next_call())


async def die(walk: Walk, rng: random.Random) -> None:
    """A slot forgets its session. Its lease stands until it lapses."""
    place = busy(walk, rng)
    if place is not None:
        place.grant = None


async def stray(walk: Walk, rng: random.Random) -> None:
    """A call under a lease that is not the session's present one."""
    known = [*walk.leases.values(), *walk.old_leases]
    if not known:
        return
    lease = rng.choice(known)
    false = [lease._replace(owner="worker-3/0"), lease._replace(epoch=lease.epoch + 1), *walk.old_leases]
    lease = rng.choice(false)
    number, own = 10_000 + len(walk.log), [lease.session_id]
    match rng.randrange(5):
        case 0:
            await walk.call("commit", lease, number, [], take=True, touches=own)
        case 1:
            options = {"then": Then.TAKE, "hand_out": False, "lease_ms": LEASE_MS}
            await walk.call("settle", lease, number, [], ending("completed"), touches=own, **options)
        case 2:
            await walk.call("handback", lease, number, touches=own)
        case 3:
            await walk.call("renew", [lease, *leases_of(walk)], LEASE_MS, touches=own)
        case _:
            await walk.call("take", lease, number, touches=own)


def leases_of(walk: Walk) -> list[Lease]:
    return [place.grant.lease for place in walk.places if place.grant is not None]


def held(place: Place) -> Grant:
    assert place.grant is not None
    return place.grant


# -- time ---------------------------------------------------------------------------------------------------


async def lapse(walk: Walk, rng: random.Random) -> None:
    """Some leases run out while their owners think that they hold them."""
    await walk.lapse([session_id for session_id in BIRTHS if rng.random() < 0.5])


async def sweep(walk: Walk, rng: random.Random) -> None:
    """Nothing is damaged; now and then the window of the settled messages has passed."""
    walk.forgetful = walk.forgetful or rng.random() < 0.2
    window_ms = 1 if walk.forgetful else NEVER_MS
    partition = rng.randrange(PARTITIONS)
    await walk.call("sweep", partition, touches=walk.sharing(partition), forget_after_ms=window_ms)


async def wait(walk: Walk, rng: random.Random) -> None:
    """Time passes, and the sweeper looks at what it changed. After a long one every lease has lapsed."""
    await walk.pass_ms(rng.choices([1, 5, 30, 70, LONG_MS], [2, 3, 3, 2, 1])[0])
    if rng.random() < 0.8:
        partition = rng.randrange(PARTITIONS)
        await walk.call("sweep", partition, touches=walk.sharing(partition), forget_after_ms=NEVER_MS)


async def damage(walk: Walk, rng: random.Random) -> None:
    """A session that is ready is lost from the queue, and the sweeper finds it."""
    session_id = any_session(rng)
    lost = [await world.lose_ready(session_id) for world in walk.worlds]
    agree(f"{session_id} in the ready queue", [lost[0]] * len(lost), lost)
    partition = partition_of(session_id, PARTITIONS)
    await walk.call("sweep", partition, touches=walk.sharing(partition), forget_after_ms=NEVER_MS)


async def look(walk: Walk, rng: random.Random) -> None:
    """Reads."""
    session_id = known_session(walk, rng)
    match rng.randrange(6):
        case 0:
            await walk.call("load", rng.randrange(PARTITIONS), touches=())
        case 1:
            await walk.call("resting_goals", rng.randrange(PARTITIONS), touches=())
        case 2:
            await walk.call("sessions", after=rng.choice(["", "s1", "z"]), limit=2, touches=())
        case 3:
            message_id = rng.choice([*walk.session(session_id).messages, "nobody's"])
            await walk.call("message", session_id, message_id, touches=())
        case 4:
            await walk.letters()
        case _:
            page = await walk.call("queue", session_id, after="", limit=rng.randint(1, 4), touches=())
            while isinstance(page, QueuePage) and page.next is not None:
                page = await walk.call("queue", session_id, after=page.next, limit=rng.randint(1, 4), touches=())


STEPS: Final[dict[Step, int]] = {
    work: 34,
    submit: 20,
    acquire: 14,
    goal_advance: 9,
    goal_change: 6,
    repeat: 6,
    revise: 7,
    wait: 5,
    cancel: 5,
    release: 3,
    redrive: 5,
    close: 2,
    lapse: 5,
    nonsense: 6,
    take: 3,
    stray: 3,
    sweep: 2,
    look: 4,
    handback: 2,
    die: 2,
    create: 1,
    damage: 1,
}
