"""A row's result as a line of a segment, an OpenAI file or a part file.

Line shapes are OpenAI's. A segment ends with a trailer (row count, CRC-32) that a truncated object lacks.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nightshift.errors import StorageError
from nightshift.jobs import InputError, JsonObject, Segment, StopReason, Usage
from nightshift.objectstore import ObjectStore, read_verified

NOT_EXECUTED: Final = {
    StopReason.EXPIRED: "This request could not be executed before the completion window expired.",
    StopReason.CANCELLED: "This request was not executed because the batch was cancelled.",
    StopReason.FAILED: "This request was not executed because the batch failed.",
}

INTERRUPTED: Final = InputError(
    "interrupted", "The worker was lost while it had this request, which may be run only once."
)

SHARD_GIVEN_UP: Final = InputError(
    "shard_given_up", "No worker could run the part of the input that this request is in."
)

SEGMENT_BYTES_MAX: Final = 1024 * 1024 * 1024  # a segment is read whole


class CorruptSegment(StorageError):
    """A segment's trailer is missing or does not match."""

    default_code = "corrupt_segment"


@dataclass(frozen=True, kw_only=True, slots=True)
class RowResult:
    """A row's recorded result: an HTTP-like status and a body."""

    row: int  # from 0 in its shard
    custom_id: str
    id: str  # `batch_req_…`
    request_id: str  # `req_…`
    status_code: int
    body: JsonObject
    usage: Usage

    @property
    def succeeded(self) -> bool:
        return self.status_code < 400

    def openai_line(self) -> JsonObject:
        """Its line in an output or error file."""
        response = {"status_code": self.status_code, "request_id": self.request_id, "body": self.body}
        return {"id": self.id, "custom_id": self.custom_id, "response": response, "error": None}

    def native_line(self) -> JsonObject:
        """Its line in a part file."""
        return self.openai_line() | {"outcome": "succeeded" if self.succeeded else "errored"}

    def usage_json(self) -> list[int]:
        """As a segment has it."""
        return [self.usage.prompt_tokens, self.usage.completion_tokens, self.usage.cached_tokens]

    @classmethod
    def from_json(cls, data: JsonObject) -> "RowResult":
        """From its line in a segment."""
        line = data["line"]
        response = line["response"]
        return cls(
            row=data["row"],
            custom_id=line["custom_id"],
            id=line["id"],
            request_id=response["request_id"],
            status_code=response["status_code"],
            body=response["body"],
            usage=Usage(*data["usage"]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NotExecuted:
    """A row without a result: its job ended first, or its shard was given up."""

    custom_id: str
    id: str
    reason: StopReason
    error: InputError | None = None  # more specific than the reason

    def openai_line(self) -> JsonObject:
        known = self.error or InputError(self.reason.row_error_code, NOT_EXECUTED[self.reason])
        error = {"code": known.code, "message": known.message}
        return {"id": self.id, "custom_id": self.custom_id, "response": None, "error": error}

    def native_line(self) -> JsonObject:
        outcome = "errored" if self.reason is StopReason.FAILED else self.reason.value
        return self.openai_line() | {"outcome": outcome}


def json_text(value: Any) -> str:
    """JSON on one line, valid as UTF-8."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate is valid only when escaped
        return json.dumps(value, separators=(",", ":"))
    return text


def json_line(value: Any) -> bytes:
    """A JSONL line with its newline."""
    return json_text(value).encode() + b"\n"


@dataclass(frozen=True)
class EncodedSegment:
    """A segment's bytes, and how many its successes' lines have in an output file."""

    data: bytes
    output_bytes: int


def encode_segment(results: Sequence[RowResult]) -> EncodedSegment:
    """Results as a segment: lines and a trailer."""
    encoded: list[bytes] = []
    output_bytes = 0
    for result in results:
        line = json_text(result.openai_line()).encode()
        usage = json_text(result.usage_json())
        encoded.append(b'{"row":%d,"usage":%b,"line":%b}\n' % (result.row, usage.encode(), line))
        output_bytes += (len(line) + 1) * result.succeeded
    lines = b"".join(encoded)
    trailer = json_line({"rows": len(results), "crc32": zlib.crc32(lines)})
    return EncodedSegment(lines + trailer, output_bytes)


def output_lines(results: Iterable[RowResult]) -> Iterator[bytes]:
    """The lines of the successes, as an output file has them."""
    return (json_line(result.openai_line()) for result in results if result.succeeded)


def decode_segment(data: bytes) -> list[RowResult]:
    """A segment's results. Raises CorruptSegment."""
    lines, newline, trailer = data.removesuffix(b"\n").rpartition(b"\n")
    lines += newline
    try:
        closing = json.loads(trailer)
        intact = closing["crc32"] == zlib.crc32(lines) and closing["rows"] == lines.count(b"\n")
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptSegment("A segment has no trailer: it is truncated or is none.") from error
    if not intact:
        raise CorruptSegment("A segment's checksum does not match: it is damaged.")
    return [RowResult.from_json(json.loads(line)) for line in lines.splitlines()]


def read_segment(objects: ObjectStore, segment: Segment) -> list[RowResult]:
    """A listed segment's results.

    Raises `ObjectDamaged` if the bytes differ from the listed sha256, `CorruptSegment`, StorageError.
    """
    return decode_segment(read_verified(objects, segment.key, segment.sha256, SEGMENT_BYTES_MAX))
