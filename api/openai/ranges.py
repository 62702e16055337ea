"""The Range header (RFC 9110, section 14)."""

import re
from dataclasses import dataclass

# No file position has 19 digits.
_RANGE = re.compile(r"bytes\s*=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})", re.IGNORECASE)


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
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        start, end = max(0, size_bytes - int(match[2])), size_bytes
    else:
        start, end = int(match[1]), min(int(match[2] or size_bytes) + 1, size_bytes)
        if match[2] and int(match[2]) < start:
            return None
    if start >= size_bytes:
        raise Unsatisfiable
    return ByteRange(start, end, size_bytes)
