"""Objects whose every step of reading is reported, so that planning can be ended between two."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nightshift.objectstore import READ_BYTES_MAX, STREAM_CHUNK_BYTES, ObjectInfo, ObjectReader

Watch = Callable[[int], None]  # the bytes of a piece about to be used; raises to end the reading


@dataclass(frozen=True)
class WatchedReader:
    """`inner`, with `watch` called before every request and with every piece. Raises what `watch` raises."""

    inner: ObjectReader
    watch: Watch

    def head(self, key: str) -> ObjectInfo | None:
        self.watch(0)
        return self.inner.head(key)

    def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
        self.watch(0)
        return self.inner.read(key, size_bytes_max)

    def stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        chunk_bytes: int = STREAM_CHUNK_BYTES,
        *,
        if_match: str | None = None,
    ) -> Iterator[bytes]:
        self.watch(0)
        for piece in self.inner.stream(key, start, end, chunk_bytes, if_match=if_match):
            self.watch(len(piece))
            yield piece

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        self.watch(0)
        for info in self.inner.list(prefix, start_after):
            self.watch(0)
            yield info


class ReadTooLarge(Exception):
    """A read of more bytes than the caller would hold."""


@dataclass(frozen=True)
class ShortReader:
    """`inner`, of which little is read at a time. Raises ReadTooLarge for more than `bytes_max`."""

    inner: ObjectReader
    bytes_max: int

    def head(self, key: str) -> ObjectInfo | None:
        return self.inner.head(key)

    def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
        return self.inner.read(key, min(size_bytes_max, self.bytes_max))

    def stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        chunk_bytes: int = STREAM_CHUNK_BYTES,
        *,
        if_match: str | None = None,
    ) -> Iterator[bytes]:
        if end is None or end - start > self.bytes_max:
            raise ReadTooLarge
        return self.inner.stream(key, start, end, chunk_bytes, if_match=if_match)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, start_after)
