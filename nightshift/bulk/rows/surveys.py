"""Look at an input without reading it whole: its objects, about how many rows they have, their rows.

For planning, and for dry runs, which read less of it (`previews.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nightshift.bulk.rows.inputs import describe
from nightshift.bulk.rows.records import InputFormat, InputObject, format_of
from nightshift.bulk.rows.tables.delta import delta_table
from nightshift.bulk.rows.watched_reader import Watch, WatchedReader
from nightshift.errors import InvalidRequest, ObjectNotFound
from nightshift.jobs import JobSpec
from nightshift.jobs.options import DELTA
from nightshift.jobs.planning import FIRST_PAGE, PlanCursor
from nightshift.objectstore import Locations, ObjectInfo, ObjectReader, ObjectUri
from nightshift.objectstore.sources import Sources, is_file_id


@dataclass(frozen=True)
class FoundObject:
    """An object of an input."""

    reader: ObjectReader
    info: ObjectInfo
    uri: str  # its name in shards
    format: InputFormat

    def described(self, sample_bytes: int) -> InputObject:
        """Describes it, with rows estimated by a sample (0: not). Raises UnreadableInput, StorageError."""
        return describe(self.reader, self.info, self.uri, self.format, sample_bytes=sample_bytes)

    def listed(self) -> InputObject:
        """Describes it by its size alone, without a request."""
        return InputObject(
            uri=self.uri, format=self.format, size_bytes=self.info.size_bytes, etag=self.info.etag
        )


@dataclass(frozen=True)
class Listed:
    """A key that was listed, and its object unless it lies beside those of the input."""

    key: str
    input_object: FoundObject | None


def objects_at(
    locations: Locations,
    uri: str,
    tenant_id: str,
    before_each: Callable[[], None],
    cursor: PlanCursor = FIRST_PAGE,
    format: str | None = None,
) -> Iterator[Listed]:
    """The objects at a location, from the cursor on. `format`: of them all; None: each one's own, by its
    name. Raises InvalidRequest, StorageError, and what `before_each` raises.
    """
    location = locations.pinned(ObjectUri.parse(uri), tenant_id)
    reader = locations.reader(location, tenant_id)
    for listed in locations.listed(
        location,
        tenant_id,
        before_each,
        after=cursor.after,
        matched=cursor.objects,
        listed=cursor.listed,
    ):
        yield Listed(
            listed.info.key, _found(reader, listed.info, location, format) if listed.is_match else None
        )


def objects_listed(
    locations: Locations,
    uris: Sequence[str],
    tenant_id: str,
    before_each: Callable[[], None],
    after: str | None,
    format: str | None = None,
) -> Iterator[Listed]:
    """The objects of a list, behind the one of the URI `after`, under their URIs. Raises as `objects_at`."""
    begin = 0 if after is None else uris.index(after) + 1
    for uri in uris[begin:]:
        for listed in objects_at(locations, uri, tenant_id, before_each, format=format):
            yield replace(listed, key=uri)


def with_files(
    locations: Locations, spec: JobSpec, tenant_id: str, watch: Watch, version: int | None = None
) -> tuple[JobSpec, int]:
    """A job over a Delta table as one over the Parquet files of a version, or the last one, and that version.

    Raises InvalidRequest, StorageError, and what `watch` raises before each piece that is read.
    """
    assert spec.input is not None, "a table is an input"
    location = locations.pinned(ObjectUri.parse(spec.input), tenant_id)
    reader = WatchedReader(locations.reader(location, tenant_id), watch)
    table = delta_table(reader, location, version)
    if not table.uris:
        raise InvalidRequest("The input has no rows.", param="input", code="empty_input")
    first, *further = table.uris
    options = replace(spec.options, input_format=InputFormat.PARQUET.value)
    return replace(spec, input=first, further_inputs=tuple(further), options=options), table.version


HEADS_MAX: Final = 256  # counted of a list, or of a table's files: each costs a request


def first_objects(
    spec: JobSpec,
    sources: Sources,
    locations: Locations,
    tenant_id: str,
    filename: str | None,
    *,
    objects_max: int,
    listed_max: int,
) -> tuple[JobSpec, list[FoundObject], bool]:
    """The first objects of a job's input, whether these are all, and the job, over a table's files if the
    input is a table. `filename`: an uploaded file's. Raises InvalidRequest, StorageError.
    """
    assert spec.input is not None, "a bulk job has an input"
    if spec.options.input_format == DELTA:
        spec, _ = with_files(locations, spec, tenant_id, lambda size_bytes: None)
    assert spec.input is not None, "a table has files"
    format = spec.options.input_format
    if is_file_id(spec.input):
        return spec, [uploaded_file(sources, spec.input, tenant_id, filename, format)], True
    if spec.further_inputs:
        first = spec.inputs[:HEADS_MAX]
        listed = objects_listed(locations, first, tenant_id, lambda: None, None, format)
        objects = [entry.input_object for entry in listed if entry.input_object is not None]
        return spec, objects, len(first) == len(spec.inputs)
    objects, is_whole = _first_objects_at(
        locations, spec.input, tenant_id, format, objects_max=objects_max, listed_max=listed_max
    )
    return spec, objects, is_whole


def _first_objects_at(
    locations: Locations,
    uri: str,
    tenant_id: str,
    format: str | None = None,
    *,
    objects_max: int,
    listed_max: int,
) -> tuple[list[FoundObject], bool]:
    """The first objects at a location, and whether these are all. Raises InvalidRequest, StorageError."""
    location = locations.pinned(ObjectUri.parse(uri), tenant_id)
    reader = locations.reader(location, tenant_id)
    first, is_whole = locations.first(location, tenant_id, objects_max=objects_max, listed_max=listed_max)
    return [_found(reader, info, location, format) for info in first], is_whole


def _found(reader: ObjectReader, info: ObjectInfo, location: ObjectUri, format: str | None) -> FoundObject:
    """Raises UnreadableInput for a name without a known ending."""
    uri = str(location.with_key(info.key))
    return FoundObject(reader, info, uri, _format(format, uri))


def _format(told: str | None, name: str) -> InputFormat:
    return format_of(name) if told is None else InputFormat(told)


def uploaded_file(
    sources: Sources, file_id: str, tenant_id: str, filename: str | None, format: str | None = None
) -> FoundObject:
    """An uploaded file: its name tells its format unless `format` does; its key does not. `filename`: None if
    there is no such file. Raises UnreadableInput, StorageError.
    """
    assert is_file_id(file_id), file_id
    source = sources.open(file_id, tenant_id)
    info = source.store.head(source.key) if filename is not None else None
    if filename is None or info is None:
        raise ObjectNotFound(f"There is no file {file_id}.")
    return FoundObject(source.store, info, file_id, _format(format, filename))


def with_guesses(objects: Sequence[InputObject]) -> list[InputObject]:
    """Objects that were not sampled get as many rows per byte as those that were. Pure."""
    sampled = [entry for entry in objects if entry.rows_estimated is not None]
    sampled_bytes = sum(entry.size_bytes for entry in sampled)
    if not sampled_bytes:
        return list(objects)
    rows_per_byte = sum(entry.rows_estimated or 0 for entry in sampled) / sampled_bytes
    return [
        entry
        if entry.rows_estimated is not None
        else replace(entry, rows_estimated=round(entry.size_bytes * rows_per_byte))
        for entry in objects
    ]


def rows_estimated(objects: Sequence[InputObject]) -> int | None:
    """The estimated number of rows. None if no object has an estimate. Pure."""
    known = [entry.rows_estimated for entry in objects if entry.rows_estimated is not None]
    return sum(known) if known else None
