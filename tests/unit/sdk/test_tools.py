"""Marking a function as a tool."""

import pytest

from mailslot.tools import tool


def test_a_marked_function_stays_what_it_was() -> None:
    @tool(effect="readonly", name="lookup", timeout_ms=500)
    def look_up(word: str) -> str:
        """Look a word up."""
        return word.upper()

    assert look_up("a") == "A"
    assert look_up.__doc__ == "Look a word up."
    assert vars(look_up)["__mailslot_tool__"] == {"effect": "readonly", "name": "lookup", "timeout_ms": 500}


def test_the_mark_holds_only_what_was_said() -> None:
    @tool()
    def nothing_said() -> None: ...

    @tool(blocking=False)
    def quick() -> None: ...

    assert vars(nothing_said)["__mailslot_tool__"] == {"effect": "unsafe"}
    assert vars(quick)["__mailslot_tool__"] == {"effect": "unsafe", "blocking": False}


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_tool_without_time_is_refused(timeout_ms: int) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        tool(timeout_ms=timeout_ms)
