"""What shards read and write, and how long they wait for the object store."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from nightshift.objectstore.objects import READ_BYTES_MAX, STREAM_CHUNK_BYTES, ObjectInfo, ObjectReader


@dataclass
class Amount:
    bytes: int = 0
    seconds: float = 0.0


@dataclass
class StorageCounts:
    """Of a worker, since its start. Thread-safe."""

    read: Amount = field(default_factory=Amount)  # inputs
    written: Amount = field(default_factory=Amount)  # segments, and tokens of unfinished rows
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def waiting(self, amount: Amount) -> Iterator[Self]:
        """For the store, inside the block; also where it fails."""
        began_s = time.monotonic()
        try:
            yield self
        finally:
            self.add(amount, seconds=time.monotonic() - began_s)

    def add(self, amount: Amount, *, bytes: int = 0, seconds: float = 0.0) -> None:
        with self._lock:
            amount.bytes += bytes
            amount.seconds += seconds


class CountedReader(ObjectReader):
    """A store whose reads are counted, by one thread."""

    def __init__(self, store: ObjectReader, counts: StorageCounts) -> None:
        self._store = store
        self._counts = counts
        self._asked_s: float | None = None  # when the request under way began

    @property
    def silent_s(self) -> float:
        """How long the request under way has had no answer; 0: there is none. For any thread."""
        asked_s = self._asked_s
        return 0.0 if asked_s is None else time.monotonic() - asked_s

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._asked_s = time.monotonic()
        try:
            with self._counts.waiting(self._counts.read):
                yield
        finally:
            self._asked_s = None

    def head(self, key: str) -> ObjectInfo | None:
        with self._waiting():
            return self._store.head(key)

    def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
        with self._waiting():
            data = self._store.read(key, size_bytes_max)
        self._counts.add(self._counts.read, bytes=len(data))
        return data

    def stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        chunk_bytes: int = STREAM_CHUNK_BYTES,
        *,
        if_match: str | None = None,
    ) -> Iterator[bytes]:
        pieces = self._store.stream(key, start, end, chunk_bytes, if_match=if_match)
        while True:
            with self._waiting():
                piece = next(pieces, None)
            if piece is None:
                return
            self._counts.add(self._counts.read, bytes=len(piece))
            yield piece

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        return self._store.list(prefix, start_after)
