"""Tables of callers, by the library that made them, which is never imported for its own sake.

A table gives rows of some of its columns, and itself with more columns: the same kind, order and index.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from nightshift.client.mapping.forms import Kind, ValueType
from nightshift.errors import InvalidRequest

CHUNK_ROWS: Final = 10_000  # that are plain Python values at a time

Rows = Iterator[tuple[Any, ...]]


class Table(Protocol):
    @property
    def columns(self) -> Sequence[str]: ...

    def rows(self, columns: Sequence[str]) -> Rows:
        """Plain values of these columns, row by row. Raises InvalidRequest."""

    def with_columns(self, types: Mapping[str, ValueType], values: Mapping[str, list[Any]]) -> Any:
        """The caller's kind of table with these columns at its end."""


def table_of(data: object) -> Table:
    """Raises InvalidRequest for what is no table."""
    if isinstance(data, list):
        if not data:  # it has no columns either
            raise _invalid("there are no rows")
        return Records(data)
    for known in type(data).__mro__:
        library = known.__module__.partition(".")[0]
        if wrapper := _TABLES.get((library, known.__name__)):
            table: Table = wrapper(data)
            return table
        if advice := _ADVICE.get((library, known.__name__)):
            raise _invalid(f"a {library}.{known.__name__} is no table: {advice}")
    raise _invalid(
        f"a {type(data).__name__} is none of: a pandas or polars DataFrame, a pyarrow Table, a datasets "
        "Dataset, a list of dicts, or a location as text (s3://…, file://…)"
    )


def column_missing(param: str, name: str, columns: Sequence[str]) -> InvalidRequest:
    listed = ", ".join(one if isinstance(one, str) else f"{one!r} (no text)" for one in columns) or "none"
    return InvalidRequest(
        f"Invalid '{param}': there is no column '{name}'; the data have: {listed}.",
        param=param,
        code="missing_column",
    )


@dataclass(frozen=True)
class Records:
    """A list of dicts. Columns of the kind JSON stay values."""

    records: list[dict[str, Any]]

    def __post_init__(self) -> None:
        for row, record in enumerate(self.records):
            if not isinstance(record, dict):
                raise _invalid(f"row {row} (from 0) is a {type(record).__name__}, and a row is a dict")

    @property
    def columns(self) -> Sequence[str]:
        return list(dict.fromkeys(name for record in self.records for name in record))

    def rows(self, columns: Sequence[str]) -> Rows:
        for row, record in enumerate(self.records):
            for name in columns:
                if name not in record:
                    raise _invalid(f"row {row} (from 0) has no '{name}'", code="missing_column")
            yield tuple(record[name] for name in columns)

    def with_columns(self, types: Mapping[str, ValueType], values: Mapping[str, list[Any]]) -> Any:
        return [
            record | {name: values[name][row] for name in types} for row, record in enumerate(self.records)
        ]


@dataclass(frozen=True)
class PandasTable:
    """A DataFrame. The index stays; its named levels count as columns."""

    frame: Any

    @property
    def columns(self) -> Sequence[str]:
        named = list(self.frame.columns)
        return named + [name for name in self.frame.index.names if name is not None and name not in named]

    def rows(self, columns: Sequence[str]) -> Rows:
        own, levels = list(self.frame.columns), list(self.frame.index.names)
        for name in columns:
            _check_single(name, own if name in own else levels)
        for first in range(0, len(self.frame), CHUNK_ROWS):
            part = self.frame.iloc[first : first + CHUNK_ROWS]
            yield from zip(*(self._values(part, name) for name in columns), strict=True)

    def with_columns(self, types: Mapping[str, ValueType], values: Mapping[str, list[Any]]) -> Any:
        pandas, frame = sys.modules["pandas"], self.frame.copy(deep=False)
        for name, type in types.items():
            dtype = _PANDAS_TYPES.get(type.kind, "object")
            frame[name] = pandas.Series(_held(type, values[name]), dtype=dtype).array
        return frame

    def _values(self, part: Any, name: str) -> list[Any]:
        """NaN stands for a missing value, except among floating-point numbers, where it may be one itself."""
        column = part[name] if name in part.columns else part.index.get_level_values(name)
        values: list[Any] = column.tolist()
        if getattr(column.dtype, "kind", "O") != "O":
            return values
        return [
            None if is_missing else value for value, is_missing in zip(values, column.isna(), strict=True)
        ]


_PANDAS_TYPES: Final = {
    Kind.TEXT: "string",
    Kind.INTEGER: "Int64",
    Kind.NUMBER: "Float64",
    Kind.BOOLEAN: "boolean",
    Kind.JSON: "string",
}
"""Types that have nulls, so that no integer becomes a double."""


@dataclass(frozen=True)
class PolarsTable:
    """A polars DataFrame."""

    frame: Any

    @property
    def columns(self) -> Sequence[str]:
        return list(self.frame.columns)

    def rows(self, columns: Sequence[str]) -> Rows:
        for name in columns:
            if "'ns'" in str(self.frame.schema[name]):  # in a list, too; Python's have no nanoseconds
                advice = f"cast it to text, or to microseconds (pl.col({name!r}).dt.cast_time_unit('us'))"
                raise InvalidRequest(f"The column '{name}' has nanoseconds: {advice}.", param=name)
        yield from self.frame[list(columns)].iter_rows()  # `select` would take ^a.*$ for a pattern

    def with_columns(self, types: Mapping[str, ValueType], values: Mapping[str, list[Any]]) -> Any:
        polars = sys.modules["polars"]
        return self.frame.with_columns(
            polars.Series(name, _held(type, values[name]), dtype=_polars_type(type, polars))
            for name, type in types.items()
        )


