"""Write the documents of the doors into `contracts/`, or check that they are fresh.

    python -m mailslot_services.generate            writes openapi.json, openrpc.json and asyncapi.yaml
    python -m mailslot_services.generate --check    writes nothing; exit 1 when one is stale

They are made from the route table, the table of methods, the declared streams and topics, and the contracts: what is
served at `/openapi.json` and `/asyncapi` is the same text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mailslot_services.ingest import asyncapi, openapi, openrpc
from mailslot_services.ingest.route import resources

CONTRACTS = Path(__file__).resolve().parents[2] / "contracts"


def texts() -> dict[str, str]:
    """Every document as the text of its file, by file name."""
    return {
        "openapi.json": openapi.text(resources()),
        "openrpc.json": openrpc.text(resources()),
        "asyncapi.yaml": asyncapi.text(),
    }


def stale(folder: Path, wanted: Mapping[str, str]) -> list[str]:
    """Names of files that are missing or differ."""
    paths = {name: folder / name for name in wanted}
    return [
        name for name, path in paths.items() if not path.exists() or path.read_text(encoding="utf-8") != wanted[name]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mailslot_services.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is stale")
    options = parser.parse_args(arguments)
    wanted = texts()
    changed = stale(CONTRACTS, wanted)
    if not options.check:
        for name in changed:
            (CONTRACTS / name).write_text(wanted[name], encoding="utf-8")
        print(f"documents: {len(changed)} of {len(wanted)} written anew")
        return 0
    for name in changed:
        print(f"stale: contracts/{name}; run python -m mailslot_services.generate", file=sys.stderr)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
