"""Whatever is refused changed nothing: the ledger, and all that is kept beside it, is byte for byte what it was.

Each row is one illegal operation: what came before it, the operation, the code it is answered.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest

from mailslot_contracts.problems import Code
from mailslot_core.errors import Refused
from mailslot_core.goal import Change
from mailslot_core.store import Store
from tests.conformance.dialogue import (
    BIRTH,
    CAREFUL,
    Slot,
    ledger,
    message,
    next_round,
    prompt,
    say,
    set_goal,
    sweep,
    text,
)
from tests.conformance.worlds import PENDING_MAX, World

pytestmark = pytest.mark.conformance

OPTIONS: Final = {"crashes_max": 1, "pending_bytes_max": 2 * 1024 * 1024}
WIDE: Final = "x" * 1024 * 1024


@pytest.fixture
def options() -> dict[str, int]:
    return OPTIONS


@pytest.fixture
def steered() -> bool:
    return True


class Scene(NamedTuple):
    """A world, a worker's slot on it, and what is spoken of: session s, message A."""

    world: World
    slot: Slot

    @property
    def store(self) -> Store:
        return self.world.store


Before = Callable[[Scene], Awaitable[object]]
Operation = Callable[[Scene], Awaitable[object]]

# -- what came before -----------------------------------------------------------------------------------------------


async def nothing(scene: Scene) -> None:
    pass


async def born(scene: Scene) -> None:
    await scene.store.create("s", BIRTH)


async def queued(scene: Scene) -> None:
    await prompt(scene.store, "s", "A")


async def claimed(scene: Scene) -> None:
    await queued(scene)
    await scene.slot.acquire("s")


async def admitted(scene: Scene) -> None:
    await claimed(scene)
    await scene.slot.commit(*scene.slot.begin())


async def answered(scene: Scene) -> None:
    await claimed(scene)
    await scene.slot.echo()


async def rejected(scene: Scene) -> None:
    await claimed(scene)
    await scene.slot.settle(scene.slot.rejects("A"), end="blocked")


async def cancelled(scene: Scene) -> None:
    await queued(scene)
    await scene.store.withdraw("s", "A")


async def cleared(scene: Scene) -> None:
    await queued(scene)
    await scene.store.cancel("s", cause="user", queue="clear")


async def expired(scene: Scene) -> None:
    await say(scene.store, "s", "A", expires_at=scene.world.now_ms() + 5)
    await scene.world.pass_ms(5)
    await sweep(scene.store)


async def dead(scene: Scene) -> None:
    await claimed(scene)
    await crash(scene)


async def redriven(scene: Scene) -> None:
    await dead(scene)
    await scene.store.redrive(await letter(scene))


async def round_dead(scene: Scene) -> None:
    await set_goal(scene.store, "s")
    await scene.store.goal_advance("s", await next_round(scene.store, "s", "A"))
    await scene.slot.acquire("s")
    await crash(scene)


async def held(scene: Scene) -> None:
    await queued(scene)
    await scene.store.cancel("s", cause="user", queue="hold")


async def released(scene: Scene) -> None:
    await held(scene)
    await scene.store.release("s")


async def closed(scene: Scene) -> None:
    await answered(scene)
    await scene.store.close_session("s")


async def closed_with_a_goal(scene: Scene) -> None:
    await set_goal(scene.store, "s")
    await scene.store.close_session("s")


async def closing(scene: Scene) -> None:
    await claimed(scene)
    await scene.store.close_session("s")


async def held_and_closed(scene: Scene) -> None:
    await held(scene)
    await scene.store.close_session("s")


async def dead_and_closed(scene: Scene) -> None:
    await dead(scene)
    await scene.store.close_session("s")


async def erased(scene: Scene) -> None:
    await dead(scene)
    await scene.store.close_session("s", erase=True)


async def full(scene: Scene) -> None:
    for number in range(PENDING_MAX):
        await prompt(scene.store, "s", f"m{number}")


async def dead_and_full(scene: Scene) -> None:
    await dead(scene)
    await full(scene)


async def wide(scene: Scene) -> None:
    await prompt(scene.store, "s", "wide", WIDE)
    await prompt(scene.store, "s", "A")


async def dead_and_wide(scene: Scene) -> None:
    await prompt(scene.store, "s", "A", WIDE)
    await scene.slot.acquire("s")
    await crash(scene)
    await prompt(scene.store, "s", "wide", WIDE)


async def with_goal(scene: Scene) -> None:
    await set_goal(scene.store, "s")


async def two_turns(scene: Scene) -> None:
    await prompt(scene.store, "s", "A")
    await prompt(scene.store, "s", "B")
    await scene.slot.acquire("s")
    await scene.slot.echo()


async def crash(scene: Scene) -> None:
    """The worker dies, and the next one gives its turn up."""
    await scene.store.renew([scene.slot.lease], 1)
    await scene.world.pass_ms(1)
    await sweep(scene.store)
    assert await Slot(scene.store, "worker-2/0").acquire("s") is None


async def letter(scene: Scene) -> str:
    found = await scene.store.dead(after="", limit=1)
    return found[0].letter_id if found else "1-0-0"


