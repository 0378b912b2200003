"""mailslot: push a letter through, hear it drop. The sound proves only that it is inside.

    from mailslot import Client

    with Client("http://127.0.0.1:8080") as client:
        session = client.session("demo")
        receipt = session.prompt("hello")      # it is inside; nothing more is said
        result = session.run("and now?")       # an interval that you own, through the next idle
        print(result.final_response)

`AsyncClient` is the same with `await`. What can go wrong is one tree, `MailslotError`.
"""

from mailslot.answer import (
    Budgets,
    CancelOutcome,
    Closing,
    DeadLetter,
    DeadMessage,
    Erasure,
    Goal,
    GoalReason,
    Level,
    Receipt,
    StoreReceipt,
    Usage,
)
from mailslot.client import (
    AsyncClient,
    AsyncExclusive,
    AsyncRun,
    AsyncSession,
    AsyncSessionGoal,
    Client,
    Exclusive,
    Run,
    Session,
    SessionGoal,
)
from mailslot.errors import (
    BadAnswer,
    CursorExpired,
    MailslotError,
    OutcomeUnknown,
    Refused,
    RunTimeout,
    TransportLost,
)
from mailslot.event import Delta, Event
from mailslot.interval import RunResult
from mailslot.record import MessageRecord, QueuedMessage
from mailslot.settings import Settings

__all__ = [
    "AsyncClient",
    "AsyncExclusive",
    "AsyncRun",
    "AsyncSession",
    "AsyncSessionGoal",
    "BadAnswer",
    "Budgets",
    "CancelOutcome",
    "Client",
    "Closing",
    "CursorExpired",
    "DeadLetter",
    "DeadMessage",
    "Delta",
    "Erasure",
    "Event",
    "Exclusive",
    "Goal",
    "GoalReason",
    "Level",
    "MailslotError",
    "MessageRecord",
    "OutcomeUnknown",
    "QueuedMessage",
    "Receipt",
    "Refused",
    "Run",
    "RunResult",
    "RunTimeout",
    "Session",
    "SessionGoal",
    "Settings",
    "StoreReceipt",
    "TransportLost",
    "Usage",
]
