"""What `mailslot verify` says about the harm that it did: chaos that hurt nobody has shown nothing."""

import asyncio
from collections import Counter
from random import Random

import pytest
from redis.asyncio import Redis

from mailslot_services.verify import fault, screen
from mailslot_services.verify.database import Database
from mailslot_services.verify.fault import Faults
from mailslot_services.verify.report import Finding, Kind, Report
from mailslot_services.verify.settings import HARM_DUE_S
from mailslot_services.verify.verification import Outcome
from mailslot_services.verify.workforce import Workforce


def outcome(chaos_s: float, **faults: int) -> Outcome:
    """One that is sound otherwise."""
    database = Database(15, "redis://host/15")
    report = Report(receipts=1)
    return Outcome(
        1,
        database,
        3,
        50.0,
        3000,
        "memory",
        kept=False,
        chaos_s=chaos_s,
        rest_s=1.0,
        faults=Counter(faults),
        report=report,
    )


VERDICTS = {
    "harm was done": (HARM_DUE_S, {"kill": 1, "stop": 1}, True),
    "nothing was done": (HARM_DUE_S, {}, False),
    "nobody was stopped": (60.0, {"kill": 9, "cut": 9}, False),
    "nobody was killed": (60.0, {"stop": 9, "cut": 9}, False),
    "too short to demand any": (HARM_DUE_S - 0.1, {}, True),
    "no chaos was asked for": (0.0, {}, True),
}


@pytest.mark.parametrize(("chaos_s", "faults", "sound"), VERDICTS.values(), ids=VERDICTS.keys())
def test_chaos_that_hurt_nobody_is_not_sound(chaos_s: float, faults: dict[str, int], sound: bool) -> None:
    found = outcome(chaos_s, **faults)
    verdict = "zero loss" if sound else "no harm could be done"
    assert (found.sound, screen.summary(found)) == (sound, f"{verdict} · database 15 is empty again")
    assert screen.document(found)["sound"] is sound


def test_what_is_broken_is_said_before_what_was_not_done() -> None:
    found = outcome(60.0)
    found.report.findings.append(Finding(Kind.LOSS, "s", 0, "message A is lost"))
    assert screen.summary(found).startswith("1 things are wrong")


def test_workers_that_ended_by_themselves_are_shown() -> None:
    found = outcome(60.0, kill=1, stop=1)
    found.ended_by_themselves = 2
    assert dict(screen.rows(found))["worker ends"] == "2 that no fault had caused"


async def test_a_fault_that_finds_nobody_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(10))
    enough = asyncio.Event()

    class Empty(Workforce):
        """Nobody works here; it notices who looks."""

        @property
        def living(self) -> list[int]:
            if next(looks, None) is None:
                enough.set()
            return super().living

    monkeypatch.setattr(fault, "KINDS", ("kill", "stop"))
    monkeypatch.setattr(fault, "GAP_S", (0.0, 0.0))
    workforce = Empty({}, lambda name, line: None)
    faults = Faults(workforce, Redis(), Random(1), 800, ("worker-", "senders"))
    raging = asyncio.ensure_future(faults.rage())
    await asyncio.wait_for(enough.wait(), 10)
    raging.cancel()
    await asyncio.wait({raging})
    assert (workforce.kill(1), workforce.stop(1), faults.counts) == (False, False, Counter())
