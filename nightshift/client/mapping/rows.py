"""The data of a call: a location, or a table's rows as a file of JSON lines, checked as it is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final

from nightshift.bulk.rows.templates import root_of
from nightshift.client.mapping.calls import DIGEST_CHARS, MapCall
from nightshift.client.mapping.cells import NoJson, as_json_line, as_json_value, key_text, refused
from nightshift.client.mapping.forms import OutputForm, invalid
from nightshift.client.mapping.tables import Table, table_of

SPOOL_BYTES: Final = 16 * 1024 * 1024  # of the file in memory; a larger one is on disk until it is sent
ROW_BYTES_MAX: Final = 4 * 1024 * 1024  # as services have it that are not told otherwise
ID_FIELD: Final = "_row"
LOCATIONS: Final = ("s3://", "file://", "hf://", "file-")


@dataclass(frozen=True)
class MapData:
    """The data as a call sends them. `digest`: the same for the same rows.

    `location`: where the rows are that are not here. Otherwise `ids` are those of the table's rows, in
    order, and `file` is to be uploaded, of `size_bytes`.
    """

    digest: str
    id_field: str | None
    location: str | None = None
    table: Table | None = None
    ids: Sequence[str] = ()
    file: IO[bytes] | None = None
    size_bytes: int = 0

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def data_of(data: object, call: MapCall) -> MapData:
    """Checks and writes everything that a call sends. Raises InvalidRequest for what cannot be sent."""
    if isinstance(data, str):
        return _location(data, call)
    if call.output is not None:
        raise invalid("output", "it is for data that are a location; a table comes back with its columns")
    return _written(table_for(call.form, data), call)


def table_for(form: OutputForm, data: object) -> Table:
    """The caller's table, to which the columns of the form are to be added. Raises InvalidRequest."""
    table = table_of(data)
    columns = table.columns
    if taken := [name for name in form.columns if name in columns]:
        raise invalid(
            f"output_schema.properties.{taken[0]}" if form.schema else "data",
            f"the data have a column '{taken[0]}' already: rename one of them",
        )
    return table


def ids_of(table: Table, key: str | None) -> list[str]:
    """The ids of a table's rows: their keys, or their places. Raises InvalidRequest."""
    if key is None:
        return [str(row) for row in range(table.row_count)]
    _check_columns(table.columns, [key], "key")
    places: dict[str, int] = {}
    for row, (value,) in enumerate(table.rows([key])):
        try:
            id = key_text(value)
        except NoJson as error:
            raise refused(key, row, error) from error
        if places.setdefault(id, row) != row:
            raise invalid(
                "key", f"'{key}' has {id!r} in rows {places[id]} and {row} (from 0), and a key is of one row"
            )
    return list(places)


def _location(location: str, call: MapCall) -> MapData:
    if not location.startswith(LOCATIONS):
        raise invalid("data", f"{location!r} is no location such as s3://bucket/docs/ or file:///docs.csv")
    if call.output is None:
        raise invalid(
            "output",
            "name the folder for the answers, such as s3://bucket/answers/, since the "
            "rows are not here to be joined to them",
        )
    digest = sha256(f"{location}\n{call.output}".encode()).hexdigest()[:DIGEST_CHARS]
    return MapData(digest, call.key, location)


def _written(table: Table, call: MapCall) -> MapData:
    columns = table.columns
    names = list(dict.fromkeys(root_of(name, columns) for name in call.columns))
    _check_columns(columns, names, "prompt")
    ids = ids_of(table, call.key)
    if not ids:
        raise invalid("data", "there are no rows")
    id_field = next(name for width in count() if (name := "_" * width + ID_FIELD) not in names)
    digest, size_bytes = sha256(), 0
    file = SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 closed with the data
    try:
        for row, (id, values) in enumerate(zip(ids, table.rows(names), strict=True)):
            line = as_json_line({id_field: id} | _record(names, values, row))
            if len(line) > ROW_BYTES_MAX:
                raise invalid("data", f"row {row} (from 0) has {len(line)} bytes, of {ROW_BYTES_MAX} at most")
            digest.update(line)
            size_bytes += file.write(line)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return MapData(digest.hexdigest()[:DIGEST_CHARS], id_field, None, table, ids, file, size_bytes)


def _check_columns(columns: Sequence[Any], names: Sequence[str], param: str) -> None:
    for name in names:
        if name not in columns:
            listed = ", ".join(one if isinstance(one, str) else f"{one!r} (no text)" for one in columns)
            what = f"there is no column '{name}'; the data have: {listed or 'none'}"
            if param == "prompt":
                what += f". For the text {{{{{name}}}}} itself, give a column that has it"
            raise invalid(param, what, "missing_column")


def _record(names: Sequence[str], values: Sequence[Any], row: int) -> dict[str, Any]:
    record = {}
    for name, value in zip(names, values, strict=True):
        try:
            record[name] = as_json_value(value)
        except NoJson as error:
            raise refused(name, row, error) from error
    return record
