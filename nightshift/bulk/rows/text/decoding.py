"""What a file that is stored must be, checked while it is streamed."""

import codecs
from collections.abc import Iterable, Iterator

from nightshift.bulk.rows.contents import HEAD_BYTES, content_name
from nightshift.bulk.rows.text.compression import GZIP_MAGIC, is_gzip
from nightshift.errors import InvalidRequest
from nightshift.jobs.files import FilePurpose


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
    yield from _utf8(head, rest, param)


def _utf8(head: bytes, rest: Iterable[bytes], param: str) -> Iterator[bytes]:
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
