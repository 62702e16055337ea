"""Objects of text, as UTF-8: unpacked and decoded as their first bytes say."""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from nightshift.bulk.rows.contents import HEAD_BYTES, PLAIN, Content, content_of
from nightshift.bulk.rows.records import Compression, UnreadableInput
from nightshift.bulk.rows.text.compression import unpacked

_UTF8_MARK: Final = codecs.BOM_UTF8


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
        head, stored = with_head(_decoded(stored, inner.encoding))
        inner = content_of(head, Compression.NONE)
    return Text(_without_mark(stored) if inner.is_array else stored, content, inner.is_array)


def with_head(chunks: Iterable[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, which are the first chunk of what is returned with them."""
    rest = iter(chunks)
    head = b""
    while len(head) < HEAD_BYTES and (chunk := next(rest, None)) is not None:
        head += chunk
    return head[:HEAD_BYTES], chain((head,), rest)


def _decoded(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
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
    return chain((next(rest, b"").removeprefix(_UTF8_MARK),), rest)
