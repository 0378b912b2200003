"""Write the generated files of `contracts/`, or check that they are fresh.

    python -m mailslot_contracts.generate            writes schemas/*.json
    python -m mailslot_contracts.generate --check    writes nothing; exit 1 when a file is stale

The one module here that touches files; it works on the source tree it is part of.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mailslot_contracts.schemas import schema_texts

SCHEMAS = Path(__file__).resolve().parent.parent / "schemas"


def stale(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Names of files that are missing, differ, or should not be there."""
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    return sorted(name for name in found.keys() | texts.keys() if found.get(name) != texts.get(name))


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Make the folder hold exactly these files."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.json"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mailslot_contracts.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is stale")
    options = parser.parse_args(arguments)
    texts = schema_texts()
    changed = stale(SCHEMAS, texts)
    if not options.check:
        write(SCHEMAS, texts)
        print(f"schemas: {len(changed)} of {len(texts)} written anew")
        return 0
    for name in changed:
        print(f"stale: contracts/schemas/{name}; run python -m mailslot_contracts.generate", file=sys.stderr)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
