"""The tool of the real-input run: a small shelf of books. It lies beside agents.toml, as a user's own tools would."""

from typing import Final

SHELF: Final = {"Moby-Dick": "third row, on the left", "Walden": "lent until Friday"}


def look_up(title: str) -> str:
    """Where a book stands."""
    return SHELF.get(title, "not on the shelf")


look_up.__mailslot_tool__ = {"effect": "readonly"}  # type: ignore[attr-defined]
