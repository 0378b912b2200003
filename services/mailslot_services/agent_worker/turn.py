"""One open turn under one lease: read, decide (`plan`), commit, until it can be settled.

    grant --> load transcript --> [hooks, start step] --> [ask model] --> [run tools] --+--> settle
                                       ^                                                |
                                       +---------------- another step ------------------+

Rule 1: what a model or a tool will see as done is committed before it is called; only a model that answers at once
        (`Model.instant`) leaves no moment in which that could be seen, so its step goes with the settle.
Rule 2: a lost answer of the store is asked for again under the same call number, as long as the lease holds (L3).
Rule 3: one retry layer, here: `llm/retry` first, then the wait, which a cancel ends (T8).
Rule 4: a cancel stops a model at once and lets started tools finish, up to TOOL_DRAIN_S (C4).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from mailslot_core.agent import (
    Answer,
    AssistantEntry,
    Finish,
    Model,
    ModelError,
    Request,
    ToolCall,
    ToolError,
    ToolSpec,
    Usage,
)
from mailslot_core.clock import Clock
from mailslot_core.errors import CoreError, OutcomeUnknown, StoreUnavailable
from mailslot_core.session import Phase
from mailslot_core.store import Claimed, Grant, Settled, Store
from mailslot_core.task import end
from mailslot_core.turn import NO_RESULT, Draft, End, Outcome, Then
from mailslot_services.agent_worker import batch, plan
from mailslot_services.agent_worker.agents import LIMITS, Agent
from mailslot_services.agent_worker.batch import HookFailed, Occasion, Standing, Verdict
from mailslot_services.agent_worker.call import Overdue
from mailslot_services.agent_worker.hooks import HOOK_FAILED, consult
from mailslot_services.agent_worker.metrics import WorkerMetrics
from mailslot_services.agent_worker.plan import Move, Seen
from mailslot_services.agent_worker.tenure import Keeper, Slot, Tenure
from mailslot_services.agent_worker.transcript import Transcript

TOOL_DRAIN_S = 10.0  # how long a cancelled turn waits for tools that were started (semantics C4)
STORE_RETRY_S = 0.05  # first wait after a store that did not answer; doubles up to STORE_RETRY_S_MAX
STORE_RETRY_S_MAX = 1.0
WALL_TIME_SPENT = "the turn's wall time is spent"
NO_MODEL = ModelError("no-model", "the agent has no model", retryable=False)
NO_CALLS: Mapping[str, str] = {}

log = logging.getLogger("mailslot.worker")
T = TypeVar("T")


class LeaseLost(Exception):
    """The lease ran out while the store could not be reached; whoever acquires the session next goes on."""


class HandBack(Exception):
    """The worker drains and the turn stands at a step boundary: it is given back as it is (semantics R6)."""


@dataclass(frozen=True, slots=True)
class Past:
    """What came before this grant: the transcript, which the turn lets grow, and what the open turn had already done
    under another owner."""

    transcript: Transcript
    calls_made: int = 0
    truncated: bool = False
    usage: Usage = field(default_factory=Usage)
    elapsed_s: float = 0.0  # of the turn's wall time


@dataclass(frozen=True, slots=True)
class Desk:
    """What every turn of a worker works with."""

    store: Store
    clock: Clock
    keeper: Keeper
    metrics: WorkerMetrics
    lease_ms: int
    turns_per_slot: int
    crowded: Callable[[], bool]  # no slot of the worker is free: a session that waits may wait for one of them
    draining: Callable[[], bool]
    jitter: Callable[[], float] = random.random


async def patiently(desk: Desk, tenure: Tenure, ask: Callable[[], Awaitable[T]]) -> T:
    """The store's answer, asked for again while the lease holds."""
    wait_s = STORE_RETRY_S
    while True:
        try:
            answer = await ask()
        except (StoreUnavailable, OutcomeUnknown) as error:
            if desk.clock.monotonic() + wait_s >= tenure.until:
                raise LeaseLost(str(error)) from error
            log.warning("session %s: %s; asking again", tenure.lease.session_id, error)
        else:
            desk.keeper.progress(tenure)
            return answer
        await desk.clock.sleep(wait_s)
        wait_s = min(STORE_RETRY_S_MAX, wait_s * 2)


