"""The trial at the end of a scenario: what clients were told is held against the ledgers, by an independent checker.

history (receipts, refusals, unknowns) ──┐
                                         ├──> mailslot_services.verify.checker ──> losses, duplicates, inversions, …
ledgers (XRANGE) ────────────────────────┘
"""

from mailslot_services.verify.checker import check
from tests.chaos.figure import Figure
from tests.chaos.history import History
from tests.chaos.ledger import Ledger, fenced_writes, ledgers, of_type
from tests.chaos.stand import Stand


def hold_trial(
    own: Stand, history: History, figure: Figure, *, sessions: str = "", at_rest: bool = True
) -> dict[str, Ledger]:
    """Read every ledger, hold everything against everything, put what was found into the figures, and fail on any
    finding. `at_rest`: everything has come to its end; `sessions`: what the names of those to try begin with, where
    scenarios share a store. Gives the ledgers."""
    found = {session: facts for session, facts in ledgers(own.client).items() if session.startswith(sessions)}
    report = check(found, history.told, at_rest=at_rest)
    figure.operations += report.messages
    figure.losses += report.losses
    figure.duplicates += report.duplicates
    figure.inversions += report.inversions
    figure.fenced += fenced_writes(own.client) - own.fenced_before
    assert report.sound, "\n".join(report.sentences[:20])
    return found


def recovery_s(facts: Ledger, since_ms: int) -> float | None:
    """Seconds from a moment of the store's clock to the first fact after it that says that a turn was taken up."""
    recovered = (each for each in of_type(facts, "turn/recovered") if each.time >= since_ms)
    first = next(recovered, None)
    return None if first is None else (first.time - since_ms) / 1000
