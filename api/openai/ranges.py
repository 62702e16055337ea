"""The Range header (RFC 9110, section 14)."""

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from fastapi.responses import JSONResponse, Response, StreamingResponse

from nightshift.endpoints.answers import error_body

CONTENT_TYPE: Final = "application/octet-stream"

_POSITION: Final = re.compile(r"[0-9]{0,18}")  # no file position has 19 digits


@dataclass(frozen=True)
class ByteRange:
    """The bytes [start, end) of `size_bytes`."""

    start: int
    end: int
    size_bytes: int

    @property
    def content_range(self) -> str:
        return f"bytes {self.start}-{self.end - 1}/{self.size_bytes}"


class Unsatisfiable(Exception):
    """The range begins after the file's end."""


def parse_range(header: str | None, size_bytes: int) -> ByteRange | None:
    """The requested range, or None for the whole file: without a header, or with one that may be ignored
    (several ranges, other units, too many digits). Raises Unsatisfiable.
    """
    unit, _, numbers = (header or "").partition("=")
    first, dash, last = (part.strip() for part in numbers.partition("-"))
    if unit.strip().lower() != "bytes" or not dash or first == last == "":
        return None
    if not _POSITION.fullmatch(first) or not _POSITION.fullmatch(last):
        return None
    if first == "":
        start, end = max(0, size_bytes - int(last)), size_bytes
    else:
        start, end = int(first), min(int(last or size_bytes) + 1, size_bytes)
        if last and int(last) < start:
            return None
    if start >= size_bytes:
        raise Unsatisfiable
    return ByteRange(start, end, size_bytes)


def ranged(
    pieces: AsyncIterator[bytes], length: int, part: ByteRange | None, headers: Mapping[str, str]
) -> Response:
    """The answer with `length` bytes: of the whole file, or of a part of it."""
    headers = {"accept-ranges": "bytes", **headers, "content-length": str(length)}
    if part is not None:
        headers["content-range"] = part.content_range
    return StreamingResponse(pieces, 200 if part is None else 206, headers, media_type=CONTENT_TYPE)


def unsatisfiable(size_bytes: int, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to such a range."""
    body = error_body("The range begins beyond the end of the file.", "invalid_request_error", param="Range")
    return JSONResponse(body, 416, {**(headers or {}), "content-range": f"bytes */{size_bytes}"})