async def persist(desk: Desk, slot: Slot, tenure: Tenure, act: Callable[[int], Awaitable[T]]) -> T:
    """The answer of a store call under one number, so that a lost one can be asked for again (rule 2)."""
    call, slot.asked = slot.next_call(), desk.clock.monotonic()
    return await patiently(desk, tenure, lambda: act(call))


async def settle(desk: Desk, slot: Slot, tenure: Tenure, drafts: Sequence[Draft], end: End) -> Settled:
    """End the open turn. A slot that has had its share of turns takes nothing more while others may wait for it, in
    this session's partition or in another; nor does one whose worker drains."""
    slot.turns += 1
    go_on = (slot.turns < desk.turns_per_slot or not desk.crowded()) and not desk.draining()
    then, lease = (Then.TAKE if go_on else Then.YIELD), tenure.lease
    return await persist(
        desk,
        slot,
        tenure,
        lambda call: desk.store.settle(lease, call, drafts, end, then=then, hand_out=go_on, lease_ms=desk.lease_ms),
    )


@dataclass(slots=True)
class View:
    """The open turn as it will stand once what is pending is committed."""

    turn: int
    step: int
    phase: Phase
    batch: Sequence[Claimed]
    calls: Mapping[str, str]

    def move(self, phase: Phase, calls: Mapping[str, str] = NO_CALLS) -> None:
        """The step is in another phase now, with these calls."""
        self.phase, self.calls = phase, calls


