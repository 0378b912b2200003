"""One session in a slot: turn after turn, until it rests, is given back, was lost, or was fenced.

    grant --> history --> turn --> settle --+--> next turn of the session
                                            +--> the partition's next ready session
                                            +--> nothing: the slot is free

Rule 1: whatever ends a session here, the store knows better: what was committed is done, the rest is recovered.
Rule 2: a transcript is kept between turns only while no other owner can have written to it (see `transcript`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from mailslot_core.agent import Usage
from mailslot_core.errors import CoreError, Fenced
from mailslot_core.session import Event, Phase
from mailslot_core.store import Grant, Settled
from mailslot_core.turn import Draft, End, Outcome
from mailslot_services.agent_worker import plan
from mailslot_services.agent_worker.agents import Agent
from mailslot_services.agent_worker.tenure import Slot, Tenure
from mailslot_services.agent_worker.transcript import Transcript, TranscriptCache, still_holds
from mailslot_services.agent_worker.turn import Desk, HandBack, LeaseLost, Past, Turn, patiently, persist, settle

PAGE_EVENTS = 200  # events read from a ledger at once; each may be a megabyte

log = logging.getLogger("mailslot.worker")

Following = tuple[Tenure, Grant] | None


class Driver:
    """Drives sessions for a worker's slots."""

    def __init__(self, desk: Desk, agent_named: Callable[[str], Agent | None]) -> None:
        self._desk, self._agent_named = desk, agent_named
        self._cache = TranscriptCache()

    async def session(self, slot: Slot, tenure: Tenure, grant: Grant) -> Following:
        """Drive a session until it is out of our hands; the session that was handed out with its end, if any."""
        tenure.begun = True
        try:
            if tenure.lost is None and not tenure.hand_back:
                return await self._turns(slot, tenure, grant)
            if tenure.lost is None:
                await self._hand_back(slot, tenure)
        except HandBack:
            await self._hand_back(slot, tenure)
        except LeaseLost as error:
            self._desk.keeper.lose(tenure, "store-silent")
            log.warning("session %s: %s", tenure.lease.session_id, error)
        except Fenced as error:
            self._desk.metrics.fenced.inc()
            log.warning("%s", error)
        except asyncio.CancelledError:
            if tenure.hand_back:
                await self._hand_back(slot, tenure)
            elif tenure.lost is None:
                raise
        except Exception:  # a defect: the lease runs out, the session is recovered, and other sessions go on
            self._desk.metrics.lost.labels(reason="defect").inc()
            log.exception("session %s was dropped", tenure.lease.session_id)
        finally:
            self._desk.keeper.end(tenure)
        return None

    async def _hand_back(self, slot: Slot, tenure: Tenure) -> None:
        desk = self._desk
        try:
            await persist(desk, slot, tenure, lambda call: desk.store.handback(tenure.lease, call))
        except (CoreError, LeaseLost) as error:
            log.warning("session %s was not handed back and will be recovered: %s", tenure.lease.session_id, error)

    async def _turns(self, slot: Slot, tenure: Tenure, grant: Grant) -> Following:
        if grant.recovered is not None:
            self._desk.metrics.recovered.labels(reason=grant.recovered).inc()
        past = await self._past(tenure, grant)
        while True:
            past.transcript.mark(grant.seq, grant.born)
            settled = await self._turn(slot, tenure, grant, past)
            if settled.outcome is not Outcome.TURN or settled.grant is None:
                break
            past, grant = Past(past.transcript), settled.grant
            tenure.see(grant)
        self._cache.put(grant.lease.session_id, grant.lease.epoch, past.transcript)
        return self._handed_out(settled.grant, tenure, slot)

    def _handed_out(self, grant: Grant | None, tenure: Tenure, slot: Slot) -> Following:
        """The session that came with the answer to the settle; its lease counts from that call, not from the turn."""
        if grant is None:
            return None
        following = self._desk.keeper.begin(grant, slot.asked)
        following.task = tenure.task
        return following, grant

    async def _turn(self, slot: Slot, tenure: Tenure, grant: Grant, past: Past) -> Settled:
        agent = self._agent_named(grant.agent)
        if agent is None:
            return await self._refuse(slot, tenure, grant, past.transcript)
        return await Turn(self._desk, slot, tenure, agent, grant, past).run()

    async def _refuse(self, slot: Slot, tenure: Tenure, grant: Grant, transcript: Transcript) -> Settled:
        """End a turn of an agent that this worker does not have."""
        message = f"there is no agent {grant.agent} in this worker's configuration"
        error = {"code": "unknown-agent", "message": message}
        drafts = [plan.result(grant.turn, grant.step, call_id, "", error) for call_id in grant.calls]
        if grant.phase is not Phase.BOUNDARY:
            drafts.append(Draft("step/end", {"turn": grant.turn, "step": grant.step}))
        transcript.grow(drafts)
        end = End({"kind": "error", **error, "retryable": False})
        return await settle(self._desk, slot, tenure, drafts, end)

    async def _past(self, tenure: Tenure, grant: Grant) -> Past:
        """What came before this grant: what we know, and what the ledger says since then (semantics L6)."""
        fresh = grant.recovered is None
        if fresh and grant.turn == 1:
            return Past(Transcript())
        kept = self._cache.take(grant.lease.session_id)
        if kept and kept.transcript.born != grant.born:
            kept = None  # of an erased session that had this name
        transcript = kept.transcript if kept else Transcript()
        if kept and fresh and still_holds(kept.epoch, grant.lease.epoch):
            return Past(transcript)
        transcript.rewind()
        read = partial(self._desk.store.events, grant.lease.session_id, limit=PAGE_EVENTS)
        ours: list[Event] = []
        after = transcript.seq
        while after < grant.seq:
            page = await patiently(self._desk, tenure, partial(read, after=after))
            transcript.grow(page)
            ours += [event for event in page if event.data.get("turn") == grant.turn]
            after = page[-1].seq if page else grant.seq
        return past_of(transcript, ours)


def past_of(transcript: Transcript, ours: Sequence[Event]) -> Past:
    """What an open turn has already used, by its own events: a new owner goes on counting (T5, T10)."""
    used = [event.data for event in ours if event.type == "usage/recorded"]
    return Past(
        transcript,
        calls_made=sum(event.type == "tool/call" for event in ours),
        truncated=any(event.data.get("truncated") for event in ours),
        usage=Usage(sum(data["inputTokens"] for data in used), sum(data["outputTokens"] for data in used)),
        elapsed_s=(ours[-1].time - ours[0].time) / 1000 if ours else 0.0,
    )
