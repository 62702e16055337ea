"""Objects whose every step of reading is reported, so that it can be ended between two."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nightshift.objectstore import READ_BYTES_MAX, STREAM_CHUNK_BYTES, ObjectInfo, ObjectReader

Watch = Callable[[int], None]  # the bytes of a piece about to be used; raises to end the reading


class ReadEnough(Exception):
    """A `watch` has had enough."""


class ReadTooLarge(Exception):
    """A read of more bytes than the caller would hold."""


@dataclass(frozen=True)
class WatchedReader:
    """`inner`, with `watch` called before every request and with every piece. Raises what `watch` raises, and
    ReadTooLarge for a range of more than `range_bytes_max`, or without an end, where that is set.
    """

    inner: ObjectReader
    watch: Watch = lambda size_bytes: None
    range_bytes_max: int | None = None

    def head(self, key: str) -> ObjectInfo | None:
        self.watch(0)
        return self.inner.head(key)

    def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
        self.watch(0)
        return self.inner.read(key, min(size_bytes_max, self.range_bytes_max or size_bytes_max))

    def stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        chunk_bytes: int = STREAM_CHUNK_BYTES,
        *,
        if_match: str | None = None,
    ) -> Iterator[bytes]:
        if self.range_bytes_max is not None and (end is None or end - start > self.range_bytes_max):
            raise ReadTooLarge
        self.watch(0)
        for piece in self.inner.stream(key, start, end, chunk_bytes, if_match=if_match):
            self.watch(len(piece))
            yield piece

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        self.watch(0)
        for info in self.inner.list(prefix, start_after):
            self.watch(0)
            yield info
