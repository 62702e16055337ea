"""Surveys the input of a native job without reading it: its objects, about how many rows, whose model.

Only beginnings and footers are read: the cost grows with the objects, not with their size. Pages of the
listing become pages of shards; what is held does not grow with the objects.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from nightshift.bulk.rows.contents import HEAD_BYTES
from nightshift.bulk.rows.first_rows import FirstRows
from nightshift.bulk.rows.inputs import BadRow, InputFormat, InputObject, Row
from nightshift.bulk.rows.requests import rows_of
from nightshift.bulk.rows.surveys import (
    FoundObject,
    Listed,
    objects_at,
    objects_listed,
    uploaded_file,
    with_files,
)
from nightshift.bulk.rows.watched_reader import ReadTooLarge, WatchedReader
from nightshift.jobs import InputError, Job, NewShard
from nightshift.jobs.options import DELTA
from nightshift.lifecycle.catalogue import Catalogue
from nightshift.lifecycle.reuse import other_model
from nightshift.objectstore import Locations, ObjectUri
from nightshift.objectstore.sources import Sources, is_file_id
from nightshift.store import Store
from nightshift.tenants.rates import CHARS_PER_TOKEN
from scheduler.input.pages import Refused, ShardPage
from scheduler.input.sharding import CutPage, Cutter, ShardLimits
from scheduler.runtime.duty import MayContinue, check, interruptible
from scheduler.runtime.thread_pools import map_in_threads

LISTED_AHEAD: Final = 64  # objects whose beginnings or footers are read side by side
AHEAD_BYTES_MAX: Final = 256 * 1024  # read of each; a longer footer is read by itself

NO_ROWS = InputError("empty_input", "The input has no rows.", param="input")


@dataclass(frozen=True)
class SurveyConfig:
    limits: ShardLimits
    line_bytes_max: int  # one input row
    objects_sampled_max: int = 16  # the rest are estimated from these; each costs a request
    sample_bytes: int = 64 * 1024  # read of each
    read_at_once: int = 16  # beginnings and footers
    rows_tried_max: int = 100  # until one can run

    @property
    def rows_bytes_max(self) -> int:
        """Bytes read to find the first rows, as stored: blank lines may come before them."""
        return 4 * self.line_bytes_max


@dataclass(frozen=True)
class Surveyor:
    """Plans native jobs."""

    store: Store
    sources: Sources
    locations: Locations
    config: SurveyConfig

    def pages(self, job: Job, catalogue: Catalogue, may_continue: MayContinue) -> Iterator[ShardPage]:
        """Shards of about equal size, from the job's cursor on. Raises Refused, InvalidRequest, StorageError
        and Interrupted.
        """
        if job.spec.options.input_format == DELTA:
            job = self._over_files(job, may_continue)
        cutter = Cutter(self.config.limits, job.plan_cursor)
        model = job.model if job.plan_cursor.shards else None
        reading = _Reading(self.config.rows_bytes_max, may_continue, job.plan_cursor.blank_bytes)

        for cut in self._cut(job, cutter, may_continue):
            if model is None and cut.shards:
                model = self._model(job, cut.shards, catalogue, reading)
                if model is None:
                    cut = cutter.leave_out(cut, reading.bytes_read)
            if cut.is_last and not cut.next.shards:
                raise Refused(NO_ROWS)
            yield _page(cut, model)

    def at_commit(self, job: Job) -> Job:
        """The job over its dataset as it was at its first page; others as they are. Raises StorageError."""
        assert job.spec.input is not None, "a bulk job has an input"
        if job.spec.further_inputs or is_file_id(job.spec.input):
            return job
        location, commit = ObjectUri.parse(job.spec.input), job.plan_cursor.commit
        location = location.at_commit(commit) if commit else self.locations.pinned(location, job.tenant_id)
        cursor = replace(job.plan_cursor, commit=location.commit)
        return replace(job, spec=replace(job.spec, input=str(location)), plan_cursor=cursor)

    def _over_files(self, job: Job, may_continue: MayContinue) -> Job:
        """The job over the files of its table, at the version of its first page. Raises as `pages`."""
        cursor = job.plan_cursor
        spec, version = with_files(
            self.locations,
            job.spec,
            job.tenant_id,
            lambda size_bytes: check(may_continue),
            cursor.table_version,
        )
        return replace(job, spec=spec, plan_cursor=replace(cursor, table_version=version))

    def _cut(self, job: Job, cutter: Cutter, may_continue: MayContinue) -> Iterator[CutPage]:
        for listed, described in self._described(job, may_continue):
            yield from cutter.add(listed.key, described)
        yield cutter.rest()

    def _described(self, job: Job, may_continue: MayContinue) -> Iterator[tuple[Listed, InputObject | None]]:
        """Objects of the listing with their descriptions, some of which are made side by side."""
        objects = job.plan_cursor.objects
        listed = self._listed(job, may_continue)
        while chunk := list(islice(listed, LISTED_AHEAD)):
            todo = []
            for entry in chunk:
                is_sampled = objects < self.config.objects_sampled_max
                todo.append(
                    _Survey(entry, self.config.sample_bytes if is_sampled else self._head_bytes(entry))
                )
                objects += entry.input_object is not None
            ahead = [survey for survey in todo if survey.reads]
            made = map_in_threads(
                lambda survey: survey.made_ahead(may_continue), ahead, self.config.read_at_once
            )
            known = {survey.listed.key: described for survey, described in zip(ahead, made, strict=True)}
            for survey in todo:
                check(may_continue)
                yield survey.listed, known.get(survey.listed.key) or survey.made()

    def _head_bytes(self, listed: Listed) -> int:
        """Bytes read of an object that is not sampled: a long one is only cut if its text can be entered in
        the middle. A short one is one shard, whose worker sees that.
        """
        is_cut = (
            listed.input_object is not None
            and listed.input_object.info.size_bytes > self.config.limits.shard_bytes
        )
        return HEAD_BYTES if is_cut else 0

    def _listed(self, job: Job, may_continue: MayContinue) -> Iterator[Listed]:
        assert job.spec.input is not None, "a bulk job has an input"
        format = job.spec.options.input_format
        if job.spec.further_inputs:
            yield from objects_listed(
                self.locations,
                job.spec.inputs,
                job.tenant_id,
                lambda: check(may_continue),
                job.plan_cursor.after,
                format,
            )
            return
        if not is_file_id(job.spec.input):
            yield from objects_at(
                self.locations,
                job.spec.input,
                job.tenant_id,
                lambda: check(may_continue),
                job.plan_cursor,
                format,
            )
            return
        if job.plan_cursor.after is not None:
            return
        with self.store.snapshot() as tx:
            file = tx.files.input(job.tenant_id, job.spec.input)
        name = None if file is None else file.filename
        uploaded = uploaded_file(self.sources, job.spec.input, job.tenant_id, name, format)
        yield Listed(job.spec.input, uploaded)

    def _model(
        self, job: Job, shards: Sequence[NewShard], catalogue: Catalogue, reading: "_Reading"
    ) -> str | None:
        """The template's model, or the first row's that names one. None: the shards have no rows.

        Raises Refused, also if none of the first rows can run.
        """
        first = self._first_rows(job, shards, reading)
        if not first.rows:
            if reading.is_over:
                raise Refused(_only_blank_lines(self.config.rows_bytes_max))
            return None
        reason = first.objection()
        if reason is not None:
            raise Refused(reason)
        model = first.model
        assert model is not None, "without one there is an objection"
        objection = catalogue.objection(model, job.spec.endpoint)
        if objection is not None:
            raise Refused(objection)
        self._check_reuse(job, model)
        return model

    def _check_reuse(self, job: Job, model: str) -> None:
        """Raises Refused where the rows name another model than that of the run to be reused."""
        if job.spec.reused_job is None:
            return
        with self.store.snapshot() as tx:
            earlier = tx.jobs.get(job.tenant_id, job.spec.reused_job)
        refused = None if earlier is None else other_model(job, earlier, model)
        if refused is not None:
            raise Refused(refused)

    def _first_rows(self, job: Job, shards: Sequence[NewShard], reading: "_Reading") -> FirstRows:
        """Skips shards without rows, as long as `reading` is not over."""
        first = FirstRows(job.spec, job.model)
        for shard in interruptible(shards, reading.may_continue):
            try:
                for row in self._rows(job, shard, reading):
                    first.add(row, shard)
                    if first.is_settled or first.rows == self.config.rows_tried_max:
                        return first
            except _ReadEnough:
                return first
        return first

    def _rows(self, job: Job, shard: NewShard, reading: "_Reading") -> Iterator[Row | BadRow]:
        source = self.sources.open(shard.uri, job.tenant_id)
        # Formats of columns have no blank lines: the first rows are in the first group of rows that has any.
        has_columns = shard.format in (InputFormat.PARQUET, InputFormat.ARROW)
        watch = reading.go_on if has_columns else reading.add
        store = WatchedReader(source.store, watch)
        return rows_of(store, source.key, shard, job.spec, line_bytes_max=self.config.line_bytes_max)


def _page(cut: CutPage, model: str | None) -> ShardPage:
    return ShardPage(
        model=model,
        shards=cut.shards,
        rows_estimated=cut.rows_estimated,
        tokens_estimated=cut.size_bytes // CHARS_PER_TOKEN,
        next=None if cut.is_last else cut.next,
    )


@dataclass(frozen=True)
class _Survey:
    """A listed object, of which format, rows and size are to be described."""

    listed: Listed
    sample_bytes: int

    @property
    def reads(self) -> bool:
        """Whether that takes requests."""
        entry = self.listed.input_object
        if entry is None or entry.info.size_bytes == 0 or entry.format is InputFormat.IMAGE:
            return False
        return entry.format is InputFormat.PARQUET or self.sample_bytes > 0

    def made_ahead(self, may_continue: MayContinue) -> InputObject | None:
        """The object, described ahead of its turn. None: it takes too much memory to be made beside
        others.
        """
        check(may_continue)
        assert self.listed.input_object is not None, "it is read"
        reader = WatchedReader(self.listed.input_object.reader, range_bytes_max=AHEAD_BYTES_MAX)
        try:
            return self._described(replace(self.listed.input_object, reader=reader))
        except ReadTooLarge:
            return None

    def made(self) -> InputObject | None:
        return None if self.listed.input_object is None else self._described(self.listed.input_object)

    def _described(self, entry: FoundObject) -> InputObject:
        if entry.info.size_bytes == 0 and entry.format is not InputFormat.IMAGE:  # no Parquet either
            return InputObject(uri=entry.uri, format=entry.format, size_bytes=0, etag=entry.info.etag)
        return entry.described(self.sample_bytes)


class _ReadEnough(Exception):
    """The limit of bytes was read without finding a row."""


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
