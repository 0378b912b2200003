"""`python -m mailslot_services <service> [options]`: one service in this process, imported only when it is asked for.

`mailslot up` starts its children this way, so that they run the same code with the same interpreter as itself.
"""

import sys
from importlib import import_module
from typing import Final

from mailslot_services.boot import EXIT_USAGE

SERVICES: Final = {
    "ingest": "mailslot_services.ingest",
    "worker": "mailslot_services.agent_worker",
    "goals": "mailslot_services.goal_continuation",
    "doctor": "mailslot_services.doctor",
    "verify": "mailslot_services.verify",
    "up": "mailslot_services.up",
}


def main(words: list[str]) -> int:
    """Run the service that the first word names; the exit code."""
    if not words or words[0] not in SERVICES:
        sys.stderr.write(f"usage: python -m mailslot_services {{{','.join(SERVICES)}}} [options]\n")
        return EXIT_USAGE
    code: int = import_module(SERVICES[words[0]]).command(words[1:])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
