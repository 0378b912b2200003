"""A ledger as the server keeps it, read without the product: stream entries in, events out.

    XRANGE mailslot:{pNN}:s:<sid>:ledger - +
      b"12-0", {b"type": b"inbox/queued", b"time": b"1764554400123", b"epoch": b"3", b"data": b"\\x01" msgpack}
    --read--> Entry(seq=12, type="inbox/queued", time=…, epoch=3, data={…})

Rule 1: nothing here, or in what the checker is made of, imports the store, the contracts or a codec of ours. Who shares
        code with what is checked shares its mistakes.
Rule 2: what cannot be read is an `Unreadable`, with the name of the entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

VERSION: Final = 1
"""The byte before the msgpack of an event's data."""

RawEntry = tuple[bytes | str, Mapping[Any, Any]]
"""A stream entry as a client library gives it: its id, its fields."""


class Entry(NamedTuple):
    """One event of a ledger. It has the fields of the store's own event, so `Entry(*event)` is a copy of one."""

    seq: int
    type: str
    time: int
    epoch: int
    data: Mapping[str, Any]


class Unreadable(Exception):
    """`entry 12-0 cannot be read: …`"""


def read(raw: Iterable[RawEntry]) -> list[Entry]:
    """All entries of one stream, in its order."""
    return [read_entry(entry_id, fields) for entry_id, fields in raw]


def read_entry(entry_id: bytes | str, fields: Mapping[Any, Any]) -> Entry:
    """One entry. Raises `Unreadable`."""
    name = _text(entry_id)
    try:
        named = {_text(field): value for field, value in fields.items()}
        seq, _, rest = name.partition("-")
        if rest != "0":
            raise Unreadable(f"entry {name} cannot be read: its id is not <seq>-0")
        return Entry(int(seq), _text(named["type"]), int(named["time"]), int(named["epoch"]), _unpack(named["data"]))
    except (LookupError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise Unreadable(f"entry {name} cannot be read: {type(error).__name__}: {error}") from error


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _unpack(data: bytes) -> Mapping[str, Any]:
    if data[:1] != bytes([VERSION]):
        raise ValueError(f"its data is of version {data[0] if data else 'none'}, not {VERSION}")
    value = msgpack.unpackb(data[1:])
    if not isinstance(value, dict):
        raise TypeError(f"its data is a {type(value).__name__}, not a map")
    return value


Histories = Mapping[str, Sequence[Entry]]
"""Session id -> its whole ledger."""
