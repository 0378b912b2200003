"""Server-sent events, bytes in and frames out, without I/O.

    id: 12\\n
    event: session.event\\n
    data: {"v": 1, …}\\n
    \\n

Rule 1: lines end at byte 0x0A and nowhere else. A CR before it is dropped; U+2028, U+2029, U+0085 and a bare CR
        inside a line are text.
Rule 2: bytes become text a whole line at a time, so a character that is split between two reads stays whole.
Rule 3: a frame that is not finished when the bytes end is dropped: its event is read again from the ledger.
Rule 4: comments and fields without a meaning here are skipped. A frame without data is none.
Rule 5: a frame has at most `frame_bytes_max` bytes, counted while they come.
"""

from __future__ import annotations

from typing import NamedTuple

from mailslot.errors import BadAnswer

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Frame(NamedTuple):
    """One dispatched frame. `id` is None when the frame has none of its own: ids are not carried over."""

    event: str
    data: str
    id: str | None


class Parser:
    """Feed it bytes as they come; it gives the frames that are complete."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._rest = bytearray()
        self._at_start = True
        self._size_bytes = 0
        self._event = ""
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that these bytes complete."""
        # Only the new bytes are searched: a large frame in small reads must not cost the square of its size.
        *whole, rest = chunk.split(b"\n")
        frames = []
        for piece in whole:
            self._rest += piece
            frame = self._line(bytes(self._rest))
            self._rest.clear()
            if frame is not None:
                frames.append(frame)
        self._rest += rest
        self._bound(len(self._rest))
        return frames

    def _line(self, line: bytes) -> Frame | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(BYTE_ORDER_MARK)
        line = line.removesuffix(b"\r")
        if not line:
            return self._dispatch()
        if not line.startswith(b":"):
            self._bound(len(line))
            self._size_bytes += len(line)
            self._field(line)
        return None

    def _field(self, line: bytes) -> None:
        try:
            name, _, value = line.decode("utf-8").partition(":")
        except UnicodeDecodeError:
            raise BadAnswer("a line of the event stream is not UTF-8") from None
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            self._id = value

    def _dispatch(self) -> Frame | None:
        frame = Frame(self._event or "message", "\n".join(self._data), self._id) if self._data else None
        self._event, self._data, self._id, self._size_bytes = "", [], None, 0
        return frame

    def _bound(self, more_bytes: int) -> None:
        if self._size_bytes + more_bytes > self._frame_bytes_max:
            raise BadAnswer(f"a frame of the event stream has more than {self._frame_bytes_max} bytes")
