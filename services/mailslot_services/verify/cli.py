"""`mailslot verify` on the command line.

Exit codes: 0 nothing is wrong, 1 something is wrong, did not come to rest or was not harmed, 2 wrong usage or no store
to use.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Final

from mailslot_core.errors import CoreError, Misconfigured, StoreUnavailable
from mailslot_services.boot import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_SIGNALLED,
    EXIT_USAGE,
    log_to_stderr,
    parse,
    run_until_signal,
)
from mailslot_services.embedded import located
from mailslot_services.verify import screen
from mailslot_services.verify.database import NoDatabase
from mailslot_services.verify.settings import VerifySettings
from mailslot_services.verify.verification import verify

DESCRIPTION: Final = """\
Show that nothing is lost on your own server. Messages are sent for a while; the workers, which are its own, are killed,
stopped and cut off meanwhile; then the ledgers are checked. It borrows an empty database and empties it again.
Chaos of 15 s or more that killed no worker, or stopped none, has shown nothing: no harm could be done, exit code 1.

exit codes: 0 nothing is wrong, 1 something is wrong, did not come to rest or was not harmed,
2 wrong usage or no store to use"""


def command(argv: Sequence[str]) -> int:
    """Verify, print, and say by the exit code whether something is wrong."""
    settings = parse(VerifySettings, argv, prog="mailslot verify", description=DESCRIPTION)
    settings = located(settings, settings.state_dir)
    log_to_stderr("error")
    logging.getLogger("mailslot_core").setLevel(logging.CRITICAL)  # lost answers are what we are here for

    async def serve(stop: asyncio.Event) -> int:
        work = asyncio.ensure_future(_verify_and_print(settings))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
            return EXIT_SIGNALLED + signal.SIGINT
        return work.result()

    return run_until_signal(serve)


async def _verify_and_print(settings: VerifySettings) -> int:
    show, clear = screen.on_terminal()
    try:
        outcome = await verify(settings, show, _tell)
    except CoreError as error:
        sys.stderr.write(f"mailslot verify: {error}\n")
        return EXIT_USAGE if isinstance(error, NoDatabase | StoreUnavailable | Misconfigured) else EXIT_FAILED
    finally:
        clear()
    if settings.json_:
        print(json.dumps(screen.document(outcome), ensure_ascii=False))
    else:
        print("\n".join(screen.lines(outcome)))
    return EXIT_OK if outcome.sound else EXIT_FAILED


def _tell(name: str, line: str) -> None:
    """A line of a worker."""
    sys.stderr.write(f"{name}: {line}\n")
