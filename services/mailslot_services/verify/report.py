"""What a check came to: findings, each of one kind with one sentence, and the figures.

Report ── count ──> losses 0, duplicates 0, order inversions 0, …
       ── sentences ──> `session s-1: message m-7 is queued twice, again at seq 12`
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any, NamedTuple


class Kind(StrEnum):
    """What is broken."""

    LOSS = "loss"  # a receipt without its message, or a message that came to no end
    FALSE_REFUSAL = "false refusal"  # a client was told no, and the message is inside
    UNKEPT = "unkept answer"  # a client was told that something is so, and the ledger does not say it
    CONTENT = "other words"  # a message that is inside, but not as it was sent, queued or replaced
    DUPLICATE = "duplicate"  # queued twice, or ended twice in one life
    DUPLICATE_ADMISSION = "duplicate admission"  # entered the transcript twice
    INVERSION = "order inversion"  # not in the order of seq
    LIFE = "life"  # a step that a message's life does not have
    SEQ = "seq"  # a gap, or an entry out of place
    CLOCK = "clock"  # time or epoch goes back
    TURN = "turn"  # two at once, two ends, an end without a start, a takeover that nobody announced
    CANCEL = "cancel"  # aborted without a cancel, cancelled and not aborted, or the wrong one hit
    TRANSCRIPT = "transcript"  # no valid history for a provider
    STATUS = "status"  # said twice in a row
    IDLE = "idle"  # idle with something left to do, or never idle again
    CONSERVATION = "conservation"  # queued is not ended + pending
    UNREADABLE = "unreadable"  # an event without what its type needs


class Finding(NamedTuple):
    """One thing that is broken. `seq` is where it shows, 0 when it shows nowhere."""

    kind: Kind
    session_id: str
    seq: int
    sentence: str

    def __str__(self) -> str:
        return f"session {self.session_id}: {self.sentence}"


@dataclass
class Report:
    """The figures and the findings of all sessions together."""

    sessions: int = 0
    events: int = 0
    messages: int = 0  # lives: `inbox/queued` events
    settled: Counter[str] = field(default_factory=Counter)  # state -> messages that ended in it
    pending: int = 0  # queued or claimed at the end, whether or not that is right
    receipts: int = 0
    duplicate_receipts: int = 0
    refusals: Counter[str] = field(default_factory=Counter)  # code -> attempts that were refused
    unknowns: int = 0
    cancels: int = 0
    ends: Counter[str] = field(default_factory=Counter)  # kind -> turns that ended so
    recovered: Counter[str] = field(default_factory=Counter)  # reason -> turns taken up
    recovery_ms: list[int] = field(default_factory=list)
    """For each turn that was taken up after a crash: from the last thing its old owner wrote to `turn/recovered`, by
    the store's clock. The crash came after that write, so recovery itself was shorter."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Nothing is broken."""
        return not self.findings

    def count(self, *kinds: Kind) -> int:
        """How many findings of these kinds there are."""
        return sum(finding.kind in kinds for finding in self.findings)

    @property
    def losses(self) -> int:
        """Messages that were promised and are not there, or came to no end."""
        return self.count(Kind.LOSS)

    @property
    def false_refusals(self) -> int:
        """Messages that were refused and are there."""
        return self.count(Kind.FALSE_REFUSAL)

    @property
    def altered(self) -> int:
        """Messages whose words are not those that were sent: they are lost as well, with their id kept."""
        return self.count(Kind.CONTENT)

    @property
    def duplicates(self) -> int:
        """Messages that were queued, ended or admitted twice."""
        return self.count(Kind.DUPLICATE, Kind.DUPLICATE_ADMISSION)

    @property
    def duplicate_admissions(self) -> int:
        """Messages that entered the transcript twice."""
        return self.count(Kind.DUPLICATE_ADMISSION)

    @property
    def inversions(self) -> int:
        """Messages that were taken or promised out of order."""
        return self.count(Kind.INVERSION)

    @property
    def recovery_p50_ms(self) -> int | None:
        """The median of `recovery_ms`, None when nothing was recovered."""
        return round(median(self.recovery_ms)) if self.recovery_ms else None

    @property
    def recovery_max_ms(self) -> int | None:
        """The longest of `recovery_ms`, None when nothing was recovered."""
        return max(self.recovery_ms, default=None)

    @property
    def sentences(self) -> list[str]:
        """Every finding in words."""
        return [str(finding) for finding in self.findings]

    def figures(self) -> dict[str, Any]:
        """The report as one plain document."""
        return {
            "sound": self.sound,
            "sessions": self.sessions,
            "events": self.events,
            "messages": self.messages,
            "settled": dict(self.settled),
            "pending": self.pending,
            "receipts": self.receipts,
            "duplicateReceipts": self.duplicate_receipts,
            "refusals": dict(self.refusals),
            "unknownOutcomes": self.unknowns,
            "cancels": self.cancels,
            "turns": dict(self.ends),
            "recovered": dict(self.recovered),
            "recoveryMsP50": self.recovery_p50_ms,
            "recoveryMsMax": self.recovery_max_ms,
            "losses": self.losses,
            "altered": self.altered,
            "falseRefusals": self.false_refusals,
            "duplicates": self.duplicates,
            "duplicateAdmissions": self.duplicate_admissions,
            "orderInversions": self.inversions,
            "broken": {str(kind): count for kind in Kind if (count := self.count(kind))},
            "findings": [finding._asdict() for finding in self.findings],
        }
