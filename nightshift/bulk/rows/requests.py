"""Turns an input row into a request.

A row is a line of an OpenAI batch file (custom_id, method, url, body), or a record for a template. An error
in one row does not affect the others.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeGuard, TypeVar
from urllib.parse import unquote

from nightshift import endpoints
from nightshift.bulk.rows.inputs import KEY_COLUMN, BadRow, InputFormat, Row, iter_rows
from nightshift.bulk.rows.kept_values import NOTHING, kept_text
from nightshift.bulk.rows.records import Layout
from nightshift.bulk.rows.templates import columns, known_columns, render, value_of
from nightshift.bulk.rows.values import Unusable, as_id, check_usable, is_rounded, kind_of
from nightshift.errors import InvalidRequest
from nightshift.jobs import JobSpec, JsonObject, NewShard, ShardObject
from nightshift.jobs.options import KEEP_ALL
from nightshift.objectstore import ObjectReader

CUSTOM_ID_CHARS_MAX: Final = 512  # OpenAI's
RECORD_ID_CHARS_MAX: Final = 512  # ids may be URLs and paths
QUOTED_CHARS_MAX: Final = 80  # of a value in a message
URI_CHARS_MAX: Final = 200  # of an object in a message
BATCH_LINE_FIELDS: Final = ("custom_id", "method", "url", "body")
_STEPS: Final = re.compile(r"([^.\[\]]+)|\[([0-9]{1,9})\]")
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
NUL: Final = "\0"  # PostgreSQL cannot store it


class _HasModel(Protocol):
    @property
    def model(self) -> str: ...


Parsed = TypeVar("Parsed", bound=_HasModel)


@dataclass(slots=True)  # one for each row: frozen ones take longer to make
class RowRequest:
    custom_id: str
    body: JsonObject
    kept: str | None = None  # of the row's columns, as a JSON object; None: the job keeps none
    object: ShardObject | None = None  # that is the row: where the body names it, it is the one planned


@dataclass(frozen=True, slots=True)
class RowProblem:
    """The reason why a row has no request."""

    custom_id: str
    code: str
    message: str
    param: str | None = None
    kept: str | None = None  # as in a request; JSON's null if the row cannot be read


@lru_cache(maxsize=256)
def partition_columns(uri: str) -> Mapping[str, str | None]:
    """The columns that an object's folders name, as Hive writes them: `…/date=2026-11-20/lang=en/a.parquet`.

    Texts or null. The innermost folder counts where one is named twice.
    """
    scheme, separator, path = uri.partition("://")
    if not separator:
        return MappingProxyType({})  # a file id
    columns_named: dict[str, str | None] = {}
    for folder in path.split("/")[1:-1]:  # not the bucket, not the object
        # In a file: URI the key is quoted once more.
        name, equals, value = (unquote(folder) if scheme == "file" else folder).partition("=")
        if name and equals:
            columns_named[unquote(name)] = None if value == HIVE_NULL else unquote(value)
    return MappingProxyType(columns_named)


def columns_of(spec: JobSpec, shard: NewShard) -> frozenset[str] | None:
    """The columns, and parts of columns, that a shard's rows use of their object. None: all."""
    kept = spec.options.keep_columns
    if kept == KEEP_ALL:
        return None
    named = set(BATCH_LINE_FIELDS) if spec.template is None else columns(spec.template)
    named |= ({spec.id_column} if spec.id_column else set()) | set(kept or ())
    return frozenset(named) - partition_columns(shard.uri).keys()


def rows_of(
    store: ObjectReader, key: str, shard: NewShard, spec: JobSpec, *, line_bytes_max: int
) -> Iterator[Row | BadRow]:
    """The rows of a job's shard, as `iter_rows`, with the columns that the job uses."""
    return iter_rows(
        store,
        key,
        shard,
        line_bytes_max=line_bytes_max,
        columns=columns_of(spec, shard),
        separator=spec.options.separator,
    )


def to_request(row: Row | BadRow, spec: JobSpec, shard: NewShard) -> RowRequest | RowProblem:
    """A row's request. A row without an id gets its number."""
    number = row_number(row, shard)
    if isinstance(row, BadRow):
        return RowProblem(number, row.code, row.message, kept=kept_of(row, spec, shard))
    try:
        kept = _kept(row, spec, shard)
        if spec.template is None:
            request = replace(_batch_line(row.data, spec.endpoint, number), kept=kept)
        else:
            record = _record(row, shard)
            custom_id = _id_of_record(record, _id_column(spec, shard, record), number, shard)
            request = RowRequest(custom_id, render(spec.template, record), kept, row.object)
        if (effort := spec.options.reasoning_effort) is not None:
            request.body = endpoints.get(spec.endpoint).with_effort(request.body, effort)
        if _layout(shard) in (Layout.PARQUET, Layout.ARROW):
            check_usable(request.body.values())  # of lists and structs
        return request
    except InvalidRequest as error:
        return RowProblem(
            custom_id_of(row, spec, shard),
            error.code or "invalid_value",
            error.message,
            error.param,
            kept_of(row, spec, shard),
        )


