"""The adapters of OpenAI and Anthropic, held to the `Model` port in front of a provider that others wrote."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

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
    ToolSpec,
    Usage,
    UserEntry,
)
from mailslot_services.agent_worker.models import make_model
from mailslot_services.agent_worker.models.direct import DirectModel
from tests.providers import OPENAI_DONE, Provider, aimock, bare_provider, openai_chunk, provider
from tests.waiting import wait_until

__all__ = ["aimock", "provider"]  # fixtures

pytestmark = pytest.mark.integration

WEATHER = ToolSpec(
    "get_weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


def user(text: str) -> UserEntry:
    return UserEntry([{"type": "text", "text": text}])


class Asking:
    """Somebody who asks a model and keeps what it streamed."""

    def __init__(self, model: DirectModel) -> None:
        self.model = model
        self.deltas: list[str] = []

    async def ask(self, *entries: Entry, **request: Any) -> Answer:
        self.deltas.clear()
        return await self.model.answer(Request(entries or (user("hello"),), **request), self.heard)

    async def fails(self, *entries: Entry, **request: Any) -> ModelError:
        with pytest.raises(ModelError) as failed:
            await self.ask(*entries, **request)
        return failed.value

    async def heard(self, text: str) -> None:
        self.deltas.append(text)


def made(spec: str, url: str, **options: Any) -> DirectModel:
    model = make_model(spec, {"base_url": url, "timeout_ms": 5_000, **options}, Path())
    assert isinstance(model, DirectModel)
    return model


@pytest.fixture(params=["openai", "anthropic"])
async def asking(request: pytest.FixtureRequest, provider: Provider) -> AsyncIterator[Asking]:
    url = provider.openai_url if request.param == "openai" else provider.url
    model = made(f"{request.param}:some-model", url)
    yield Asking(model)
    await model.close()


# -- answers ------------------------------------------------------------------------------------------------


async def test_an_answer_is_streamed_as_it_comes_and_whole_at_the_end(asking: Asking, provider: Provider) -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "input_tokens": 11, "output_tokens": 7}
    text = "Good day, and what can I do for you? Ünïcode \N{LOVE LETTER} too."
    provider.on({}, {"content": text, "usage": usage, "model": "some-model-2026"}, chunkSize=9)

    answer = await asking.ask()

    assert answer.text == text
    assert len(asking.deltas) > 2
    assert "".join(asking.deltas) == text
    assert answer.finish is Finish.STOP
    assert answer.usage == Usage(11, 7)
    assert answer.model == "some-model-2026"
    assert answer.request_id


async def test_a_model_is_told_its_instructions_its_tools_and_how_long_it_may_speak(
    asking: Asking, provider: Provider
) -> None:
    provider.on({}, {"content": "yes"})

    await asking.ask(instructions="Be brief.", tools=[WEATHER], max_tokens=77)

    (asked,) = provider.asked()
    body = asked["body"]
    assert body["stream"] is True
    assert body["max_tokens"] == 77
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    (offered,) = body["tools"]
    assert offered["function"]["name"] == "get_weather"
    assert offered["function"]["parameters"]["properties"] == {"city": {"type": "string"}}


async def test_a_tool_is_called_and_its_result_goes_back_in_its_place(asking: Asking, provider: Provider) -> None:
    provider.on({"hasToolResult": True}, {"content": "It is sunny in Berlin."})
    calls = [{"id": "call_1", "name": "get_weather", "arguments": {"city": "Berlin"}}]
    provider.on({"hasToolResult": False}, {"content": "Let me see.", "toolCalls": calls})

    asked = await asking.ask(user("weather?"), tools=[WEATHER])

    assert asked.text == "Let me see."
    assert asked.finish is Finish.CALLS
    (call,) = asked.calls
    assert (call.name, call.arguments) == ("get_weather", {"city": "Berlin"})

    result = ToolEntry(call.call_id, "get_weather", "sunny")
    answered = await asking.ask(user("weather?"), AssistantEntry(asked.text, asked.calls), result, tools=[WEATHER])

    assert answered.text == "It is sunny in Berlin."
    *_, told, seen = provider.asked()[-1]["body"]["messages"]
    assert told["tool_calls"][0]["id"] == seen["tool_call_id"] == call.call_id
    assert json.loads(told["tool_calls"][0]["function"]["arguments"]) == {"city": "Berlin"}
    assert (seen["role"], seen["content"]) == ("tool", "sunny")


EVERY_KIND = (
    user("first"),
    AssistantEntry("half an ans"),  # interrupted
    user("second"),
    AssistantEntry(""),  # interrupted before its first word
    user("third"),
    AssistantEntry("looking", (ToolCall("c1", "get_weather", {"city": "A"}), ToolCall("c2", "get_weather", {}))),
    ToolEntry("c1", "get_weather", "rain"),
    ToolEntry("c2", "get_weather", "city: is missing", "bad-arguments"),
    user("a steer"),
)


async def test_a_provider_takes_every_kind_of_entry(asking: Asking, provider: Provider) -> None:
    provider.on({"userMessage": "a steer"}, {"content": "I see."})

    answer = await asking.ask(*EVERY_KIND, tools=[WEATHER])

    assert answer.text == "I see."
    failed = next(
        message for message in provider.asked()[-1]["body"]["messages"] if message.get("tool_call_id") == "c2"
    )
    assert "bad-arguments: city: is missing" in failed["content"]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_every_kind_of_entry_stands_in_its_order_and_nothing_between_a_call_and_its_result(kind: str) -> None:
    async with bare_provider([]) as bare:
        await Asking(made(f"{kind}:some-model", bare.url)).fails(*EVERY_KIND, tools=[WEATHER])

    (body,) = bare.bodies
    words = ("first", "half an ans", "second", "third", "looking", "c1", "rain", "city: is missing", "a steer")
    spoken = json.dumps(body["messages"])
    places = [spoken.index(word) for word in words]
    assert places == sorted(places)
    roles = [message["role"] for message in body["messages"]]
    assert roles == ROLES[kind]


ROLES = {
    "openai": ["user", "assistant", "user", "user", "assistant", "tool", "tool", "user"],
    "anthropic": ["user", "assistant", "user", "assistant", "user"],
}


async def test_images_go_along_as_bytes_and_as_addresses(asking: Asking, provider: Provider) -> None:
    provider.on({}, {"content": "A pixel."})
    content = [
        {"type": "text", "text": "what is this?"},
        {"type": "image", "mediaType": "image/png", "data": PIXEL},
        {"type": "image", "mediaType": "image/png", "url": "https://example.com/pixel.png"},
    ]

    await asking.ask(UserEntry(content))

    sent = json.dumps(provider.asked()[-1]["body"])
    assert "what is this?" in sent
    if asking.model.name.startswith("openai"):  # aimock keeps Anthropic's images to itself
        assert PIXEL in sent
        assert "https://example.com/pixel.png" in sent


async def test_an_answer_cut_at_its_token_limit_says_so(asking: Asking, provider: Provider) -> None:
    provider.on({}, {"content": "I could go on and", "finishReason": "length"})

    answer = await asking.ask()

    assert (answer.text, answer.finish) == ("I could go on and", Finish.LENGTH)


async def test_a_call_id_that_the_session_knows_already_is_replaced(asking: Asking, provider: Provider) -> None:
    calls = [{"id": "same", "name": "get_weather", "arguments": {"city": city}} for city in ("A", "B")]
    provider.on({}, {"toolCalls": calls})
    before = AssistantEntry("", (ToolCall("same", "get_weather", {}),))

    answer = await asking.ask(
        user("again"), before, ToolEntry("same", "get_weather", "rain"), user("and now?"), tools=[WEATHER], turn=2
    )

    ids = [call.call_id for call in answer.calls]
    assert len({*ids, "same"}) == 3


# -- failures -----------------------------------------------------------------------------------------------


STATUSES = [
    (400, "bad-request", False),
    (401, "unauthorized", False),
    (403, "forbidden", False),
    (404, "model-not-found", False),
    (408, "timeout", True),
    (409, "conflict", True),
    (413, "too-large", False),
    (418, "bad-request", False),
    (422, "bad-request", False),
    (429, "rate-limited", True),
    (500, "provider-error", True),
    (502, "unavailable", True),
    (503, "unavailable", True),
    (504, "timeout", True),
    (507, "provider-error", True),
    (529, "overloaded", True),
]


async def test_a_status_has_one_meaning_and_is_not_tried_again_here(asking: Asking, provider: Provider) -> None:
    for status, code, retryable in STATUSES:
        provider.reset()
        provider.fail(status, "not today")

        error = await asking.fails()

        assert (status, error.code, error.retryable) == (status, code, retryable)
        assert f"status {status}, not today" in str(error)
        assert len(provider.asked()) == 1, "exactly one retry layer, and it is not this one (semantics T8)"


async def test_a_wait_that_the_provider_asks_for_is_passed_on(asking: Asking, provider: Provider) -> None:
    provider.fail(429, "slow down", retry_after_s=7)

    error = await asking.fails()

    assert (error.code, error.retryable, error.retry_after_ms) == ("rate-limited", True, 7_000)


async def test_a_spent_quota_is_not_waited_for(provider: Provider) -> None:
    provider.fail(429, "you exceeded your quota", type="insufficient_quota", code="insufficient_quota")

    error = await Asking(made("openai:some-model", provider.openai_url)).fails()

    assert (error.code, error.retryable) == ("quota-exceeded", False)


async def test_too_long_a_context_is_told_from_other_bad_requests(provider: Provider) -> None:
    provider.fail(400, "maximum context length is 8192 tokens", code="context_length_exceeded")

    error = await Asking(made("openai:some-model", provider.openai_url)).fails()

    assert (error.code, error.retryable) == ("context-too-long", False)


async def test_a_stream_that_is_cut_in_the_middle_is_a_failed_attempt(asking: Asking, provider: Provider) -> None:
    provider.on({}, {"content": "This will be cut short, sadly."}, disconnectAfterMs=200, chunkSize=3, latency=30)

    error = await asking.fails()

    assert (error.code, error.retryable) == ("connection", True)
    assert asking.deltas, "what came before the cut was visible"


async def test_a_dropped_connection_and_a_garbled_answer_may_be_tried_again(asking: Asking, provider: Provider) -> None:
    provider.on({"userMessage": "drop"}, {"content": "x"}, chaos={"disconnectRate": 1})
    provider.on({"userMessage": "garble"}, {"content": "x"}, chaos={"malformedRate": 1})

    dropped, garbled = await asking.fails(user("drop")), await asking.fails(user("garble"))

    assert (dropped.code, dropped.retryable) == ("connection", True)
    assert (garbled.code, garbled.retryable) == ("bad-response", True)


async def test_a_provider_that_says_nothing_is_given_up_after_its_timeout(provider: Provider) -> None:
    provider.on({}, {"content": "slow"}, latency=60_000)

    error = await Asking(made("openai:some-model", provider.openai_url, timeout_ms=100)).fails()

    assert (error.code, error.retryable) == ("timeout", True)


async def test_an_address_where_nobody_listens_may_be_tried_again(unused_tcp_port: int) -> None:
    error = await Asking(made("openai:some-model", f"http://127.0.0.1:{unused_tcp_port}/v1")).fails()

    assert (error.code, error.retryable) == ("connection", True)


# -- what only a bare provider does -------------------------------------------------------------------------


async def test_a_stream_that_ends_without_a_reason_was_cut() -> None:
    async with bare_provider([openai_chunk({"content": "half an ans"}), OPENAI_DONE]) as bare:
        error = await Asking(made("openai:some-model", bare.url)).fails()

    assert error.retryable


@pytest.mark.parametrize("arguments", ['{"city": ', "[1]", '{"n": 1e999}', '{"n": 99999999999999999999}'])
async def test_arguments_that_no_ledger_can_hold_are_a_bad_response(arguments: str) -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    async with bare_provider([openai_chunk({"tool_calls": [call]}, "tool_calls"), OPENAI_DONE]) as bare:
        error = await Asking(made("openai:some-model", bare.url)).fails()

    assert (error.code, error.retryable) == ("bad-response", True)


async def test_half_a_call_at_the_token_limit_is_dropped() -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Ber'}}
    chunks = [openai_chunk({"content": "Let me "}), openai_chunk({"tool_calls": [call]}, "length"), OPENAI_DONE]
    async with bare_provider(chunks) as bare:
        answer = await Asking(made("openai:some-model", bare.url)).ask()

    assert (answer.text, answer.calls, answer.finish) == ("Let me ", (), Finish.LENGTH)


async def test_a_character_cut_in_two_by_the_stream_is_whole_in_the_answer() -> None:
    chunks = [openai_chunk({"content": "a \ud83d"}), openai_chunk({"content": "\ude00 b \ud83d"}, "stop"), OPENAI_DONE]
    async with bare_provider(chunks) as bare:
        asking = Asking(made("openai:some-model", bare.url))
        answer = await asking.ask()

    assert answer.text == "a \N{GRINNING FACE} b \N{REPLACEMENT CHARACTER}"
    "".join(asking.deltas).encode()  # raises if a delta could not be published


async def test_a_cancelled_model_stops_at_once_and_hangs_up() -> None:
    async with bare_provider([openai_chunk({"content": "Once upon"})], stays_open=True) as bare:
        asking = Asking(made("openai:some-model", bare.url))
        task = asyncio.create_task(asking.ask())
        await wait_until(lambda: asking.deltas, 5, "the first delta")

        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 1)
        await asyncio.wait_for(bare.hung_up.wait(), 1)
    assert asking.deltas == ["Once upon"]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_key_goes_only_where_it_belongs(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "usual-key")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "usual-key")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "usual-key")
    monkeypatch.setenv("MY_KEY", "my-own-key")
    async with bare_provider([]) as bare:
        await Asking(made(f"{kind}:some-model", bare.url)).fails()
        await Asking(made(f"{kind}:some-model", bare.url, api_key_env="MY_KEY")).fails()

    without, with_key = bare.heads
    assert "usual-key" not in without + with_key
    assert "my-own-key" in with_key
