"""The echo: it answers with the text it got."""

import time

from hypothesis import given
from hypothesis import strategies as st

from mailslot_core.agent import Answer, AssistantEntry, Entry, Request, UserEntry
from mailslot_services.agent_worker.models import EchoModel
from mailslot_services.agent_worker.models.echo import split


def user(text: str) -> UserEntry:
    return UserEntry([{"type": "text", "text": text}])


async def ask(model: EchoModel, *entries: Entry) -> tuple[Answer, list[str]]:
    deltas: list[str] = []

    async def heard(text: str) -> None:
        deltas.append(text)

    return await model.answer(Request(entries), heard), deltas


async def test_the_answer_is_the_text_it_got() -> None:
    answer, deltas = await ask(EchoModel(), user("hello"))
    assert (answer.text, answer.model, deltas) == ("hello", "echo", [])


async def test_everything_said_since_the_last_answer_is_answered_a_line_each() -> None:
    image = UserEntry(
        [{"type": "text", "text": "see"}, {"type": "image", "mediaType": "image/png", "url": "https://x/"}]
    )
    answer, _ = await ask(EchoModel(), user("old"), AssistantEntry("old"), user("context"), image)
    assert answer.text == "context\nsee"


async def test_it_streams_in_as_many_pieces_as_it_is_told() -> None:
    answer, deltas = await ask(EchoModel(deltas=4), user("one two three"))
    assert len(deltas) == 4
    assert "".join(deltas) == answer.text == "one two three"


async def test_it_takes_the_time_it_is_told() -> None:
    for model in (EchoModel(delay_ms=40), EchoModel(delay_ms=40, deltas=2)):
        began = time.monotonic()
        await ask(model, user("hello"))
        assert time.monotonic() - began >= 0.039


def test_it_is_instant_only_when_it_neither_waits_nor_streams() -> None:
    assert EchoModel().instant
    assert not EchoModel(delay_ms=1).instant
    assert not EchoModel(deltas=1).instant


@given(st.text(max_size=50), st.integers(0, 60))
def test_a_text_in_pieces_is_the_text(text: str, count: int) -> None:
    pieces = split(text, count)
    assert "".join(pieces) == (text if count else "")
    assert all(pieces), "no piece is empty"
    assert len(pieces) == min(count, len(text))
