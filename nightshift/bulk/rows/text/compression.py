"""Decompresses gzip and zstd in pieces, with a limit on the ratio."""

import io
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from nightshift.bulk.rows.records import Compression, UnreadableInput
from nightshift.objectstore import MIB

GZIP_MAGIC: Final = b"\x1f\x8b"  # no UTF-8 text begins so
UNPACKED_BYTES_MAX: Final = 256 * 1024 * MIB
UNPACKED_RATIO_MAX: Final = 300  # text reaches 3 to 30, a decompression bomb about 1,000
_RATIO_GRACE_BYTES: Final = 16 * MIB  # before the ratio counts: a small file may be all one letter
_PIECE_BYTES: Final = 1 * MIB
_ZSTD_PIECE_BYTES: Final = 64 * 1024  # of the last piece before damage nothing is seen
_FIRST_BYTES: Final = 1024  # given to a member at once, and twice as many each time: what it leaves is copied
_GZIP_WINDOW_BITS: Final = 31
_PADDING: Final = re.compile(rb"\0+")


def is_gzip(head: bytes) -> bool:
    """Whether data that begin so are gzip."""
    return head.startswith(GZIP_MAGIC)


def unpacked(chunks: Iterable[bytes], compression: Compression) -> Iterator[bytes]:
    """An object's bytes without their compression. Raises `UnreadableInput`."""
    if compression is Compression.GZIP:
        return gunzipped(chunks)
    if compression is Compression.ZSTD:
        return _unpacked_zstd(chunks)
    return iter(chunks)


def gunzipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The unpacked bytes of all gzip members, in pieces of at most 1 MiB.

    Raises `UnreadableInput` for other data, a truncated stream, or a ratio over the limit.
    """
    packed_bytes = unpacked_bytes = 0
    given_bytes = _FIRST_BYTES
    member = zlib.decompressobj(_GZIP_WINDOW_BITS)
    is_inside = False
    for chunk in chunks:
        packed_bytes += len(chunk)
        place = 0
        while place < len(chunk):
            if not is_inside:
                padding = _PADDING.match(chunk, place)  # between and after members
                if padding is not None:
                    place = padding.end()
                    continue
                member, is_inside, given_bytes = zlib.decompressobj(_GZIP_WINDOW_BITS), True, _FIRST_BYTES
            given = chunk[place : place + given_bytes]
            piece = _unpacked(member, given)
            unpacked_bytes += len(piece)
            _check_size(packed_bytes, unpacked_bytes)
            if piece:
                yield piece
            place += len(given) - len(member.unused_data if member.eof else member.unconsumed_tail)
            is_inside, given_bytes = not member.eof, 2 * given_bytes
    if is_inside:
        raise UnreadableInput("The input's gzip data is cut short: store the whole object.")


def _unpacked_zstd(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The unpacked bytes of all frames. Windows of more than 128 MiB are refused, as by `zstd` itself."""
    # pyarrow takes half a second to import.
    import pyarrow as pa

    source = _Source(chunks)
    unpacked_bytes = 0
    try:
        with pa.CompressedInputStream(pa.PythonFile(source, mode="r"), "zstd") as stream:
            while piece := stream.read(_ZSTD_PIECE_BYTES):
                unpacked_bytes += len(piece)
                _check_size(source.bytes_read, unpacked_bytes)
                yield piece
    except (pa.ArrowException, OSError) as error:
        raise UnreadableInput(
            f"The input is not zstd, it is damaged, cut short, or has a window of more than 128 MiB: {error}."
        ) from error


class _Source(io.RawIOBase):
    """Chunks as a file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        super().__init__()
        self.bytes_read = 0
        self._chunks = iter(chunks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        wanted = len(self._rest) if size is None or size < 0 else size
        piece, self._rest = bytes(self._rest[:wanted]), self._rest[wanted:]
        self.bytes_read += len(piece)
        return piece


def _unpacked(member: "zlib._Decompress", data: bytes) -> bytes:
    try:
        return member.decompress(data, _PIECE_BYTES)
    except zlib.error as error:
        raise UnreadableInput(f"The input is not gzip, or it is damaged: {error}.") from error


def _check_size(packed_bytes: int, unpacked_bytes: int) -> None:
    if unpacked_bytes > UNPACKED_BYTES_MAX:
        raise UnreadableInput(f"The input unpacks to more than the {UNPACKED_BYTES_MAX} bytes allowed.")
    if unpacked_bytes > max(_RATIO_GRACE_BYTES, packed_bytes * UNPACKED_RATIO_MAX):
        raise UnreadableInput(
            f"The input unpacks to more than {UNPACKED_RATIO_MAX} times its size: store it unpacked."
        )
