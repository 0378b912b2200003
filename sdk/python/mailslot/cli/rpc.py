"""`mailslot rpc`: the JSON-RPC door on stdin and stdout, for a program that starts it.

    program ──NDJSON──> stdin │ mailslot rpc │ ──HTTP──> server
            <──NDJSON── stdout │              │ <──SSE───

Rule 1: stdout carries frames and nothing else: whatever prints by accident prints to stderr.
Rule 2: it ends within a second when stdin ends, when nobody reads stdout any more, at SIGTERM, and with its parent.
        What was read before is answered first.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from mailslot.cli.exits import Exit
from mailslot.cli.options import Command, Parser, check_server, parser
from mailslot.cli.terminal import say
from mailslot.rpc.connection import Connection
from mailslot.rpc.remote import Remote
from mailslot.rpc.stdio import Pipes
from mailslot.transport import AsyncTransport

ENDS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _parser() -> Parser:
    return parser(
        "rpc",
        "Speak JSON-RPC 2.0 on stdin and stdout, a frame a line. Begin with initialize.",
        """echo '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}' | mailslot rpc""",
    )


def _act(made: Parser, options: argparse.Namespace) -> int:
    check_server(made, options)
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return asyncio.run(_serve(options.url, options.token, out))


async def _serve(url: str, token: str | None, out: int) -> int:
    ended_by: list[int] = []
    line = Pipes(0, out)

    def end(number: int) -> None:
        ended_by.append(number)
        line.end()

    for number in ENDS:
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    transport = AsyncTransport(url, token)
    try:
        connection = Connection(line, Remote(transport), server=_version())
        await connection.serve()
    finally:
        await transport.aclose()
    if line.reader_gone:
        return Exit.READER_GONE
    if connection.why:
        say(f"mailslot rpc: {connection.why}")
        return Exit.LOST
    return 128 + ended_by[0] if ended_by else Exit.COMPLETED


def _version() -> str:
    try:
        return version("mailslot")
    except PackageNotFoundError:
        return "(not installed)"


RPC: Final = Command(_parser, _act)
