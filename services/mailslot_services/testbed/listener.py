"""A listening socket that knows what it accepted, so that a connection can be cut in any moment of an answer.

A fault stands in an application, which has no hand on its connection; this has. The server closes what is cut as it
closes any connection whose client went away.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary


class Listener(socket.socket):
    """Listens on a port of loopback; 0 takes a free one."""

    def __init__(self, port: int) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self._accepted: WeakValueDictionary[Any, socket.socket] = WeakValueDictionary()
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(("127.0.0.1", port))
        except OSError:
            self.close()
            raise

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self.getsockname()[1]
        return port

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.accept`."""
        connection, address = super().accept()
        self._accepted[address] = connection
        return connection, address

    def cut(self, address: Any) -> None:
        """Cut the connection of that peer. What was sent before reaches it; nothing more does."""
        connection = self._accepted.get(tuple(address or ()))
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def cut_all(self) -> None:
        """Cut every connection."""
        for address in list(self._accepted):
            self.cut(address)
