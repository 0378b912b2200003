"""Models behind a provider's HTTP interface (OpenAI's, what speaks like it, Anthropic's) through `pydantic_ai.direct`.

    Request --to_messages--> pydantic-ai messages --stream--> deltas ... --to_answer--> Answer
                                                     |
                                       whatever fails +--to_model_error--> ModelError{code, retryable, retry_after_ms}

Rule 1: one call is one attempt: the provider's library retries nothing (semantics T8).
Rule 2: an answer is whole or it is an error. A stream that ends without a reason to end was cut; a call whose
        arguments are no JSON object is a bad response. Both may be tried again.
Rule 3: what comes back is fit for a ledger (L5): well-formed text, arguments within its limits, call ids that are
        new in the session.
Rule 4: a key goes to the address it belongs to. With a `base_url` of one's own, only the key that `api_key_env`
        names is sent; without, the provider's usual one.

    what happened                        code               retryable
    ---------------------------------------------------------------------
    HTTP status                          see STATUSES       see STATUSES
    quota or credit used up              quota-exceeded     no
    more context than the model takes    context-too-long   no
    no answer in time                    timeout            yes
    not reached, or cut off              connection         yes
    cut stream, bad arguments            bad-response       yes
    the provider's filter stopped it     content-filter     no
    what the library cannot say          bad-request        no
"""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from itertools import count, groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from mailslot_contracts.codec import check_value
from mailslot_contracts.ids import check_id
from mailslot_contracts.problems import BadId, BadValue
from mailslot_core.agent import (
    Answer,
    AssistantEntry,
    Entry,
    Finish,
    ModelError,
    OnDelta,
    Request,
    ToolCall,
    ToolEntry,
    ToolSpec,
    Usage,
    UserEntry,
)
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker.models.option import ProviderOptions
from mailslot_services.agent_worker.models.text import without_surrogates

try:
    import anthropic
    import httpx2
    import openai
    from pydantic_ai import direct, exceptions, messages
    from pydantic_ai.models import Model as ProviderModel
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers import Provider
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import ToolDefinition
except ImportError as missing:
    raise Misconfigured(
        f"models openai and anthropic need an extra: pip install 'mailslot[models]' ({missing})"
    ) from missing

OPENAI_URL: Final = "https://api.openai.com/v1"
ANTHROPIC_URL: Final = "https://api.anthropic.com"

CONNECT_TIMEOUT_S: Final = 5.0
"""How long a connection to a provider may take to be made."""

MESSAGE_CHARACTERS_MAX: Final = 1_000
"""How much of a provider's error goes into the ledger."""

RETRY_AFTER_MS_MAX: Final = 24 * 3_600_000
"""The longest wait a provider may ask for that is passed on."""

NO_KEY: Final = "no-key"
"""Sent to addresses of one's own that want no key: the libraries insist on one."""


# -- making -------------------------------------------------------------------------------------------------


def openai_model(name: str, options: ProviderOptions) -> DirectModel:
    """A model that speaks OpenAI's chat completions. Misconfigured when its key is not there."""
    own = options.base_url is not None
    client = openai.AsyncOpenAI(
        api_key=_key(options, "OPENAI_API_KEY"),
        base_url=options.base_url or OPENAI_URL,
        max_retries=0,
        timeout=_timeout(options),
    )
    provider: Provider[openai.AsyncOpenAI] = (
        OpenAICompatibleProvider("openai-compatible", openai_client=client)
        if own
        else OpenAIProvider(openai_client=client)
    )
    # A stream that ends without a finish reason was cut (rule 2). Compatible servers know the older `max_tokens`.
    profile = OpenAIModelProfile(
        openai_chat_streaming_requires_finish_reason=True, openai_chat_supports_max_completion_tokens=not own
    )
    model = OpenAIChatModel(name, provider=provider, profile=profile)
    return DirectModel(model, f"openai:{name}", options.temperature, client.close)


