"""JSON as it is stored: its text, its size, and the digest by which a repeated create is recognised.

`json.loads` and `json.dumps` hold Python's lock until they are done, in any thread: half a second for 40 MB.
`dumps` and `loads` call them for small parts, and other threads run between two of them.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

Encode = Callable[[object], str]
"""A compact encoder's method."""

LARGE_BYTES: Final = 1024 * 1024  # takes the standard library some 20 ms
PARTS_MAX: Final = 512  # parts of a value that is written in one call
DECODED_DEPTH: Final = 5  # where the log-probabilities of single tokens lie in an answer

_DECODER: Final = json.JSONDecoder()
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def dumps(value: object, encode: Encode = _ENCODER.encode) -> str:
    """Compact JSON, in ASCII."""
    return encode(value) if _is_small(value) else "".join(encoded(value, encode))


def encoded(value: object, encode: Encode = _ENCODER.encode) -> Iterator[str]:
    """The parts of what `dumps` returns."""
    if _is_small(value) or not isinstance(value, dict | list):
        yield encode(value)
    elif isinstance(value, dict):
        opening = "{"
        for name, part in value.items():
            yield f"{opening}{encode(name)}:"
            yield from encoded(part, encode)
            opening = ","
        yield "}"
    else:
        yield from _encoded_list(value, encode)


def _encoded_list(values: list[Any], encode: Encode) -> Iterator[str]:
    opening = "["
    for start in range(0, len(values), PARTS_MAX):
        some = values[start : start + PARTS_MAX]
        if _is_small(some):
            yield opening + encode(some)[1:-1]
            opening = ","
            continue
        for value in some:
            yield opening
            yield from encoded(value, encode)
            opening = ","
    yield "]"


def _is_small(value: object) -> bool:
    """Whether it has at most `PARTS_MAX` parts. Looks at no more of them."""
    left, parts = [value], 0
    while left:
        container = left.pop()
        if isinstance(container, dict | list):
            parts += len(container)
            if parts > PARTS_MAX:
                return False
            left.extend(container.values() if isinstance(container, dict) else container)
    return True


def loads(text: str) -> Any:
    """Decodes valid JSON; a large text in pieces, so that Python's lock is free between them."""
    if len(text) <= LARGE_BYTES:
        return json.loads(text)
    return _decoded(text, _SPACE.match(text).end(), DECODED_DEPTH)[0]  # type: ignore[union-attr]


def _decoded(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends."""
    if depth == 0 or text[at] not in "{[":
        return _DECODER.raw_decode(text, at)
    values: Any = {} if text[at] == "{" else []
    at = _after_space(text, at + 1)
    while text[at] not in "}]":
        if isinstance(values, dict):
            name, at = _DECODER.raw_decode(text, at)
            at = _after_space(text, _after_space(text, at) + 1)  # the colon
            values[name], at = _decoded(text, at, depth - 1)
        else:
            value, at = _decoded(text, at, depth - 1)
            values.append(value)
        at = _after_space(text, at)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return values, at + 1


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None, "there may be none"
    return space.end()


_UNICODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def json_bytes(value: object) -> int:
    """The bytes of a value as JSON, in ASCII."""
    return len(json.dumps(value))


def json_text(value: object) -> str:
    """Compact JSON that can be written as UTF-8: in ASCII where half a surrogate pair keeps it from that."""
    text = dumps(value, _UNICODE.encode)
    try:
        text.encode()
    except UnicodeEncodeError:
        return dumps(value)
    return text


def fingerprint(route: str, body: dict[str, Any]) -> str:
    """SHA-256 of the route and the body; the order of keys makes no difference."""
    canonical = json.dumps([route, body], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
