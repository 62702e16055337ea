"""Objects of text, as UTF-8: unpacked and decoded as their first bytes say."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from nightshift.bulk.rows.contents import HEAD_BYTES, PLAIN, Content, content_name, content_of
from nightshift.bulk.rows.records import Compression, UnreadableInput
from nightshift.bulk.rows.text.compression import GZIP_MAGIC, is_gzip, unpacked
from nightshift.errors import InvalidRequest
from nightshift.jobs.files import FilePurpose


@dataclass(frozen=True)
class Text:
    """An object's text from its beginning. `stored`: how its bytes are stored."""

    pieces: Iterator[bytes]
    stored: Content
    is_array: bool  # of JSON

    @property
    def is_plain(self) -> bool:
        """Whether the object can be entered in the middle."""
        return self.stored.is_plain


def text_of(chunks: Iterable[bytes], named: Compression) -> Text:
    """`named`: the compression in the object's name. Raises `UnreadableInput` for what is no text; so does
    reading the pieces, for data that are damaged.
    """
    head, stored = with_head(chunks)
    content = inner = content_of(head, named)
    if content.compression is not Compression.NONE:
        head, stored = with_head(unpacked(stored, content.compression))
        inner = content_of(head, Compression.NONE)
        if inner.compression is not Compression.NONE:
            raise UnreadableInput(f"It is packed twice, within by {inner.compression.name.lower()}.")
    if inner.encoding != PLAIN.encoding:
        head, stored = with_head(_as_utf8(stored, inner.encoding))
        inner = content_of(head, Compression.NONE)
    return Text(_without_mark(stored) if inner.is_array else stored, content, inner.is_array)


def with_head(chunks: Iterable[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, which are the first chunk of what is returned with them."""
    rest = iter(chunks)
    head = b""
    while len(head) < HEAD_BYTES and (chunk := next(rest, None)) is not None:
        head += chunk
    return head[:HEAD_BYTES], chain((head,), rest)


def _as_utf8(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """The text as UTF-8. Raises `UnreadableInput`."""
    decoder = codecs.getincrementaldecoder(encoding)()
    read_bytes = 0
    try:
        for chunk in chunks:
            yield decoder.decode(chunk).encode()
            read_bytes += len(chunk)
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:
        name = encoding.upper()
        raise UnreadableInput(f"It is not {name} after byte {read_bytes}: {error}.") from error


def _without_mark(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = iter(chunks)
    return chain((next(rest, b"").removeprefix(codecs.BOM_UTF8),), rest)


def checked_pieces(pieces: Iterable[bytes], purpose: FilePurpose, *, param: str) -> Iterator[bytes]:
    """The same bytes. Raises InvalidRequest at the first one that a batch file may not have: it is UTF-8, or
    gzip, which is unpacked when it is read.
    """
    rest = iter(pieces)
    head = b""
    while len(head) < len(GZIP_MAGIC) and (piece := next(rest, None)) is not None:
        head += piece
    if head:
        yield head
    if purpose is not FilePurpose.BATCH or is_gzip(head):
        yield from rest
        return
    yield from _utf8_pieces(head, rest, param)


def _utf8_pieces(head: bytes, rest: Iterable[bytes], param: str) -> Iterator[bytes]:
    """The rest of a text that begins with `head`. Raises InvalidRequest."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(head)
        for piece in rest:
            decoder.decode(piece)
            yield piece
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        name = content_name(head[:HEAD_BYTES])
        why = "" if name is None or name.startswith("text") else f" It is {name}."
        raise InvalidRequest(
            f"The file is not UTF-8 text, as a batch file must be.{why}", param=param, code="invalid_encoding"
        ) from error
