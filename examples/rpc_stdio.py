"""JSON-RPC on stdin and stdout of a child process, with the connection in the PyPI package `agent-client-protocol`.

    this program  ── a frame a line ──>  mailslot rpc  ── HTTP ──>  the doors

Shows: how a program that starts its tools as child processes (an editor, say) reaches an agent: `initialize`, a
subscription, `session/prompt`, whose result is exactly `{messageId}`, the events as notifications, and an end in order.

Run it beside `mailslot up`:

    pip install agent-client-protocol
    python examples/rpc_stdio.py

The command is found on PATH, or named by MAILSLOT; MAILSLOT_URL says where the doors are.
"""

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from typing import Any

from acp.connection import Connection
from acp.exceptions import RequestError

SESSION = "stdio"


class Listener:
    """Prints notifications, and knows when the agent has come to rest."""

    def __init__(self) -> None:
        self.rest = asyncio.Event()

    async def __call__(self, method: str, params: Any, is_notification: bool) -> None:
        """What the connection calls with everything that is no answer."""
        assert is_notification, f"{method}: we serve nothing"
        if "seq" in params:  # all but the session's level, which opens every subscription
            print("event", params["seq"], params["type"])
            if params["type"] == "agent/status" and params["data"]["status"] == "idle":
                self.rest.set()


async def main() -> None:
    """Start the child, talk to it, let it go."""
    child = await asyncio.create_subprocess_exec(os.environ.get("MAILSLOT", "mailslot"), "rpc", stdin=PIPE, stdout=PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    listener = Listener()
    connection = Connection(listener, child.stdin, child.stdout)

    await connection.send_request("initialize", {"protocolVersion": 1})
    await connection.send_request("session/new", {"sessionId": SESSION})
    await connection.send_request("session/subscribe", {"sessionId": SESSION, "after": 0})
    letter = {"sessionId": SESSION, "content": "hello over stdio"}
    print("receipt", json.dumps(await connection.send_request("session/prompt", letter)))
    await listener.rest.wait()
    try:
        await connection.send_request("session/message", {"sessionId": SESSION, "messageId": "nobody-sent-this"})
    except RequestError as error:
        problem: Any = error.data
        print("refused", error.code, problem["code"])

    child.stdin.close()  # nothing more comes: what was asked is answered, then the child ends
    print("exit code", await child.wait())
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
