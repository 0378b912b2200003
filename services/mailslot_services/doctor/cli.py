"""`mailslot doctor` on the command line.

Exit codes: 0 nothing wrong, 1 something is wrong, 2 wrong usage, 3 the store cannot be reached.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from typing import Final

from mailslot_core.errors import OutcomeUnknown, StoreUnavailable
from mailslot_services.boot import EXIT_FAILED, EXIT_OK, EXIT_SIGNALLED, parse, run_until_signal
from mailslot_services.doctor.examination import diagnose
from mailslot_services.doctor.screen import document, lines
from mailslot_services.doctor.settings import DoctorSettings
from mailslot_services.embedded import located

DESCRIPTION: Final = """\
Compare every ledger with what is kept of it, and the server with what is promised. It only reads, and works on a
live system.

exit codes: 0 nothing wrong, 1 something is wrong, 2 wrong usage, 3 the store cannot be reached"""

EXIT_UNREACHABLE: Final = 3


def command(argv: Sequence[str]) -> int:
    """`mailslot doctor`: examine, print, and say by the exit code whether something is wrong."""
    settings = parse(DoctorSettings, argv, prog="mailslot doctor", description=DESCRIPTION)
    settings = located(settings, settings.state_dir)

    async def serve(stop: asyncio.Event) -> int:
        work = asyncio.ensure_future(_examine_and_print(settings))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
            return EXIT_SIGNALLED + signal.SIGINT
        return work.result()

    return run_until_signal(serve)


async def _examine_and_print(settings: DoctorSettings) -> int:
    try:
        report = await diagnose(settings)
    except (StoreUnavailable, OutcomeUnknown) as error:
        sys.stderr.write(f"mailslot doctor: {error}\n")
        return EXIT_UNREACHABLE
    if settings.json_:
        print(json.dumps(document(report), ensure_ascii=False))
    else:
        print("\n".join(lines(report)))
    return EXIT_OK if report.healthy else EXIT_FAILED