# -- the operation ----------------------------------------------------------------------------------------------------


def submit(message_id: str = "N", delivery: str = "queue", **how: Any) -> Operation:
    body = {name: how.pop(name) for name in ("words", "source") if name in how}
    ahead = {"notBefore": how.pop("not_before_in", None), "expiresAt": how.pop("expires_in", None)}

    async def operation(scene: Scene) -> object:
        now = scene.world.now_ms()
        times = {name: now + ms for name, ms in ahead.items() if ms is not None}
        said: Any = message(message_id, delivery, **body, **times)
        return await scene.store.submit("s", replace(said, **how), BIRTH)

    return operation


def on_message(name: str, message_id: str = "A", *arguments: Any) -> Operation:
    return lambda scene: getattr(scene.store, name)("s", message_id, *arguments)


async def redrive(scene: Scene) -> object:
    return await scene.store.redrive(await letter(scene))


def cancel(**how: Any) -> Operation:
    return lambda scene: scene.store.cancel("s", cause="user", **how)


def goal(operation: str, expected: tuple[str, int] | None = None) -> Operation:
    return lambda scene: scene.store.goal_change("s", Change(operation, expected))


def new_goal(scene: Scene) -> Awaitable[object]:
    return set_goal(scene.store, "s", goal_id="goal-2")


def commit(*kinds: str, end: str | None = None) -> Operation:
    """Facts of the slot that has the session; with `end`, and the end of the turn."""

    async def operation(scene: Scene) -> object:
        slot = scene.slot
        makes: dict[str, Callable[[], Any]] = {
            "start": slot.start,
            "admits": lambda: slot.admits("A"),
            "admits B": lambda: slot.admits("B"),
            "rejects": lambda: slot.rejects("A"),
            "says": lambda: slot.says("well", "c1"),
            "call": lambda: slot.call("c1"),
            "result": lambda: slot.result("c1"),
            "end": slot.end,
        }
        drafts = [makes[kind]() for kind in kinds]
        return await (slot.settle(*drafts, end=end) if end else slot.commit(*drafts, take=not kinds))

    return operation


release: Operation = lambda scene: scene.store.release("s")  # noqa: E731 - a row's word
close: Operation = lambda scene: scene.store.close_session("s")  # noqa: E731
erase: Operation = lambda scene: scene.store.close_session("s", erase=True)  # noqa: E731
queue: Operation = lambda scene: scene.store.queue("s", after="", limit=10)  # noqa: E731
queue_after: Operation = lambda scene: scene.store.queue("s", after="nowhere", limit=10)  # noqa: E731
create: Operation = lambda scene: scene.store.create("s", CAREFUL)  # noqa: E731
other_words = text("other words")

CHANGES: Final = {
    "replace": on_message("replace", "A", other_words),
    "withdraw": on_message("withdraw"),
    "move": on_message("move"),
}
SETTLED: Final = (admitted, answered, rejected, cancelled, cleared, expired, dead, closed)

