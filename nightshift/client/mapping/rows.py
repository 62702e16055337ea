"""The data of a call: a location, or a table's rows as a file of JSON lines, checked as it is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final

from nightshift.bulk.rows.templates import root_of
from nightshift.client.mapping.calls import DIGEST_CHARS, MapCall
from nightshift.client.mapping.cells import NoJson, as_json_line, as_json_value, key_text, refused
from nightshift.client.mapping.tables import Records, Table, column_missing, table_of
from nightshift.errors import InvalidRequest

SPOOL_BYTES: Final = 16 * 1024 * 1024  # of the file in memory; a larger one is on disk until it is sent
ROW_BYTES_MAX: Final = 4 * 1024 * 1024  # as services have it that are not told otherwise
ID_FIELD: Final = "_row"
LOCATIONS: Final = ("s3://", "file://", "hf://", "file-")


@dataclass(frozen=True)
class MapData:
    """`places`: rows by their ids, in order. A location has no table, and its rows are not known here.

    `digest`: the same for the same rows. `file`: what is to be uploaded, of `size_bytes`.
    """

    digest: str
    table: Table | None = None
    places: Mapping[str, int] = field(default_factory=dict)
    location: str | None = None
    file: IO[bytes] | None = None
    size_bytes: int = 0
    id_field: str | None = None

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def data_of(data: object, call: MapCall) -> MapData:
    """Checks and writes everything that a call sends. Raises InvalidRequest for what cannot be sent."""
    if isinstance(data, str):
        return _location(data, call)
    if call.output is not None:
        raise _invalid("output", "it is for data that are a location; a table comes back with its columns")
    table = table_of(data)
    if taken := [name for name in call.form.columns if name in table.columns]:
        raise _invalid(
            f"output_schema.properties.{taken[0]}" if call.form.schema else "data",
            f"the data have a column '{taken[0]}' already: rename one of them",
        )
    return _written(table, call)


def places_of(table: Table, key: str | None) -> dict[str, int]:
    """The rows of a table by their ids: their keys, or their places. Raises InvalidRequest."""
    _check_columns(table, [] if key is None else [key], "key")
    places: dict[str, int] = {}
    names = [key] if key is not None else table.columns[:1]
    for row, values in enumerate(table.rows(names)):
        _take_place(places, _id_of(key, values[0], row) if key is not None else str(row), row, key)
    return places


def table_of_keys(ids: Sequence[str], key: str | None) -> Table:
    """A table for answers whose rows are not at hand: their keys, or their places in order."""
    if key is not None:
        return Records([{key: id} for id in ids])
    return Records([{"row": int(id)} for id in sorted(ids, key=int)])


def _location(location: str, call: MapCall) -> MapData:
    if not location.startswith(LOCATIONS):
        raise _invalid("data", f"{location!r} is no location such as s3://bucket/docs/ or file:///docs.csv")
    if call.output is None:
        raise _invalid(
            "output",
            "name the folder for the answers, such as s3://bucket/answers/, since the "
            "rows are not here to be joined to them",
        )
    digest = sha256(f"{location}\n{call.output}".encode()).hexdigest()[:DIGEST_CHARS]
    return MapData(digest, location=location, id_field=call.key)


def _written(table: Table, call: MapCall) -> MapData:
    wanted = list(dict.fromkeys(root_of(name, table.columns) for name in call.columns))
    _check_columns(table, wanted, "prompt")
    key = call.key
    _check_columns(table, [] if key is None else [key], "key")
    names = wanted if key is None or key in wanted else [*wanted, key]
    id_field = next(name for width in count() if (name := "_" * width + ID_FIELD) not in wanted)
    places: dict[str, int] = {}
    digest, size_bytes = sha256(), 0
    file = SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 closed with the data
    try:
        for row, values in enumerate(table.rows(names)):
            id = str(row) if key is None else _id_of(key, values[names.index(key)], row)
            _take_place(places, id, row, key)
            line = as_json_line({id_field: id} | _record(wanted, values, row))
            if len(line) > ROW_BYTES_MAX:
                raise _invalid(
                    "data", f"row {row} (from 0) has {len(line)} bytes, of {ROW_BYTES_MAX} at most"
                )
            digest.update(line)
            size_bytes += file.write(line)
        if not places:
            raise _invalid("data", "there are no rows")
    except BaseException:
        file.close()
        raise
    return MapData(digest.hexdigest()[:DIGEST_CHARS], table, places, None, file, size_bytes, id_field)


def _check_columns(table: Table, names: Sequence[str], param: str) -> None:
    for name in names:
        if name not in table.columns:
            raise column_missing(param, name, table.columns)


def _record(names: Sequence[str], values: Sequence[Any], row: int) -> dict[str, Any]:
    record = {}
    for name, value in zip(names, values, strict=False):  # the key comes behind them
        try:
            record[name] = as_json_value(value)
        except NoJson as error:
            raise refused(name, row, error) from error
    return record


def _id_of(key: str, value: Any, row: int) -> str:
    try:
        return key_text(value)
    except NoJson as error:
        raise refused(key, row, error) from error


def _take_place(places: dict[str, int], id: str, row: int, key: str | None) -> None:
    if places.setdefault(id, row) != row:
        raise _invalid(
            "key", f"'{key}' has {id!r} in rows {places[id]} and {row} (from 0), and a key is of one row"
        )


def _invalid(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{param}': {what}.", param=param)
