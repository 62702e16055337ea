"""Looks at the first objects and rows of a bulk job's input, for a dry run.

The same reading as planning's and the workers', but of little of the input. Writes nothing.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from nightshift import endpoints
from nightshift.bulk.rows.first_rows import FirstRows
from nightshift.bulk.rows.inputs import separator_of
from nightshift.bulk.rows.records import BadRow, InputFormat, InputObject, Row
from nightshift.bulk.rows.requests import RowRequest, parse_row, rows_of
from nightshift.bulk.rows.surveys import (
    FoundObject,
    first_objects,
    rows_estimated,
    with_guesses,
)
from nightshift.bulk.rows.watched_reader import ReadEnough, WatchedReader
from nightshift.endpoints import Endpoint
from nightshift.endpoints.endpoint import check_sizes
from nightshift.endpoints.requests import ModelRequest
from nightshift.errors import InvalidRequest, NightshiftError, StorageError, shortened
from nightshift.fleet.models import Model
from nightshift.jobs import InputError, JobSpec, JsonObject, NewShard
from nightshift.objectstore import MIB, Locations
from nightshift.objectstore.sources import Sources, is_file_id
from nightshift.objectstore.verdicts import input_fault, storage_verdict
from nightshift.process.settings import ANSWER_BYTES_MAX
from nightshift.tenants.rates import CHARS_PER_TOKEN

OBJECTS_MAX: Final = 1_000  # counted
LISTED_MAX: Final = 10_000  # to find them
SAMPLED_MAX: Final = 16  # whose rows are estimated; each costs a request
SAMPLE_BYTES: Final = 64 * 1024
ROWS_MAX: Final = 100  # tried
ROWS_BYTES_MAX: Final = 16 * MIB  # read for them, as stored
SHOWN_MAX: Final = 3  # rendered requests
SHOWN_BYTES_MAX: Final = 4 * 1024  # of each, as JSON
PROBLEMS_MAX: Final = 20


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A reason that would keep a job, or one row of it, from succeeding."""

    code: str
    message: str
    param: str | None = None
    object: str | None = None  # the input's object
    row: int | None = None  # in it, from 1
    is_permanent: bool = True  # False: the job would wait until it is gone

    @classmethod
    def from_error(cls, error: NightshiftError, source: str, uri: str | None = None) -> "Problem":
        """The problem that a job with the input `source` would show, or fail with."""
        is_ours = is_file_id(source)
        if storage_verdict(error, in_our_store=is_ours) == "fail":
            code = error.code or "unreadable_input"
            return cls(code=code, message=error.message, param=error.param or "input", object=uri)
        fault = input_fault(error, "input", in_our_store=is_ours)
        return cls(code=fault.code, message=fault.message, param=fault.param, object=uri, is_permanent=False)


@dataclass(frozen=True, kw_only=True)
class ShownRequest:
    """A row's request as it would be run. Where it is too long, `body_start` begins it and `body` is None."""

    object: str
    row: int
    custom_id: str
    body: JsonObject | None
    body_start: str | None
    body_bytes: int  # as JSON


@dataclass(frozen=True, kw_only=True)
class PreviewedObjects:
    """The input's objects: the first `OBJECTS_MAX`, or all (`is_whole`)."""

    objects: int
    size_bytes: int
    is_whole: bool
    rows_estimated: int | None
    tokens_estimated: int  # of the prompts, by the objects' bytes
    formats: list[str]
    separator: str | None  # between the values of the first object of CSV


@dataclass(frozen=True, kw_only=True)
class PreviewedRows:
    """The input's first rows."""

    rows_checked: int
    rows_with_problems: int
    is_end: bool  # nothing is left to read of the objects
    model: str | None  # the template's, or that of the first row that names one
    requests: list[ShownRequest]
    problems: list[Problem]  # the first `PROBLEMS_MAX`, of which one may be the whole job's


