"""A row's result, and its line in an OpenAI file or a part file, whose shapes are OpenAI's."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nightshift import endpoints
from nightshift.endpoints.results import Identity, Origin, Result, Values
from nightshift.jobs import InputError, Job, JsonObject, StopReason, Usage
from nightshift.jobs.priorities import PriorityClass

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


@dataclass(frozen=True, slots=True)
class ShardHead:
    """Facts that the ids and bodies of all results of a shard share."""

    name: str  # `<job id>/<shard number>`
    endpoint: str  # its route
    model: str
    created_s: int  # when the job was
    priority: PriorityClass

    @classmethod
    def of_shard(cls, job: Job, shard_no: int) -> "ShardHead":
        assert job.model is not None, "a job with shards was planned, and so has a model"
        created_s = int(job.created_at.timestamp())
        return cls(f"{job.id}/{shard_no}", job.spec.endpoint, job.model, created_s, job.priority)

    def identity(self, row: int) -> Identity:
        return Identity(f"{self.name}/{row}", self.created_s)


@dataclass(kw_only=True, slots=True)  # one for each row: frozen ones take longer to make
class RowResult:
    """A row's recorded result: an HTTP-like status, and an answer as values or as a body."""

    shard: ShardHead
    row: int  # from 0 in its shard
    custom_id: str
    status_code: int
    usage: Usage
    values: Values = field(default_factory=dict)
    body_text: str | None = None  # JSON on one line; None: it is written from the values
    kept: str | None = None  # columns of its input, JSON on one line; None: its job keeps nothing
    digest: bytes | None = None  # its request's (`row_digests`); None: not known, or it has no good result
    is_reused: bool = False  # the result of another row with this digest

    @classmethod
    def from_result(
        cls,
        shard: ShardHead,
        row: int,
        custom_id: str,
        result: Result,
        kept: str | None = None,
        digest: bytes | None = None,
    ) -> "RowResult":
        return cls(
            shard=shard,
            row=row,
            custom_id=custom_id,
            status_code=result.status_code,
            usage=result.usage,
            values=result.values,
            body_text=None if result.body is None else _dumps(result.body),
            kept=kept,
            digest=digest,
        )

    @property
    def succeeded(self) -> bool:
        return self.status_code < 400

    @property
    def num_chars(self) -> int:
        """About how much it takes in a segment."""
        values = sum(map(len, filter(None, self.values.values())))
        return values + len(self.body_text or "") + len(self.kept or "")

    @property
    def id(self) -> str:
        return self.shard.identity(self.row).id("batch_req_")

    @property
    def request_id(self) -> str:
        return self.shard.identity(self.row).id("req_")

    @property
    def body(self) -> JsonObject:
        if self.body_text is not None:
            body: JsonObject = json.loads(self.body_text)
            return body
        origin = Origin(self.shard.identity(self.row), self.shard.model, self.shard.priority)
        return endpoints.get(self.shard.endpoint).body(origin, self.values, self.usage)

    @property
    def outcome(self) -> str:
        return "succeeded" if self.succeeded else "errored"

    def reused(self, shard: ShardHead, row: int, custom_id: str, kept: str | None) -> "RowResult":
        """The result of this row taken over from another row with the same digest. The answer's id becomes
        this row's.
        """
        body_text = self.body_text
        if body_text is not None:
            body_text = endpoints.get(shard.endpoint).renamed(
                body_text, self.shard.identity(self.row), shard.identity(row)
            )
        return replace(
            self,
            shard=shard,
            row=row,
            custom_id=custom_id,
            body_text=body_text,
            kept=kept,
            is_reused=True,
        )

    def with_body(self) -> "RowResult":
        return self if self.body_text is not None else replace(self, body_text=_dumps(self.body))

    def openai_line(self) -> bytes:
        """The row's line in an output or error file, with its newline."""
        return self._line(self.id, "", "")

    def native_line(self, id: str | None = None) -> bytes:
        """The row's line in a part file, with its newline, or with another id."""
        columns = "" if self.kept is None else f',"columns":{self.kept}'
        return self._line(id or self.id, columns, f',"outcome":"{self.outcome}"')

    def _line(self, id: str, columns: str, more: str) -> bytes:
        """The body's text goes into the line as it is, and that of the columns: no number is parsed."""
        body = self.with_body().body_text
        response = f'{{"status_code":{self.status_code},"request_id":"{self.request_id}","body":{body}}}'
        head = f'"id":"{id}","custom_id":{_dumps(self.custom_id)}{columns}'
        return _encoded(f'{{{head},"response":{response},"error":null{more}}}')


@dataclass(frozen=True, kw_only=True, slots=True)
class NotExecuted:
    """A row without a result: its job ended first, or its shard was given up."""

    custom_id: str | None  # None: of an online request
    id: str
    reason: StopReason
    error: InputError | None = None  # more specific than the reason
    kept: str | None = None  # as in a result

    @property
    def problem(self) -> InputError:
        return self.error or InputError(self.reason.row_error_code, NOT_EXECUTED[self.reason])

    @property
    def outcome(self) -> str:
        return "errored" if self.reason is StopReason.FAILED else self.reason.value

    def openai_line(self) -> bytes:
        return self._line("", "")

    def native_line(self) -> bytes:
        """The row's line in a part file. The columns' text goes into it as it is."""
        columns = "" if self.kept is None else f',"columns":{self.kept}'
        return self._line(columns, f',"outcome":"{self.outcome}"')

    def _line(self, columns: str, more: str) -> bytes:
        error = _dumps({"code": self.problem.code, "message": self.problem.message})
        head = f'"id":"{self.id}","custom_id":{_dumps(self.custom_id)}{columns}'
        return _encoded(f'{{{head},"response":null,"error":{error}{more}}}')


def output_lines(results: Iterable[RowResult]) -> Iterator[bytes]:
    """The lines of the successes, as an output file has them."""
    return (result.openai_line() for result in results if result.succeeded)


def json_line(value: Any) -> bytes:
    """A JSONL line with its newline."""
    return _encoded(_dumps(value))


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _encoded(text: str) -> bytes:
    """JSON as a line of UTF-8: a lone surrogate is valid only when escaped."""
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(json.loads(text), separators=(",", ":")).encode() + b"\n"
