"""The small real model: it answers offline, within its limits, and stops when nobody waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from mailslot_core.agent import (
    Answer,
    AssistantEntry,
    Entry,
    Finish,
    ModelError,
    Request,
    ToolCall,
    ToolEntry,
    UserEntry,
)
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker.models import make_model
from mailslot_services.agent_worker.models.local import MAX_TOKENS_DEFAULT, LocalModel, to_answer, to_messages
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

PATIENCE_S = 120.0
"""A busy machine thinks slowly."""


def user(text: str) -> UserEntry:
    return UserEntry([{"type": "text", "text": text}])


@pytest.fixture
def model() -> LocalModel:
    try:
        made = make_model("local:smollm2", {}, Path())
    except Misconfigured as error:
        pytest.fail(f"{error} (`make setup-demo` does it)", pytrace=False)
    assert isinstance(made, LocalModel)
    return made


class Asking:
    """Somebody who asks the model and keeps what it streamed."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        self.deltas: list[str] = []

    async def ask(self, *entries: Entry, max_tokens: int | None = None, instructions: str = "") -> Answer:
        self.deltas.clear()
        request = Request(entries, instructions=instructions, max_tokens=max_tokens)
        return await asyncio.wait_for(self.model.answer(request, self.heard), PATIENCE_S)

    async def heard(self, text: str) -> None:
        self.deltas.append(text)


async def test_it_answers_a_question(model: LocalModel) -> None:
    asking = Asking(model)
    answer = await asking.ask(user("What is the capital of France?"), instructions="Answer in one sentence.")
    assert "Paris" in answer.text
    assert len(asking.deltas) > 1
    assert "".join(asking.deltas) == answer.text
    assert answer.finish is Finish.STOP
    assert answer.model == "local:smollm2"
    assert answer.usage.input_tokens > 10
    assert 0 < answer.usage.output_tokens <= MAX_TOKENS_DEFAULT


async def test_an_answer_is_short_unless_the_agent_says_otherwise(model: LocalModel) -> None:
    story = user("Tell me a long story about a fox.")
    default, shorter = await Asking(model).ask(story), await Asking(model).ask(story, max_tokens=5)
    assert (default.finish, default.usage.output_tokens) == (Finish.LENGTH, MAX_TOKENS_DEFAULT)
    assert (shorter.finish, shorter.usage.output_tokens) == (Finish.LENGTH, 5)


async def test_the_loop_goes_on_while_it_thinks(model: LocalModel) -> None:
    looked: list[float] = []
    task = asyncio.create_task(Asking(model).ask(user("Count to ten.")))

    def is_done() -> bool:
        looked.append(time.monotonic())
        return task.done()

    await wait_until(is_done, PATIENCE_S, "the answer")
    assert max(later - earlier for earlier, later in pairwise(looked)) < 1.0


async def test_it_stops_when_nobody_waits_any_more_and_answers_the_next(model: LocalModel) -> None:
    asking = Asking(model)
    task = asyncio.create_task(asking.ask(user("Tell me a very long story."), max_tokens=2_000))
    await wait_until(lambda: asking.deltas, PATIENCE_S, "the first token")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 1)
    heard = len(asking.deltas)

    answer = await Asking(model).ask(user("Say yes."), max_tokens=4)

    assert answer.text
    assert len(asking.deltas) == heard


async def test_two_who_ask_at_once_are_both_answered(model: LocalModel) -> None:
    asked: list[Callable[[], Awaitable[Answer]]] = [
        lambda: Asking(model).ask(user("Say yes."), max_tokens=4),
        lambda: Asking(model).ask(user("Say no."), max_tokens=4),
    ]
    answers = await asyncio.gather(*(ask() for ask in asked))
    assert all(answer.text for answer in answers)


async def test_more_than_it_can_see_at_once_is_refused_for_good(model: LocalModel) -> None:
    with pytest.raises(ModelError) as refused:
        await Asking(model).ask(user("word " * 6_000))
    assert (refused.value.code, refused.value.retryable) == ("context-too-long", False)


def test_a_transcript_is_a_chat() -> None:
    transcript: list[Entry] = [
        user("weather?"),
        AssistantEntry("", (ToolCall("c1", "weather", {}),)),
        ToolEntry("c1", "weather", "rain"),
        AssistantEntry("It rains."),
        UserEntry([{"type": "text", "text": "and"}, {"type": "text", "text": "now?"}]),
    ]
    assert to_messages(transcript, "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "weather?"},
        {"role": "user", "content": "Result of weather: rain"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "and\nnow?"},
    ]


def test_an_answer_without_an_end_is_no_answer() -> None:
    with pytest.raises(ModelError) as failed:
        to_answer([{"choices": [{"delta": {"content": "half"}, "finish_reason": None}]}], "local:smollm2")
    assert failed.value.retryable