ROWS: Final[list[tuple[str, Before, Operation, str]]] = [
    # a message that cannot be changed any more
    *((f"{name} what is claimed", claimed, change, "already-claimed") for name, change in CHANGES.items()),
    *(
        (f"{name} what is {before.__name__}", before, change, "already-settled")
        for name, change in CHANGES.items()
        for before in SETTLED
    ),
    *((f"{name} what was never sent", born, change, "not-found") for name, change in CHANGES.items()),
    *((f"{name} in no session", nothing, change, "not-found") for name, change in CHANGES.items()),
    *((f"{name} in an erased session", erased, change, "not-found") for name, change in CHANGES.items()),
    ("replace with what has no room", wide, on_message("replace", "A", text(WIDE)), "queue-full"),
    # submit
    ("the same id with other words", queued, submit("A", words="other words"), "conflict"),
    ("the same id in another lane", queued, submit("A", "steer"), "conflict"),
    ("the same id with other words, settled", answered, submit("A", words="other words"), "conflict"),
    ("the same id with other words, closed", closed, submit("A", words="other words"), "conflict"),
    ("the same id with a time", queued, submit("A", not_before_in=5), "conflict"),
    ("submit to a closed session", closed, submit(), "closed"),
    ("steer a closed session", closed, submit(delivery="steer"), "closed"),
    ("inject into a closed session", closed, submit(delivery="inject"), "closed"),
    ("send later to a closed session", closed, submit(not_before_in=5), "closed"),
    ("submit to a closing session", closing, submit(), "closed"),
    ("steer a closing session", closing, submit(delivery="steer"), "closed"),
    ("a time that is over", born, submit(expires_in=-5), "expired"),
    ("a time that is over now", queued, submit(expires_in=0), "expired"),
    ("a time that is over, to nobody", nothing, submit(expires_in=-5), "expired"),
    ("busy: queued", queued, submit(if_busy=True), "busy"),
    ("busy: a turn", claimed, submit(if_busy=True), "busy"),
    ("busy: held", held, submit(if_busy=True), "busy"),
    ("idle: new", born, submit(delivery="steer", if_idle=True), "idle"),
    ("idle: nobody", nothing, submit(delivery="steer", if_idle=True), "idle"),
    ("idle: after a turn", answered, submit(delivery="steer", if_idle=True), "idle"),
    ("idle: held", held, submit(delivery="steer", if_idle=True), "idle"),
    ("a turn that is over", two_turns, submit(delivery="steer", expect_turn=1), "turn-mismatch"),
    ("a turn to come", two_turns, submit(delivery="steer", expect_turn=3), "turn-mismatch"),
    ("no turn is open", answered, submit(delivery="steer", expect_turn=1), "turn-mismatch"),
    ("no room for one more", full, submit(), "queue-full"),
    ("no room for context", full, submit(delivery="inject"), "queue-full"),
    ("no room for one more byte", wide, submit(words=WIDE), "queue-full"),
    # cancel, hold, close
    ("cancel a turn that is not open", queued, cancel(turn=1), "not-open"),
    ("cancel a turn that is over", answered, cancel(turn=1), "not-open"),
    ("cancel a turn that is over while another is open", two_turns, cancel(turn=1), "not-open"),
    ("clear with a turn that is not open", queued, cancel(turn=1, queue="clear"), "not-open"),
    ("hold with a turn that is not open", queued, cancel(turn=7, queue="hold"), "not-open"),
    ("cancel nobody", nothing, cancel(), "not-found"),
    ("release what is not held", queued, release, "not-held"),
    ("release what was released", released, release, "not-held"),
    ("release nobody", nothing, release, "not-found"),
    ("release a closed session", held_and_closed, release, "closed"),
    ("close nobody", nothing, close, "not-found"),
    ("erase nobody", nothing, erase, "not-found"),
    ("erase twice", erased, erase, "not-found"),
    ("other settings", queued, create, "session-exists"),
    ("the queue of nobody", nothing, queue, "not-found"),
    ("a page that there is not", queued, queue_after, "bad-input"),
    # the dead
    ("redrive what was redriven", redriven, redrive, "not-dead"),
    ("redrive what there is not", queued, redrive, "not-found"),
    ("redrive a goal's round", round_dead, redrive, "not-allowed"),
    ("redrive in a closed session", dead_and_closed, redrive, "closed"),
    ("redrive in an erased session", erased, redrive, "not-found"),
    ("redrive into a full queue", dead_and_full, redrive, "queue-full"),
    ("redrive what has no room", dead_and_wide, redrive, "queue-full"),
    # goals
    ("a second goal", with_goal, new_goal, "goal-exists"),
    ("a goal of nobody", nothing, goal("pause"), "not-found"),
    ("no goal", born, goal("pause"), "not-found"),
    ("an old revision", with_goal, goal("pause", ("goal-1", 7)), "revision"),
    ("resume an active goal", with_goal, goal("resume"), "not-allowed"),
    ("a goal for a closed session", closed, new_goal, "closed"),
    ("a goal for a closing session", closing, new_goal, "closed"),
    ("resume in a closed session", closed_with_a_goal, goal("resume"), "closed"),
    # a worker's
    ("admit without a step", claimed, commit("admits"), "grammar"),
    ("admit what is not claimed", two_turns, commit("start", "admits"), "grammar"),
    ("reject inside a step", admitted, commit("rejects"), "grammar"),
    ("end a step with an open call", admitted, commit("says", "end"), "grammar"),
    ("call what was not asked for", admitted, commit("call"), "grammar"),
    ("take inside a step", admitted, commit(), "grammar"),
    ("end a turn inside a step", admitted, commit(end="completed"), "grammar"),
    ("complete without admitting", claimed, commit(end="completed"), "grammar"),
    ("interrupt as a worker", claimed, commit("start", "admits", "end", end="interrupted"), "grammar"),
    ("end as nobody knows", claimed, commit("start", "admits", "end", end="unheard-of"), "grammar"),
    ("one wrong fact after right ones", claimed, commit("start", "admits", "says", "call", "end"), "grammar"),
]


@pytest.mark.parametrize(("before", "operation", "code"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
async def test_a_refused_operation_changes_nothing(
    world: World, slot: Slot, before: Before, operation: Operation, code: str
) -> None:
    scene = Scene(world, slot)
    await before(scene)
    sessions, kept = await scene.store.sessions(after="", limit=10), await world.everything("s")
    told = await ledger(scene.store, "s") if sessions else []
    await world.tick()
    with pytest.raises(Refused) as refused:
        await operation(scene)
    assert refused.value.code == code
    assert await world.everything("s") == kept
    assert await scene.store.sessions(after="", limit=10) == sessions
    assert (await ledger(scene.store, "s") if sessions else []) == told


def test_every_refusal_of_the_port_is_in_the_table() -> None:
    """All codes that the port's docstrings name, and no other."""
    codes = {code for _, _, _, code in ROWS}
    port = " ".join(method.__doc__ or "" for name, method in vars(Store).items() if callable(method))
    named = {word.strip(".,();:") for word in port.replace("`", " ` ").split("`")[1::2] for word in word.split()}
    assert named & set(Code) == codes & set(Code)