def parse_row(
    request: RowRequest, spec: JobSpec, model: str | None, parse: Callable[[JsonObject], Parsed]
) -> Parsed:
    """A row's typed request. `parse`: its endpoint's. Raises InvalidRequest, which names the columns that the
    wrong field is made of.
    """
    try:
        parsed = parse(request.body)
    except InvalidRequest as error:
        names = sorted(columns(_at(spec.template, error.param or "")))
        if not names:
            raise
        quoted_names = " and ".join(f"'{name}'" for name in names)
        from_columns = f" It is made of the column{'s' * (len(names) > 1)} {quoted_names}."
        raise InvalidRequest(f"{error.message}{from_columns}", param=error.param, code=error.code) from error
    if parsed.model != model:
        raise InvalidRequest(
            f"This job runs '{model}'; the row asks for '{parsed.model}'.",
            param="model",
            code="mismatched_model",
        )
    return parsed


def _at(template: Any, param: str) -> str | None:
    """The text of a template that a field is in, if it is one text."""
    for name, number in _STEPS.findall(param):
        if isinstance(template, dict):
            template = template.get(name)
        elif isinstance(template, list) and number and int(number) < len(template):
            template = template[int(number)]
        else:
            break
    return template if isinstance(template, str) else None


def place_of(row_index: int, shard: NewShard, object: ShardObject | None = None) -> str:
    """The place of a row, as the end of a message; of a long URI its end. `object`: one that is the row.

    A shard that does not begin with its object knows its rows by where it begins.
    """
    if object is not None:
        return f" It is {_quoted_end(object.uri)}."
    begins = {
        Layout.JSONL: f" from byte {shard.start} on",
        Layout.PARQUET: f" from row group {shard.start} on",
    }
    after = begins.get(_layout(shard), "") if shard.start else ""
    return f" It is row {row_index + 1}{after} of {_quoted_end(shard.uri)}."


def without_place(message: str) -> str:
    """A row's message without what `place_of` puts at its end, which no other row's message has."""
    return message.rpartition(" It is ")[0] or message


def _quoted_end(uri: str) -> str:
    return repr(uri if len(uri) <= URI_CHARS_MAX else f"…{uri[-URI_CHARS_MAX:]}")


def custom_id_of(row: Row | BadRow, spec: JobSpec, shard: NewShard) -> str:
    """A row's id, also if the rest is invalid."""
    number = row_number(row, shard)
    if isinstance(row, BadRow):
        return number
    if spec.template is None:
        custom_id = row.data.get("custom_id")
        return custom_id if is_custom_id(custom_id) else number
    record = _record(row, shard)
    return _id_in(record, _id_column(spec, shard, record), shard) or number


def _id_column(spec: JobSpec, shard: NewShard, record: JsonObject) -> str | None:
    """An image's row has its key as its id, if that can be one."""
    if (
        spec.id_column is None
        and InputFormat(shard.format).is_of_images
        and _id_in(record, KEY_COLUMN, shard)
    ):
        return KEY_COLUMN
    return spec.id_column


def kept_of(row: Row | BadRow, spec: JobSpec, shard: NewShard) -> str | None:
    """The kept columns of a row: a JSON object, or null if it cannot be kept. None: the job keeps nothing."""
    try:
        return _kept(row, spec, shard)
    except InvalidRequest:
        return NOTHING


def _kept(row: Row | BadRow, spec: JobSpec, shard: NewShard) -> str | None:
    """Raises InvalidRequest."""
    keep = spec.options.keep_columns
    if keep is None:
        return None
    if isinstance(row, BadRow):
        return NOTHING
    if spec.kept_in is not None:
        earlier = row.data.get(spec.kept_in)
        return kept_text(earlier, KEEP_ALL) if isinstance(earlier, dict) else NOTHING
    return kept_text(_record(row, shard), keep)


def _record(row: Row, shard: NewShard) -> JsonObject:
    """The row's record with the columns that its object's folders name, which come first, as elsewhere."""
    named = partition_columns(_uri_of(row, shard))
    return {**row.data, **named} if named else row.data


