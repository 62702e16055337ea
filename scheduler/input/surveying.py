"""Survey the input of a native job without reading it: its objects, about how many rows, whose model.

Only beginnings and footers are read: the cost grows with the objects, not with their size. A row that cannot
be run gets its own error when it is run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nightshift.jobs import InputError, Job, NewShard
from nightshift.lifecycle.catalogue import Catalogue
from nightshift.objectstore import Locations
from nightshift.objectstore.sources import Sources, is_file_id
from nightshift.rows.inputs import BadRow, InputFormat, InputObject, Row, iter_rows
from nightshift.rows.requests import RowProblem, RowRequest, columns_of, to_request
from nightshift.rows.surveys import FoundObject, objects_at, rows_estimated, uploaded_file, with_guesses
from nightshift.rows.watched_reader import WatchedReader
from nightshift.store import Store
from nightshift.tenants.rates import CHARS_PER_TOKEN
from scheduler.input.plan import Plan, Refused
from scheduler.input.sharding import ShardLimits, TooManyShards, cut_objects
from scheduler.runtime.duty import MayContinue, check, interruptible

NO_ROWS = InputError("empty_input", "The input has no rows.", param="input")
NO_MODEL = InputError(
    "missing_required_parameter",
    "No model is named: neither by the job's template nor in the 'body' of the first rows.",
    param="template.model",
)


@dataclass(frozen=True)
class SurveyConfig:
    limits: ShardLimits
    line_bytes_max: int  # one input row
    objects_sampled_max: int = 16  # the rest are estimated from these; each costs a request
    sample_bytes: int = 64 * 1024  # of each
    rows_tried_max: int = 100  # when looking for the model's name

    @property
    def rows_bytes_max(self) -> int:
        """What is read to find the first rows, as stored: blank lines may come before them."""
        return 4 * self.line_bytes_max


@dataclass(frozen=True)
class Surveyor:
    """Plans native jobs."""

    store: Store
    sources: Sources
    locations: Locations
    config: SurveyConfig

    def plan(self, job: Job, catalogue: Catalogue, may_continue: MayContinue) -> Plan:
        """Shards of about equal size. Raises Refused, InvalidRequest, StorageError and Interrupted."""
        objects = with_guesses(list(self._described(job, may_continue)))
        try:
            shards = cut_objects(objects, self.config.limits)
        except TooManyShards as error:
            raise Refused(InputError("too_many_objects", f"{error}.", param="input")) from error
        model = self._model(job, shards, may_continue)
        objection = catalogue.objection(model, job.spec.endpoint)
        if objection is not None:
            raise Refused(objection)
        return Plan(
            model=model,
            shards=shards,
            rows_estimated=rows_estimated(objects),
            tokens_estimated=sum(found.size_bytes for found in objects) // CHARS_PER_TOKEN,
        )

    def _described(self, job: Job, may_continue: MayContinue) -> Iterator[InputObject]:
        for number, found in enumerate(interruptible(self._objects(job, may_continue), may_continue)):
            yield found.described(self.config.sample_bytes if number < self.config.objects_sampled_max else 0)

    def _objects(self, job: Job, may_continue: MayContinue) -> Iterable[FoundObject]:
        assert job.spec.input is not None, "a bulk job has an input"
        if not is_file_id(job.spec.input):
            return objects_at(self.locations, job.spec.input, job.tenant_id, lambda: check(may_continue))
        with self.store.snapshot() as tx:
            file = tx.files.input(job.tenant_id, job.spec.input)
        name = None if file is None else file.filename
        return [uploaded_file(self.sources, job.spec.input, job.tenant_id, name)]

    def _model(self, job: Job, shards: Sequence[NewShard], may_continue: MayContinue) -> str:
        """The template's model, or the first row's that names one. Raises Refused."""
        reading = _Reading(self.config.rows_bytes_max, may_continue)
        rows = self._first_rows(job, shards, reading)
        first = next(rows, None)
        if first is None:
            raise Refused(_only_blank_lines(self.config.rows_bytes_max) if reading.is_over else NO_ROWS)
        if job.model is not None:
            return job.model
        for request in (first, *rows):
            if isinstance(request, RowRequest) and isinstance(request.body.get("model"), str):
                return str(request.body["model"])
        raise Refused(NO_MODEL)

    def _first_rows(
        self, job: Job, shards: Sequence[NewShard], reading: "_Reading"
    ) -> Iterator[RowRequest | RowProblem]:
        """Skips shards without rows, as long as `reading` is not over."""
        tried = 0
        for shard in interruptible(shards, reading.may_continue):
            try:
                for row in self._rows(job, shard, reading):
                    yield to_request(row, job.spec, shard)
                    tried += 1
                    if tried == self.config.rows_tried_max:
                        return
            except _ReadEnough:
                return

    def _rows(self, job: Job, shard: NewShard, reading: "_Reading") -> Iterator[Row | BadRow]:
        source = self.sources.open(shard.uri, job.tenant_id)
        # Formats of columns have no blank lines: the first rows are in the first group of rows that has any.
        has_columns = shard.format in (InputFormat.PARQUET, InputFormat.ARROW)
        watch = reading.go_on if has_columns else reading.add
        store = WatchedReader(source.store, watch)
        return iter_rows(
            store,
            source.key,
            shard,
            columns=columns_of(job.spec, shard),
            line_bytes_max=self.config.line_bytes_max,
        )


class _ReadEnough(Exception):
    """So much was read without finding what was looked for."""


@dataclass
class _Reading:
    """Counts the bytes read to find the first rows."""

    bytes_max: int
    may_continue: MayContinue
    bytes_read: int = 0

    @property
    def is_over(self) -> bool:
        return self.bytes_read > self.bytes_max

    def add(self, size_bytes: int) -> None:
        """Raises _ReadEnough for a piece after the limit, and Interrupted."""
        check(self.may_continue)
        if self.is_over:
            raise _ReadEnough
        self.bytes_read += size_bytes

    def go_on(self, size_bytes: int) -> None:
        """Raises Interrupted."""
        check(self.may_continue)


def _only_blank_lines(bytes_read: int) -> InputError:
    message = f"The first {bytes_read} bytes of the input have no rows."
    return InputError("empty_input", message, param="input")
