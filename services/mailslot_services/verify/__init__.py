"""`mailslot verify`: load and faults against a real store, and an independent check of what came of it.

    ledger recorder report   what was kept, what was told, what it comes to
    walk life turn checker   the check, which shares no code with the store
    database                 an empty database of the user's server, borrowed
    load fault workforce     clients, harm, workers of its own
    verification             one from start to end; settings, screen, cli: what is asked and what is said

Rule 1: it uses the server that keeps the user's sessions, and never the database that keeps them.
Rule 2: this file imports nothing, so that whoever wants the checker alone gets it alone.
"""

from __future__ import annotations

from collections.abc import Sequence


def command(argv: Sequence[str]) -> int:
    """`mailslot verify`"""
    from mailslot_services.verify import cli  # noqa: PLC0415 - rule 2

    return cli.command(argv)
