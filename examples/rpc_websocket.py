"""A JSON-RPC connection over WebSocket, with the PyPI packages `jsonrpcclient` and `websockets`.

Shows: `initialize`, a subscription from a cursor, `session/prompt`, whose result is exactly `{messageId}`, and the
events as notifications.

Run it beside `mailslot up`:

    pip install jsonrpcclient websockets
    python examples/rpc_websocket.py

MAILSLOT_URL says where the doors are (default http://127.0.0.1:8080).
"""

import asyncio
import json
import os
from typing import Any

from jsonrpcclient import Error, Ok, parse, request
from websockets.asyncio.client import ClientConnection, connect

SESSION = "websocket"
URL = os.environ.get("MAILSLOT_URL", "http://127.0.0.1:8080").replace("http", "ws", 1)


async def main() -> None:
    """Subscribe, send, listen until the agent rests."""
    async with connect(f"{URL}/v1/rpc", proxy=None) as socket:
        heard: list[dict[str, Any]] = []
        await call(socket, heard, "initialize", protocolVersion=1)
        await call(socket, heard, "session/new", sessionId=SESSION)
        await call(socket, heard, "session/subscribe", sessionId=SESSION, after=0)
        receipt = await call(socket, heard, "session/prompt", sessionId=SESSION, content="hello from websockets")
        print("receipt", json.dumps(receipt))
        while not any(rests(event) for event in heard):
            heard.append(json.loads(await socket.recv())["params"])
        for event in heard:
            if "seq" in event:  # all but the session's level, which opens every subscription
                print("event", event["seq"], event["type"])


def rests(event: dict[str, Any]) -> bool:
    """Whether the whole agent has come to rest."""
    return event.get("type") == "agent/status" and event["data"]["status"] == "idle"


async def call(socket: ClientConnection, heard: list[dict[str, Any]], method: str, **params: Any) -> Any:
    """The result of a call. Notifications may come before it; they are kept."""
    await socket.send(json.dumps(request(method, params)))
    while "method" in (said := json.loads(await socket.recv())):
        heard.append(said["params"])
    match parse(said):
        case Ok(result=result):
            return result
        case Error(code=code, data=problem):
            raise SystemExit(f"{method} was refused: {code} {problem}")


if __name__ == "__main__":
    asyncio.run(main())
