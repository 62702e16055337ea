"""Limits the size, slowness and nesting of request bodies.

Bytes are counted as they arrive, so the limit also holds without a length, and nothing beyond it is in
memory. Uploads are streamed and have their own limit.
"""

import asyncio
import json
import math
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NoReturn

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nightshift.endpoints.containers import TOO_MANY, has_too_many_entries
from nightshift.errors import InvalidRequest, RequestTimedOut, RequestTooLarge
from nightshift.jobs import JsonObject
from nightshift.jobs.files import PART_BYTES_MAX
from nightshift.process.settings import ApiSettings

UPLOAD_PATH: Final = "/v1/files"
PART_PATH: Final = re.compile(r"/v1/uploads/[^/]+/parts")
MORE_PARTS: Final = "Send the rest of the file as further parts."
UPLOAD_OVERHEAD_BYTES: Final = 64 * 1024  # of multipart encoding around the file

# A body's time limit, plus its bytes at this rate.
BODY_S: Final = 30.0
BODY_BYTES_PER_S_MIN: Final = 16 * 1024

LENGTH_DIGITS_MAX: Final = 20  # of a Content-Length; any number of so many is too large

JSON_DEPTH_MAX: Final = 64  # nested containers; a chat request needs about eight
PLACE_CHARS_MAX: Final = 100  # of a field's path in a message

_CONTAINERS: Final = (dict, list)
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_NUL: Final = re.compile(r"\0")


class BodyLimit:
    """ASGI middleware: a body that is too large or too slow raises RequestTooLarge or RequestTimedOut in
    the handler.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = _LimitedBody(receive, scope, self._settings)
        await self._app(scope, receive, send)


def larger_files(settings: ApiSettings) -> str:
    """The advice to send a larger file in parts."""
    return f"Send a file of up to {settings.upload_bytes_max} bytes in parts, with POST /v1/uploads."


class _LimitedBody:
    def __init__(self, receive: Receive, scope: Scope, settings: ApiSettings) -> None:
        self._receive = receive
        self._settings = settings
        self._is_part = PART_PATH.fullmatch(scope["path"]) is not None
        self._bytes_max = settings.body_bytes_max
        if self._is_part or scope["path"] == UPLOAD_PATH:
            file_bytes_max = PART_BYTES_MAX if self._is_part else settings.file_bytes_max
            self._bytes_max = file_bytes_max + UPLOAD_OVERHEAD_BYTES
        length: bytes = dict(scope.get("headers", ())).get(b"content-length", b"")
        self._announced_bytes = int(length[:LENGTH_DIGITS_MAX]) if length.isdigit() else 0
        self._bytes_seen = 0
        self._began_s: float | None = None  # at the first read
        self._has_ended = False  # then `receive` waits for the disconnect

    async def __call__(self) -> Message:
        if self._has_ended:
            return await self._receive()
        if self._announced_bytes > 2 * self._bytes_max:
            raise self._too_large()  # more than would be discarded: not waited for
        message = await self._next()
        if self._bytes_seen > self._bytes_max:
            await self._discard(message)
            raise self._too_large()
        self._has_ended = not message.get("more_body", False)
        return message

    def _too_large(self) -> RequestTooLarge:
        advice = MORE_PARTS if self._is_part else larger_files(self._settings)
        return RequestTooLarge(
            f"The request body is larger than the {self._bytes_max} bytes accepted here. {advice}"
        )

    async def _next(self) -> Message:
        now_s = asyncio.get_running_loop().time()
        if self._began_s is None:
            self._began_s = now_s
        due_s = self._began_s + BODY_S + self._bytes_seen / BODY_BYTES_PER_S_MIN
        try:
            async with asyncio.timeout(due_s - now_s):
                message = await self._receive()
        except TimeoutError as error:
            raise RequestTimedOut from error
        self._bytes_seen += len(message.get("body", b""))
        return message

    async def _discard(self, message: Message) -> None:
        """Reads and drops up to as much again, so that a client that still sends gets the answer instead of a
        broken pipe.
        """
        with suppress(RequestTimedOut):
            while message.get("more_body", False) and self._bytes_seen <= 2 * self._bytes_max:
                message = await self._next()


def parse_json_object(raw: bytes) -> JsonObject:
    """A JSON object that can be stored. Raises InvalidRequest."""
    if has_too_many_entries(raw):
        raise InvalidRequest(f"The request body has {TOO_MANY}.", code="invalid_json")
    try:
        # Decoded first: from bytes, json.loads also accepts UTF-16 and UTF-8 encoded surrogates.
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise _unreadable("it is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise _unreadable(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:
        raise _unreadable(f"an integer has more than {sys.get_int_max_str_digits()} digits") from error
    except RecursionError as error:
        raise _too_deep() from error
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.", code="invalid_type")
    if raw.count(b"[") + raw.count(b"{") > JSON_DEPTH_MAX:
        _check_depth(value)
    if b"\\u" in raw:
        _check_text(value)
    return value


def _check_depth(value: JsonObject) -> None:
    """Level by level, without recursion."""
    level: list[Any] = [value]
    for _ in range(JSON_DEPTH_MAX):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, _CONTAINERS)
        ]
        if not level:
            return
    raise _too_deep()


def _check_text(value: JsonObject) -> None:
    """NUL characters and lone surrogates are valid JSON, but cannot be stored."""
    try:
        text = json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _not_storable(value, "half of a surrogate pair", _SURROGATE) from error
    if b"\\u0000" in text.replace(rb"\\", b""):
        raise _not_storable(value, "a NUL character", _NUL)


def _not_storable(value: JsonObject, what: str, pattern: re.Pattern[str]) -> InvalidRequest:
    """An error naming the field, unless the character is in the field's name."""
    place = next(_matching_fields(value, "", pattern))[:PLACE_CHARS_MAX]
    where = f"the text of '{place}'" if place else "the name of a field"
    return _unreadable(f"{where} holds {what}", param=place or None)


def _matching_fields(value: Any, place: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """The paths of fields with such a character, as `messages[0].content`; empty for a field's name."""
    if isinstance(value, str):
        yield from [place] if pattern.search(value) else []
    elif isinstance(value, list):
        for index, child in enumerate(value):
            if not isinstance(child, str) or pattern.search(child):  # most have no need of a path
                yield from _matching_fields(child, f"{place}[{index}]", pattern)
    elif isinstance(value, dict):
        for name, child in value.items():
            if pattern.search(name):
                yield ""
            else:
                yield from _matching_fields(child, f"{place}.{name}" if place else name, pattern)


def _refuse_constant(name: str) -> NoReturn:
    raise _unreadable(f"{name} is not JSON")


def _finite(digits: str) -> float:
    """`1e999` is valid JSON that Python reads as infinity."""
    value = float(digits)
    if math.isinf(value):
        raise _unreadable("a number is too large")
    return value


def _unreadable(why: str, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(f"The request body is not valid JSON: {why}.", code="invalid_json", param=param)


def _too_deep() -> InvalidRequest:
    return InvalidRequest(
        f"The request body is nested more than {JSON_DEPTH_MAX} levels deep.", code="invalid_json"
    )
