"""The files of this repository, as the house rules see them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]

PACKAGES: Final = {
    "mailslot_contracts": ROOT / "contracts",
    "mailslot_core": ROOT / "core",
    "mailslot_services": ROOT / "services",
    "mailslot": ROOT / "sdk" / "python",
}
"""Import package and the folder that holds it: folder X holds `mailslot_X`, and `sdk/python` holds `mailslot`."""


def files() -> list[Path]:
    """Every file that is, or is about to be, part of the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return sorted(path for name in set(listed.split("\0")) - {""} if (path := ROOT / name).is_file())


def texts(*folders: str) -> Iterator[tuple[Path, str]]:
    """The text files below these top-level folders (all, when none is named) with their text."""
    for path in files():
        if folders and path.relative_to(ROOT).parts[0] not in folders:
            continue
        content = path.read_bytes()
        if b"\0" not in content:
            yield path, content.decode()


def product_modules() -> Iterator[tuple[Path, str]]:
    """The Python modules that are shipped."""
    return ((path, text) for path, text in texts("contracts", "core", "sdk", "services") if path.suffix == ".py")


def name(path: Path) -> str:
    """A file as a person would name it."""
    return str(path.relative_to(ROOT))
