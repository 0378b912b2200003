"""Tools of the agents that `mailslot verify` talks to. They do nothing but wait a moment, so that a worker can die
inside a call: `look` may be run again; `act` says that it may not, so the model is told `TOOL_OUTCOME_UNKNOWN`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mailslot.tools import tool

CALL_S: Final = 0.1
"""How long a call takes."""


@tool(effect="readonly")
async def look(at: str) -> str:
    """Look at something."""
    await asyncio.sleep(CALL_S)
    return f"seen: {len(at)} characters"


@tool(effect="unsafe")
async def act(upon: str) -> str:
    """Act upon something."""
    await asyncio.sleep(CALL_S)
    return f"acted upon: {len(upon)} characters"