def anthropic_model(name: str, options: ProviderOptions) -> DirectModel:
    """A model that speaks Anthropic's messages. Misconfigured when its key is not there."""
    client = anthropic.AsyncAnthropic(
        api_key=_key(options, "ANTHROPIC_API_KEY"),
        base_url=options.base_url or ANTHROPIC_URL,
        max_retries=0,
        timeout=_timeout(options),
    )
    model = AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))
    return DirectModel(model, f"anthropic:{name}", options.temperature, client.close)


def _key(options: ProviderOptions, usual: str) -> str:
    variable = options.api_key_env or (None if options.base_url else usual)
    if variable is None:
        return NO_KEY
    key = os.environ.get(variable)
    if not key:
        raise Misconfigured(f"environment variable {variable} is not set: it holds the model's key (api_key_env)")
    return key


def _timeout(options: ProviderOptions) -> httpx2.Timeout:
    return httpx2.Timeout(options.timeout_ms / 1000, connect=CONNECT_TIMEOUT_S)


class DirectModel:
    """A provider's model behind the `Model` port."""

    def __init__(
        self,
        model: ProviderModel,
        name: str,
        temperature: float | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._model = model
        self._name = name
        self._temperature = temperature
        self._close = close

    @property
    def name(self) -> str:
        """As it stands in agents.toml."""
        return self._name

    @property
    def instant(self) -> bool:
        """Never: it is somewhere else."""
        return False

    async def close(self) -> None:
        """Its connections are closed."""
        if self._close is not None:
            await self._close()

    async def answer(self, request: Request, on_delta: OnDelta) -> Answer:
        """One attempt, streamed."""
        try:
            response = await self._stream(request, on_delta)
        except FAILURES as error:
            raise to_model_error(error, self._name) from error
        return to_answer(response, request, self._name)

    async def _stream(self, request: Request, on_delta: OnDelta) -> messages.ModelResponse:
        history = to_messages(request.transcript, request.instructions)
        async with direct.model_request_stream(
            self._model,
            history,
            model_settings=self._settings(request),
            model_request_parameters=ModelRequestParameters(
                function_tools=[_definition(spec) for spec in request.tools]
            ),
            instrument=False,
        ) as stream:
            async for event in stream:
                text = _visible(event)
                if text:
                    await on_delta(without_surrogates(text))
            return stream.get()

    def _settings(self, request: Request) -> ModelSettings:
        settings = ModelSettings()
        if request.max_tokens is not None:
            settings["max_tokens"] = request.max_tokens
        if self._temperature is not None:
            settings["temperature"] = self._temperature
        return settings


def _definition(spec: ToolSpec) -> ToolDefinition:
    return ToolDefinition(name=spec.name, parameters_json_schema=dict(spec.parameters), description=spec.description)


def _visible(event: messages.ModelResponseStreamEvent) -> str:
    """What a person sees of a stream's event: text, not thoughts and not half a call."""
    match event:
        case messages.PartStartEvent(part=messages.TextPart(content=text)):
            return text
        case messages.PartDeltaEvent(delta=messages.TextPartDelta(content_delta=text)):
            return text
        case _:
            return ""


# -- transcript to messages ---------------------------------------------------------------------------------


def to_messages(transcript: Sequence[Entry], instructions: str = "") -> list[messages.ModelMessage]:
    """The transcript as a provider's history: results first, then what people said, then the answer."""
    history: list[messages.ModelMessage] = []
    said = [(isinstance(entry, AssistantEntry), part) for entry in transcript for part in _parts(entry)]
    for is_answer, group in groupby(said, key=itemgetter(0)):
        parts = [part for _, part in group]
        history.append(messages.ModelResponse(parts) if is_answer else messages.ModelRequest(parts))
    if instructions:
        _instruct(history, instructions)
    return history


def _instruct(history: Sequence[messages.ModelMessage], instructions: str) -> None:
    """pydantic-ai takes the instructions from the newest request."""
    newest = next((message for message in reversed(history) if isinstance(message, messages.ModelRequest)), None)
    if newest is not None:
        newest.instructions = instructions


def _parts(entry: Entry) -> list[Any]:
    if isinstance(entry, UserEntry):
        return [messages.UserPromptPart(_user_content(entry.content))]
    if isinstance(entry, ToolEntry):
        return [_tool_return(entry)]
    # Providers refuse an empty text: an answer that was stopped before its first word leaves nothing.
    said = [messages.TextPart(entry.text)] if entry.text.strip() else []
    return [*said, *(messages.ToolCallPart(call.name, dict(call.arguments), call.call_id) for call in entry.calls)]


def _tool_return(entry: ToolEntry) -> messages.ToolReturnPart:
    """A failure is marked as each provider marks it; its code has no place there, so the text says it."""
    name = entry.name or "unknown"
    if entry.error is None:
        return messages.ToolReturnPart(name, entry.content, entry.call_id)
    return messages.ToolReturnPart(name, f"{entry.error}: {entry.content}", entry.call_id, outcome="failed")


def _user_content(blocks: Sequence[Mapping[str, Any]]) -> str | list[messages.UserContent]:
    """Text alone goes as one text: not every compatible server takes a list."""
    content = [_user_block(block) for block in blocks]
    texts = [block for block in content if isinstance(block, str)]
    return "\n".join(texts) if len(texts) == len(content) else content


def _user_block(block: Mapping[str, Any]) -> messages.UserContent:
    if block["type"] == "text":
        return str(block["text"])
    if block["type"] != "image":
        return f"[a block of type {block['type']}, which cannot be shown]"
    if "url" in block:
        return messages.ImageUrl(block["url"], media_type=block["mediaType"])
    return messages.BinaryContent(base64.b64decode(block["data"]), media_type=block["mediaType"])


# -- response to answer -------------------------------------------------------------------------------------


def to_answer(response: messages.ModelResponse, request: Request, model: str) -> Answer:
    """What a provider said, fit for a ledger. `ModelError` when it is not whole (rule 2)."""
    reason = _reason(response)
    if reason is None:
        raise ModelError("bad-response", f"the stream of {model} ended without a reason: it was cut", retryable=True)
    if reason == "error":
        raise ModelError("bad-response", f"{model} says that it failed", retryable=True)
    text = without_surrogates("".join(part.content for part in response.parts if isinstance(part, messages.TextPart)))
    calls = _calls(response, request, model)
    if reason == "content_filter" and not text and not calls:
        raise ModelError("content-filter", f"the provider of {model} stopped the answer", retryable=False)
    finish = Finish.LENGTH if reason == "length" else Finish.CALLS if calls else Finish.STOP
    usage = Usage(response.usage.input_tokens, response.usage.output_tokens)
    return Answer(text, calls, finish, usage, response.model_name or model, response.provider_response_id)


def _reason(response: messages.ModelResponse) -> str | None:
    """Why it ended; a reason that the library does not know yet is a reason all the same."""
    given = (response.provider_details or {}).get("finish_reason")
    return response.finish_reason or ("stop" if given else None)


def _calls(response: messages.ModelResponse, request: Request, model: str) -> tuple[ToolCall, ...]:
    known = {call.call_id for entry in request.transcript if isinstance(entry, AssistantEntry) for call in entry.calls}
    calls: list[ToolCall] = []
    for part in response.parts:
        if not isinstance(part, messages.ToolCallPart):
            continue
        try:
            arguments = part.args_as_dict(raise_if_invalid=True)
            check_value(arguments)
        except (ValueError, AssertionError, BadValue) as error:
            if response.finish_reason == "length":
                break  # half a call: the answer ended in it
            sentence = f"{model} called {part.tool_name[:100]} with arguments that are no JSON object: {error}"
            raise ModelError("bad-response", _bounded(sentence), retryable=True) from error
        call_id = _fresh_id(part.tool_call_id, known, request)
        known.add(call_id)
        calls.append(ToolCall(call_id, without_surrogates(part.tool_name), arguments))
    return tuple(calls)


def _fresh_id(given: str, known: Container[str], request: Request) -> str:
    """The provider's id when it may stand in a ledger and is new in the session, else one of ours."""
    try:
        check_id(given, "callId")
    except BadId:
        given = ""
    if given and given not in known:
        return given
    ours = (f"call-{request.turn}-{request.step}-{number}" for number in count(1))
    return next(call_id for call_id in ours if call_id not in known)


# -- failures -----------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a failure comes to."""

    code: str
    retryable: bool


STATUSES: Final[Mapping[int, Outcome]] = {
    400: Outcome("bad-request", retryable=False),
    401: Outcome("unauthorized", retryable=False),
    402: Outcome("quota-exceeded", retryable=False),
    403: Outcome("forbidden", retryable=False),
    404: Outcome("model-not-found", retryable=False),
    408: Outcome("timeout", retryable=True),
    409: Outcome("conflict", retryable=True),
    413: Outcome("too-large", retryable=False),
    422: Outcome("bad-request", retryable=False),
    429: Outcome("rate-limited", retryable=True),
    500: Outcome("provider-error", retryable=True),
    502: Outcome("unavailable", retryable=True),
    503: Outcome("unavailable", retryable=True),
    504: Outcome("timeout", retryable=True),
    529: Outcome("overloaded", retryable=True),
}
"""HTTP statuses. Others: `bad-request` below 500, `provider-error` from there on."""

# Before the status: these come with one that also stands for something that passes by itself.
CATEGORIES: Final[Sequence[tuple[type[Exception], Outcome]]] = (
    (exceptions.ModelQuotaExceededError, Outcome("quota-exceeded", retryable=False)),
    (exceptions.ModelContextWindowExceededError, Outcome("context-too-long", retryable=False)),
)

# Without a status; the first that fits.
KINDS: Final[Sequence[tuple[type[Exception], Outcome]]] = (
    (exceptions.ModelTimeoutError, Outcome("timeout", retryable=True)),
    (exceptions.ModelRequestTimeout, Outcome("timeout", retryable=True)),
    (exceptions.ModelConnectionError, Outcome("connection", retryable=True)),
    (exceptions.ContentFilterError, Outcome("content-filter", retryable=False)),
    (exceptions.UserError, Outcome("bad-request", retryable=False)),
    (httpx2.TimeoutException, Outcome("timeout", retryable=True)),
    (httpx2.HTTPError, Outcome("connection", retryable=True)),
    (Exception, Outcome("bad-response", retryable=True)),
)

FAILURES: Final = (
    exceptions.AgentRunError,
    exceptions.UserError,
    httpx2.HTTPError,
    openai.OpenAIError,
    anthropic.AnthropicError,
)
"""What a provider's failure may surface as. Anything else is a defect of ours."""


def to_model_error(error: Exception, model: str) -> ModelError:
    """A provider's failure by the tables above."""
    outcome = outcome_of(error)
    seconds = getattr(error, "retry_after", None)
    retry_after_ms = min(RETRY_AFTER_MS_MAX, math.ceil(seconds * 1000)) if seconds is not None else None
    sentence = _bounded(f"{model}: {_told(error)}")
    return ModelError(outcome.code, sentence, retryable=outcome.retryable, retry_after_ms=retry_after_ms)


def outcome_of(error: Exception) -> Outcome:
    """Code, and whether another attempt can help."""
    for category, outcome in CATEGORIES:
        if isinstance(error, category):
            return outcome
    if isinstance(error, exceptions.ModelHTTPError):
        status = error.status_code
        otherwise = Outcome("provider-error", retryable=True) if status >= 500 else STATUSES[400]
        return STATUSES.get(status, otherwise)
    return next(outcome for kind, outcome in KINDS if isinstance(error, kind))


def _told(error: Exception) -> str:
    """The provider's own words when there are some, else the library's."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    words = inner.get("message") if isinstance(inner, dict) else None
    status = f"status {error.status_code}" if isinstance(error, exceptions.ModelHTTPError) else ""
    return ", ".join(part for part in (status, str(words or error)) if part)


def _bounded(sentence: str) -> str:
    return without_surrogates(sentence[:MESSAGE_CHARACTERS_MAX])