def _polars_type(type: ValueType, polars: Any) -> Any:
    scalars = {Kind.INTEGER: polars.Int64, Kind.NUMBER: polars.Float64, Kind.BOOLEAN: polars.Boolean}
    return _column_type(type, scalars, polars.String, polars.List, polars.Struct)


@dataclass(frozen=True)
class ArrowTable:
    """A pyarrow Table."""

    table: Any

    @property
    def columns(self) -> Sequence[str]:
        return list(self.table.column_names)

    def rows(self, columns: Sequence[str]) -> Rows:
        for name in columns:
            _check_single(name, self.table.column_names)
        for batch in self.table.select(list(columns)).to_batches(max_chunksize=CHUNK_ROWS):
            try:
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
            except (ValueError, OverflowError) as error:  # as times that Python's do not reach
                raise _invalid(f"{error}; cast the column, such as to text") from error

    def with_columns(self, types: Mapping[str, ValueType], values: Mapping[str, list[Any]]) -> Any:
        arrow, table = sys.modules["pyarrow"], self.table
        for name, type in types.items():
            held = arrow.array(_held(type, values[name]), type=_arrow_type(type, arrow))
            table = table.append_column(name, held)
        return table


def _arrow_type(type: ValueType, arrow: Any) -> Any:
    scalars = {Kind.INTEGER: arrow.int64(), Kind.NUMBER: arrow.float64(), Kind.BOOLEAN: arrow.bool_()}
    return _column_type(type, scalars, arrow.string(), arrow.list_, arrow.struct)


def _column_type(
    type: ValueType,
    scalars: Mapping[Kind, Any],
    text: Any,
    list_of: Callable[[Any], Any],
    record_of: Callable[[Mapping[str, Any]], Any],
) -> Any:
    """A library's type of a column."""

    def inner_type(inner: ValueType) -> Any:
        return _column_type(inner, scalars, text, list_of, record_of)

    if type.kind is Kind.LIST and type.element is not None:
        return list_of(inner_type(type.element))
    if type.kind is Kind.RECORD:
        return record_of({name: inner_type(inner) for name, inner in type.fields.items()})
    return scalars.get(type.kind, text)


@dataclass(frozen=True)
class HubDataset:
    """A Dataset of Hugging Face's `datasets`."""

    dataset: Any

    @property
    def columns(self) -> Sequence[str]:
        return list(self.dataset.column_names)

    def rows(self, columns: Sequence[str]) -> Rows:
        plain = self.dataset.with_format(None).select_columns(list(columns))
        for part in plain.iter(batch_size=CHUNK_ROWS):
            yield from zip(*(part[name] for name in columns), strict=True)

    def with_columns(self, types: Mapping[str, ValueType], values: Mapping[str, list[Any]]) -> Any:
        arrow, library, dataset = sys.modules["pyarrow"], sys.modules["datasets"], self.dataset
        for name, type in types.items():
            schema = arrow.schema([(name, _arrow_type(type, arrow))])
            feature = library.Features.from_arrow_schema(schema)[name]
            dataset = dataset.add_column(name, _held(type, values[name]), feature=feature)
        return dataset


_TABLES: Final[Mapping[tuple[str, str], Any]] = {
    ("pandas", "DataFrame"): PandasTable,
    ("polars", "DataFrame"): PolarsTable,
    ("pyarrow", "Table"): ArrowTable,
    ("datasets", "Dataset"): HubDataset,
}
_ADVICE: Final = {
    ("pandas", "Series"): "use to_frame()",
    ("polars", "Series"): "use to_frame()",
    ("polars", "LazyFrame"): "use collect()",
    ("pyarrow", "RecordBatch"): "use pyarrow.Table.from_batches([…])",
    ("datasets", "DatasetDict"): "name a split of it",
    ("datasets", "IterableDataset"): "it has no rows to join answers to; load it without streaming",
}


def _held(type: ValueType, values: list[Any]) -> list[Any]:
    """The values as a column of this type holds them: JSON as text, in lists and records, too."""
    return [_as_held(type, value) for value in values] if _has_json(type) else values


def _has_json(type: ValueType) -> bool:
    inner = [*type.fields.values(), *([] if type.element is None else [type.element])]
    return type.kind is Kind.JSON or any(map(_has_json, inner))


def _as_held(type: ValueType, value: Any) -> Any:
    if value is None:
        return None
    if type.kind is Kind.JSON:
        return json.dumps(value)  # ASCII, so that half a character has a place
    if type.kind is Kind.LIST and type.element is not None:
        return [_as_held(type.element, inner) for inner in value]
    if type.kind is Kind.RECORD:
        return {name: _as_held(inner, value[name]) for name, inner in type.fields.items()}
    return value


def _check_single(name: str, columns: Sequence[Any]) -> None:
    if columns.count(name) > 1:
        raise _invalid(f"more than one column is named '{name}'")


def _invalid(what: str, code: str | None = None) -> InvalidRequest:
    return InvalidRequest(f"Invalid 'data': {what}.", param="data", code=code)