@dataclass(frozen=True, kw_only=True)
class Previewer:
    """`may_continue` is asked between two rows, objects and pieces read. One row is tried whatever it says:
    an answer that shows none tells nothing.
    """

    sources: Sources
    locations: Locations
    line_bytes_max: int
    models: Mapping[str, Model] = field(default_factory=dict)  # those of which sizes are known
    answer_bytes_max: int = ANSWER_BYTES_MAX
    may_continue: Callable[[], bool] = lambda: True

    def preview(
        self, spec: JobSpec, tenant_id: str, filename: str | None
    ) -> Iterator[PreviewedObjects | PreviewedRows | Problem]:
        """The objects, then the rows; a problem instead of what cannot be read. `filename`: the uploaded
        file's, None if the input is none or does not exist.
        """
        source, uri = spec.input, None
        assert source is not None, "a bulk job has an input"
        limits = {"objects_max": OBJECTS_MAX, "listed_max": LISTED_MAX}
        described: list[InputObject] = []
        try:
            spec, objects, is_whole = first_objects(
                spec, self.sources, self.locations, tenant_id, filename, **limits
            )
            for number, entry in enumerate(objects):
                if not self.may_continue():
                    is_whole = False
                    break
                uri = entry.uri
                described.append(self._described(entry, number))
            uri = None
            separator = self._separator(spec, objects)
        except (InvalidRequest, StorageError) as error:
            yield Problem.from_error(error, source, uri)
            return
        yield _summary(with_guesses(described), is_whole, separator)
        yield self._rows(spec, objects)

    def _check_sizes(self, request: ModelRequest, endpoint: Endpoint) -> None:
        """Checks sizes as a worker does before it runs a row. Raises InvalidRequest."""
        if (model := self.models.get(request.model)) is not None:
            check_sizes(endpoint, request, model, self.answer_bytes_max)

    def _described(self, entry: FoundObject, number: int) -> InputObject:
        """Describes the objects. More than its size is read only of the first ones."""
        if number < SAMPLED_MAX or entry.format is InputFormat.IMAGE:
            return entry.described(SAMPLE_BYTES)
        return entry.listed()

    def _separator(self, spec: JobSpec, objects: list[FoundObject]) -> str | None:
        """The separator of the first object of CSV."""
        for entry in objects:
            if entry.info.size_bytes and entry.format.delimiter is not None:
                key, etag = entry.info.key, entry.info.etag
                return separator_of(entry.reader, key, etag, entry.format, spec.options.separator)
        return None

    def _rows(self, spec: JobSpec, objects: list[FoundObject]) -> PreviewedRows:
        checked = _Checked(spec, self._check_sizes)
        size_bytes = 0

        def watch(piece_bytes: int) -> None:
            nonlocal size_bytes
            if size_bytes > ROWS_BYTES_MAX or (checked.rows and not self.may_continue()):
                raise ReadEnough
            size_bytes += piece_bytes

        for number, entry in enumerate(objects):
            if entry.info.size_bytes == 0 and entry.format is not InputFormat.IMAGE:
                continue  # no rows, in every format
            shard = NewShard(
                shard_no=number, uri=entry.uri, format=entry.format, start=0, end=None,
                source_etag=entry.info.etag,
            )  # fmt: skip
            reader = WatchedReader(entry.reader, watch)
            try:
                for row in rows_of(reader, entry.info.key, shard, spec, line_bytes_max=self.line_bytes_max):
                    checked.add(row, shard)
                    if checked.rows == ROWS_MAX or not self.may_continue():
                        return checked.report()
            except ReadEnough:
                return checked.report()
            except (InvalidRequest, StorageError) as error:
                checked.problems.append(Problem.from_error(error, entry.uri, entry.uri))
                return checked.report()
        return checked.report(is_end=True)


def _summary(objects: list[InputObject], is_whole: bool, separator: str | None) -> PreviewedObjects:
    size_bytes = sum(entry.size_bytes for entry in objects)
    return PreviewedObjects(
        objects=len(objects),
        size_bytes=size_bytes,
        is_whole=is_whole,
        rows_estimated=rows_estimated(objects),
        tokens_estimated=size_bytes // CHARS_PER_TOKEN,
        formats=sorted({entry.format for entry in objects}),
        separator=separator,
    )


@dataclass
class _Checked:
    """The rows tried so far."""

    spec: JobSpec
    check_sizes: Callable[[ModelRequest, Endpoint], None]
    rows_with_problems: int = 0
    requests: list[ShownRequest] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    first: FirstRows = field(init=False)

    def __post_init__(self) -> None:
        named = (self.spec.template or {}).get("model")
        self.first = FirstRows(self.spec, named if isinstance(named, str) else None)

    @property
    def rows(self) -> int:
        return self.first.rows

    def add(self, row: Row | BadRow, shard: NewShard) -> None:
        made = self.first.add(row, shard)
        number = row.index + 1
        if not isinstance(made, RowRequest):
            self._add_problem(made.code, made.message, made.param, shard.uri, number)
            return
        if len(self.requests) < SHOWN_MAX:
            self.requests.append(_shown(made, shard.uri, number))
        try:
            endpoint = endpoints.get(self.spec.endpoint)
            self.check_sizes(parse_row(made, self.spec, self.first.model, endpoint.parse), endpoint)
        except InvalidRequest as error:
            self._add_problem(error.code or "invalid_value", error.message, error.param, shard.uri, number)

    def report(self, *, is_end: bool = False) -> PreviewedRows:
        """Returns the rows so far; a problem that would fail the job comes first."""
        reason = self.first.objection()
        return PreviewedRows(
            rows_checked=self.rows,
            rows_with_problems=self.rows_with_problems,
            is_end=is_end,
            model=self.first.model,
            requests=self.requests,
            problems=[*([] if reason is None else [problem_of_job(reason)]), *self.problems][:PROBLEMS_MAX],
        )

    def _add_problem(self, code: str, message: str, param: str | None, uri: str, row: int) -> None:
        self.rows_with_problems += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(code=code, message=message, param=param, object=uri, row=row))


def problem_of_job(reason: InputError) -> Problem:
    """The reason why no row of a job can run, as a problem."""
    return Problem(code=reason.code, message=reason.message, param=reason.param or "input")


def _shown(request: RowRequest, uri: str, row: int) -> ShownRequest:
    text = json.dumps(request.body, ensure_ascii=False)
    size_bytes = len(text.encode(errors="surrogatepass"))
    is_short = size_bytes <= SHOWN_BYTES_MAX
    return ShownRequest(
        object=uri,
        row=row,
        custom_id=request.custom_id,
        body=request.body if is_short else None,
        body_start=None if is_short else shortened(text, SHOWN_BYTES_MAX),
        body_bytes=size_bytes,
    )
