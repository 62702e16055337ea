"""Messages between the process that reads rows and the one that decodes their object: a kind, a length, and
as many bytes, over a socket.
"""

import json
import socket
import struct
from typing import Any, Final

MEMORY_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Memory for decoding one object. Rows of Parquet are decoded a few at a time, but a batch of Arrow must be
in memory whole, as must a row. Each object that is being read may take as much."""
CPU_S: Final = 30  # what decoding may take between two batches; 1 GiB takes a few seconds
MESSAGE_BYTES_MAX: Final = MEMORY_BYTES_MAX // 2
"""The largest message that is accepted: the process that decodes has it in memory beside the values in it."""

# From the process that decodes.
OPENED: Final = b"o"  # JSON: the object's columns and row groups
FETCH: Final = b"f"  # a range of the object's bytes is wanted; they are sent without a head
SCHEMA: Final = b"s"  # of the batches that follow
BATCH: Final = b"b"
TOO_LONG: Final = b"l"  # the size of a row that is left out
BAD_VALUES: Final = b"v"  # JSON: columns of the next batch, which is one row, that cannot be read, and why
DONE: Final = b"d"  # JSON: the answer, once all is sent
FAILED: Final = b"e"  # why the object cannot be read

# From the process that reads.
ASKED: Final = b"a"  # JSON

_HEAD: Final = struct.Struct("<cQ")
_RANGE: Final = struct.Struct("<QQ")


class TooLargeMessage(Exception):
    """The other end says that it sends more bytes at once than are accepted."""


class Channel:
    """One end of the socket. Methods raise EOFError or OSError once the other end is closed."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def send(self, kind: bytes, payload: "bytes | memoryview") -> None:
        self.end.sendall(_HEAD.pack(kind, len(payload)))
        self.end.sendall(payload)

    def send_json(self, kind: bytes, value: Any) -> None:
        self.send(kind, json.dumps(value).encode())

    def receive(self) -> tuple[bytes, bytearray]:
        """Raises `TooLargeMessage`."""
        head = bytearray(_HEAD.size)
        self.receive_into(memoryview(head))
        kind, size_bytes = _HEAD.unpack(head)
        if size_bytes > MESSAGE_BYTES_MAX:
            raise TooLargeMessage(f"A part of it has {size_bytes} bytes, more than {MESSAGE_BYTES_MAX}.")
        payload = bytearray(size_bytes)
        self.receive_into(memoryview(payload))
        return kind, payload

    def receive_into(self, place: memoryview) -> None:
        while place:
            received = self.end.recv_into(place)
            if not received:
                raise EOFError
            place = place[received:]

    def fetch(self, start: int, place: memoryview) -> None:
        """Fills `place` with the object's bytes from `start` on."""
        self.send(FETCH, _RANGE.pack(start, start + len(place)))
        self.receive_into(place)


def range_of(payload: bytearray) -> tuple[int, int]:
    start, end = _RANGE.unpack(payload)
    return start, end