def _uri_of(row: Row, shard: NewShard) -> str:
    return shard.uri if row.object is None else row.object.uri


def is_custom_id(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= CUSTOM_ID_CHARS_MAX and NUL not in value


def row_number(row: Row | BadRow, shard: NewShard) -> str:
    """A row's number from 1, in its job if the earlier rows are counted, else in its shard."""
    if shard.first_row is not None:
        return f"row-{shard.first_row + row.index + 1}"
    return f"shard-{shard.shard_no}-row-{row.index + 1}"


def _id_of_record(record: JsonObject, id_column: str | None, number: str, shard: NewShard) -> str:
    if id_column is None:
        return number
    record_id = _id_in(record, id_column, shard)
    if record_id is None:
        _check_has(record, id_column)
        raise InvalidRequest(
            f"The row's id column '{id_column}' {_why_no_id(record, id_column, shard)}.",
            param=id_column,
            code="missing_id",
        )
    return record_id


def _check_has(record: JsonObject, id_column: str) -> None:
    """Raises InvalidRequest where there is no such column, or part of one."""
    try:
        value_of(record, id_column)
    except KeyError:
        raise InvalidRequest(
            f"The row has no id column '{id_column}'; it has: {known_columns(record)}.",
            param=id_column,
            code="missing_column",
        ) from None


def _id_in(record: JsonObject, column: str | None, shard: NewShard) -> str | None:
    """A column's value as an id, or a part's; None if it is none."""
    record_id = as_id(_value_in(record, column), is_typed=_is_typed(shard))
    if record_id is None or not 0 < len(record_id) <= RECORD_ID_CHARS_MAX or NUL in record_id:
        return None
    return record_id


def _why_no_id(record: JsonObject, column: str, shard: NewShard) -> str:
    value = _value_in(record, column)
    if is_rounded(value, is_typed=_is_typed(shard)):
        return (
            "has a floating-point number of 2**53 or more, which may have been rounded: "
            "store ids of this size as integers or texts"
        )
    if isinstance(value, Unusable):
        return value.reason
    return (
        f"has {kind_of(value)}: an id is a whole number, or a text of 1 to {RECORD_ID_CHARS_MAX} characters "
        "without NUL"
    )


def _value_in(record: JsonObject, column: str | None) -> Any:
    """A column's value, or a part's; None if there is none."""
    try:
        return None if column is None else value_of(record, column)
    except KeyError:
        return None


def _is_typed(shard: NewShard) -> bool:
    """Whether the input tells numbers from texts."""
    return _layout(shard) not in (Layout.CSV, Layout.TSV)


def _layout(shard: NewShard) -> Layout:
    return _layout_of(shard.format)


@lru_cache
def _layout_of(format: str) -> Layout:
    return InputFormat(format).layout


def check_custom_id(value: Any) -> None:
    """Raises InvalidRequest."""
    if not is_custom_id(value):
        raise InvalidRequest(
            f"'custom_id' must be a text of 1 to {CUSTOM_ID_CHARS_MAX} characters, none of them NUL.",
            param="custom_id",
            code="missing_required_parameter",
        )


def check_target(line: JsonObject, endpoint: str) -> None:
    """Checks the method and url of a batch line. Raises InvalidRequest."""
    if line["method"] != "POST":
        message = f"'method' must be POST, not {quoted(line['method'])}."
        raise InvalidRequest(message, param="method", code="invalid_method")
    if line["url"] != endpoint:
        message = "The URL provided for this request does not match the batch endpoint."  # OpenAI's sentence
        raise InvalidRequest(message, param="url", code="invalid_url")


def refuse_stream(body: JsonObject) -> None:
    """Raises InvalidRequest."""
    if body.get("stream"):
        raise InvalidRequest(
            "Streaming is not supported in a batch.", param="body.stream", code="streaming_unsupported"
        )


def quoted(value: Any) -> str:
    """A value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= QUOTED_CHARS_MAX else text[:QUOTED_CHARS_MAX] + "…"


def _batch_line(line: JsonObject, endpoint: str, number: str) -> RowRequest:
    """A native job's line needs only a body."""
    whole = {"custom_id": number, "method": "POST", "url": endpoint, **line}
    check_custom_id(whole["custom_id"])
    check_target(whole, endpoint)
    body = line.get("body")
    if not isinstance(body, dict):
        raise InvalidRequest(
            "The row has no 'body' object, and the job has no template (--input-column, --template); it has "
            f"the columns: {known_columns(line)}.",
            param="body",
            code="missing_required_parameter",
        )
    refuse_stream(body)
    return RowRequest(whole["custom_id"], body)