class Turn:
    """The open turn of a grant."""

    def __init__(self, desk: Desk, slot: Slot, tenure: Tenure, agent: Agent, grant: Grant, past: Past) -> None:
        self._desk, self._slot, self._tenure, self._agent = desk, slot, tenure, agent
        self._view = _view(grant)
        self._born = grant.born  # the name may have been an erased session's
        self._transcript = past.transcript
        self._pending: list[Draft] = []  # decided, not yet committed
        self._seen = Seen()
        self._usage = past.usage
        self._calls_made = past.calls_made
        self._truncated = past.truncated
        self._deadline = desk.clock.monotonic() + agent.limits.wall_seconds_per_turn - past.elapsed_s
        self._moves: dict[Move, Callable[[], Awaitable[End | None]]] = {
            Move.ABORT: self._abort,
            Move.START_STEP: self._start_step,
            Move.ASK_MODEL: self._ask_model,
            Move.RUN_TOOLS: self._run_tools,
        }

    async def run(self) -> Settled:
        """Work until the turn is settled. Raises `LeaseLost`, `HandBack`, `Fenced`."""
        while True:
            end = await self._moves[plan.next_move(self._view.phase, cancelled=self._tenure.cancelled.is_set())]()
            if end is None:
                continue
            settled = await settle(self._desk, self._slot, self._tenure, tuple(self._pending), end)
            self._pending.clear()
            if settled.outcome is not Outcome.CONTINUE or settled.grant is None:
                self._desk.metrics.turns(end.kind).inc()
                return settled
            self._see(settled.grant)

    # -- moves ------------------------------------------------------------------------------------------------

    async def _abort(self) -> End:
        view = self._view
        self._note(plan.abort_step(view.turn, view.step, view.phase, view.calls, self._seen))
        view.move(Phase.BOUNDARY)
        return End({"kind": "aborted", "cause": self._tenure.cause or "user"}, self._turn_usage())

    async def _start_step(self) -> End | None:
        view = self._view
        if self._desk.draining() and not self._pending:
            raise HandBack
        standing = await self._considered()
        if standing is None or isinstance(standing, End):
            return standing  # cancelled: the next move is ABORT
        self._note(standing.rejections(view.turn))
        verdict = batch.verdict(batch.place(view.step, self._transcript.entries), standing)
        if verdict is not Verdict.STEP:
            return self._answered() if verdict is Verdict.END else End({"kind": "blocked"}, self._turn_usage())
        if view.step >= self._agent.limits.steps_per_turn:
            return self._over("steps_per_turn", f"the turn has had {view.step} steps")
        self._desk.metrics.steps.inc()
        view.step += 1
        self._note(plan.step_start(view.turn, view.step, standing.entering()))
        view.batch = ()
        view.move(Phase.OPEN)
        return None

    async def _considered(self) -> Standing | End | None:
        """What becomes of what was claimed; an `End` when a hook failed, None when a cancel came first (T4)."""
        view, hooks, standing = self._view, self._agent.hooks, batch.standing(self._view.batch)
        if not (hooks and view.batch):
            return standing
        occasion = Occasion(self._tenure.lease.session_id, self._agent.name, view.turn, view.step + 1)
        asked = consult(hooks, occasion, standing, self._agent.limits.hook_ms / 1000, self._desk.metrics)
        try:
            return await self._unless_cancelled(asked, self._deadline - self._desk.clock.monotonic())
        except HookFailed as error:
            log.warning("session %s: %s", occasion.session_id, error)
            reason = {"kind": "error", "code": HOOK_FAILED, "message": str(error), "retryable": False}
            return End(reason, self._turn_usage())
        except Overdue:
            return self._over("wall_seconds_per_turn", WALL_TIME_SPENT)

    async def _ask_model(self) -> End | None:
        answer, attempt = await self._answer()
        view = self._view
        if answer is None:
            return None  # cancelled: the next move is ABORT
        if isinstance(answer, End):
            self._end_step()
            return answer
        self._usage = _sum(self._usage, answer.usage)
        self._truncated = self._truncated or answer.finish is Finish.LENGTH
        self._note(plan.answered(view.turn, view.step, attempt, answer))
        calls = () if answer.finish is Finish.LENGTH else answer.calls
        view.move(Phase.ANSWERED, {call.call_id: "asked" for call in calls})
        if calls:
            return self._tokens_over()
        self._end_step()
        return self._tokens_over() or self._answered()

    def _answered(self) -> End:
        """The end of a turn whose model had its say (semantics T5)."""
        return End({"kind": "max-tokens" if self._truncated else "completed"}, self._turn_usage())

    async def _run_tools(self) -> End | None:
        view = self._view
        asked = [call for call in self._last_calls() if call.call_id in view.calls]
        fresh = [call for call in asked if view.calls[call.call_id] == "asked"]
        self._calls_made += len(fresh)
        limit = self._agent.limits.tool_calls_per_turn
        if self._calls_made > limit:
            self._note(plan.abort_step(view.turn, view.step, view.phase, view.calls, Seen()))
            view.move(Phase.BOUNDARY)
            return self._over("tool_calls_per_turn", f"the turn asked for more than {limit} tool calls")
        self._note(plan.calls_started(view.turn, view.step, fresh))
        await self._commit()
        if self._tenure.cancelled.is_set():
            self._view.calls = view.calls  # committed as started, and yet not dispatched
            return None
        self._note(await self._results(asked, view.calls))
        self._end_step()
        if self._desk.clock.monotonic() >= self._deadline:
            return self._over("wall_seconds_per_turn", WALL_TIME_SPENT)
        if not self._tenure.cancelled.is_set():
            await self._commit(take=True)
        return None

    # -- model ------------------------------------------------------------------------------------------------

    async def _answer(self) -> tuple[Answer | End | None, int]:
        """The model's answer and its attempt; an `End` when it failed for good, None when a cancel came (T8)."""
        failure = NO_MODEL
        for model in filter(None, (self._agent.model, self._agent.fallback)):
            for attempt in range(1, self._agent.limits.attempts + 1):
                left = self._deadline - self._desk.clock.monotonic()
                if left <= 0:
                    return self._over("wall_seconds_per_turn", WALL_TIME_SPENT), attempt
                try:
                    return await self._attempt(model, attempt, left), attempt
                except ModelError as error:
                    failure = error
                last = attempt == self._agent.limits.attempts
                if not failure.retryable or last or not await self._wait_to_retry(failure, attempt):
                    break
            if self._tenure.cancelled.is_set():
                return None, 1
        reason = {"kind": "error", "code": failure.code, "message": str(failure), "retryable": failure.retryable}
        return End(reason, self._turn_usage()), 1

    async def _wait_to_retry(self, error: ModelError, attempt: int) -> bool:
        """Say that another attempt follows, and wait for it. False when a cancel came, or when the wait does not fit
        into the turn's wall time."""
        delay_ms = plan.retry_delay_ms(attempt, error.retry_after_ms, self._desk.jitter())
        if self._desk.clock.monotonic() + delay_ms / 1000 >= self._deadline:
            return False
        view = self._view
        data = {"turn": view.turn, "step": view.step, "attempt": attempt, "delayMs": delay_ms}
        self._note([Draft("llm/retry", {**data, "code": error.code, "message": str(error)})])
        await self._commit()
        with self._desk.keeper.calling(self._tenure, delay_ms / 1000 + 1):
            return not await self._cancelled_within(delay_ms / 1000)

    async def _cancelled_within(self, seconds: float) -> bool:
        """Wait, but not longer than until a cancel; true if one came."""
        cancelled = asyncio.ensure_future(self._tenure.cancelled.wait())
        slept = asyncio.ensure_future(self._desk.clock.sleep(seconds))
        try:
            await asyncio.wait({cancelled, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(cancelled, slept)
        return self._tenure.cancelled.is_set()

    async def _attempt(self, model: Model, attempt: int, left_s: float) -> Answer | None:
        """One attempt, counted; None when a cancel ended it. What a failed attempt had said is not kept (T9)."""
        self._seen = Seen(model=model.name)
        if self._pending and not model.instant:
            await self._commit()
        if self._tenure.cancelled.is_set():
            return None
        began = self._desk.clock.monotonic()
        outcome = "failed"
        try:
            answer = await self._call_model(model, self._request(attempt), left_s)
            refused = plan.refusal(answer) if answer else None
            if refused is not None:
                raise ModelError("bad-response", refused, retryable=False)  # noqa: TRY301 - one way to fail
            outcome = "ok" if answer else "cancelled"
        except ModelError:
            self._seen = Seen()
            raise
        finally:
            self._desk.metrics.model_calls(model.name, outcome).inc()
            self._desk.metrics.model_seconds(model.name).observe(self._desk.clock.monotonic() - began)
        return answer if answer is None or answer.model else replace(answer, model=model.name)

    async def _call_model(self, model: Model, request: Request, left_s: float) -> Answer | None:
        answering = model.answer(request, self._on_delta)
        try:
            return await (answering if model.instant else self._unless_cancelled(answering, left_s))
        except ModelError:
            raise
        except Overdue:
            raise ModelError(str(LIMITS["wall_seconds_per_turn"].code), WALL_TIME_SPENT, retryable=False) from None
        except Exception as error:  # a defect of the model's adapter (T8)
            log.exception("a model failed unexpectedly")
            told = f"the model failed unexpectedly: {type(error).__name__}"
            raise ModelError("internal", told, retryable=False) from error

    async def _unless_cancelled(self, work: Coroutine[Any, Any, T], left_s: float) -> T | None:
        """What a declared call comes to, None when a cancel came first. Raises `Overdue` when the time is over."""
        asked = asyncio.ensure_future(work)
        cancelled = asyncio.ensure_future(self._tenure.cancelled.wait())
        try:
            with self._desk.keeper.calling(self._tenure, left_s):
                await asyncio.wait({asked, cancelled}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if self._tenure.cancelled.is_set():
                return None
            if not asked.done():
                raise Overdue
            return asked.result()
        finally:
            await end(cancelled, asked)

    def _request(self, attempt: int) -> Request:
        return Request(
            transcript=tuple(self._transcript.entries),
            instructions=self._agent.instructions,
            tools=self._specs(),
            max_tokens=self._agent.limits.max_tokens,
            session_id=self._tenure.lease.session_id,
            turn=self._view.turn,
            step=self._view.step,
            attempt=attempt,
        )

    def _specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._agent.tools.values())

    async def _on_delta(self, text: str) -> None:
        self._seen = Seen(self._seen.text + text, self._seen.model)
        data = {"turn": self._view.turn, "step": self._view.step, "text": text}
        try:
            await self._desk.store.publish_delta(self._tenure.lease.session_id, data)
        except CoreError as error:  # nobody is owed a delta
            log.debug("a delta was not published: %s", error)

    # -- tools ------------------------------------------------------------------------------------------------

    def _last_calls(self) -> Sequence[ToolCall]:
        return next(
            (entry.calls for entry in reversed(self._transcript.entries) if isinstance(entry, AssistantEntry)), ()
        )

    async def _results(self, asked: Sequence[ToolCall], states: Mapping[str, str]) -> list[Draft]:
        """A result for each call, in the order they were asked for. All run at once; a cancel gives them
        TOOL_DRAIN_S to finish (C4), the end of the turn's wall time gives them nothing (T10)."""
        running = {call.call_id: asyncio.ensure_future(self._result(call, states[call.call_id])) for call in asked}
        cancelled = asyncio.ensure_future(self._tenure.cancelled.wait())
        left_s = max(0.0, self._deadline - self._desk.clock.monotonic())
        try:
            with self._desk.keeper.calling(self._tenure, left_s + TOOL_DRAIN_S):
                await _all_or(cancelled, list(running.values()), left_s)
                if cancelled.done():
                    await asyncio.wait(running.values(), timeout=TOOL_DRAIN_S)
            ended = {call_id for call_id, task in running.items() if task.done()}
            return [running[c.call_id].result() if c.call_id in ended else self._unknown(c) for c in asked]
        finally:
            await end(cancelled, *running.values())

    async def _result(self, call: ToolCall, state: str) -> Draft:
        view, tool = self._view, self._agent.tools.get(call.name)
        if not plan.may_run(state, tool.effect if tool else None):
            return self._unknown(call)
        outcome, content, error = "ok", "", None
        try:
            if tool is None:
                raise ToolError("unknown-tool", f"there is no tool {call.name}")  # noqa: TRY301 - one way to fail
            key = f"{self._tenure.lease.session_id}/{self._born}/{view.turn}/{view.step}/{call.call_id}"
            content = await tool.run(call.arguments, key)
        except ToolError as failed:
            outcome, error = failed.code, {"code": failed.code, "message": str(failed)}
        except Exception as failed:  # somebody else's code: whatever it raises is its result, never the turn's end
            log.exception("tool %s failed unexpectedly", call.name)
            outcome, error = "tool-failed", {"code": "tool-failed", "message": type(failed).__name__}
        self._desk.metrics.tool_calls.labels(tool=call.name if tool else "unknown", outcome=outcome).inc()
        return plan.result(view.turn, view.step, call.call_id, content, error)

    def _unknown(self, call: ToolCall) -> Draft:
        return plan.result(self._view.turn, self._view.step, call.call_id, "", NO_RESULT["started"])

    # -- committing -------------------------------------------------------------------------------------------

    def _note(self, drafts: Sequence[Draft]) -> None:
        """Decide facts: they are in the transcript now and in the ledger with the next commit."""
        self._pending += drafts
        self._transcript.grow(drafts)

    def _end_step(self) -> None:
        view = self._view
        self._note([Draft("step/end", {"turn": view.turn, "step": view.step})])
        view.move(Phase.BOUNDARY)

    async def _commit(self, *, take: bool = False) -> None:
        drafts, lease = tuple(self._pending), self._tenure.lease
        grant = await persist(
            self._desk, self._slot, self._tenure, lambda call: self._desk.store.commit(lease, call, drafts, take=take)
        )
        self._pending.clear()
        self._see(grant)

    def _see(self, grant: Grant) -> None:
        self._view = _view(grant)
        self._tenure.see(grant)

    # -- limits -----------------------------------------------------------------------------------------------

    def _tokens_over(self) -> End | None:
        limit = self._agent.limits.tokens_per_turn
        used = self._usage.input_tokens + self._usage.output_tokens
        if used <= limit:
            return None
        if self._view.phase is Phase.ANSWERED:
            view = self._view
            self._note(plan.abort_step(view.turn, view.step, view.phase, view.calls, Seen()))
            view.move(Phase.BOUNDARY)
        return self._over("tokens_per_turn", f"the turn used {used} tokens; the limit is {limit}")

    def _over(self, limit: str, message: str) -> End:
        """The end of a turn that spent one of its limits (semantics T10)."""
        reason = {"kind": "error", "code": LIMITS[limit].code, "message": message, "retryable": False}
        return End(reason, self._turn_usage())

    def _turn_usage(self) -> dict[str, Any] | None:
        used = self._usage.input_tokens or self._usage.output_tokens
        return plan.usage_data(self._usage) if used else None


def _view(grant: Grant) -> View:
    return View(grant.turn, grant.step, grant.phase, grant.batch, grant.calls)


def _sum(left: Usage, right: Usage) -> Usage:
    return Usage(left.input_tokens + right.input_tokens, left.output_tokens + right.output_tokens)


async def _all_or(cancelled: asyncio.Future[Any], tasks: Sequence[asyncio.Future[Any]], seconds: float) -> None:
    """Return when all tasks have ended, a cancel came, or the time is over."""
    everything = asyncio.ensure_future(asyncio.wait(tasks))
    try:
        await asyncio.wait({everything, cancelled}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(everything)
