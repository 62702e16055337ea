"""Tables of callers, by the library that made them, which is never imported for its own sake.

A table gives rows of some of its columns, and itself with more columns: the same kind, order and index.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from nightshift.client.mapping.forms import Kind, ValueType, invalid
from nightshift.errors import InvalidRequest

CHUNK_ROWS: Final = 10_000  # that are plain Python values at a time

Rows = Iterator[tuple[Any, ...]]


@dataclass(frozen=True)
class Table(ABC):
    """A caller's table, `data`."""

    data: Any
    holds_json: ClassVar[bool] = False
    """Whether a column holds any JSON; others hold it as text."""

    @property
    def row_count(self) -> int:
        return len(self.data)

    @property
    @abstractmethod
    def columns(self) -> list[Any]:
        """The names, of which those that are no texts are never wanted."""

    @abstractmethod
    def rows(self, columns: Sequence[str]) -> Rows:
        """Plain values of these columns, row by row. Raises InvalidRequest."""

    @abstractmethod
    def with_columns(self, types: Mapping[str, ValueType], values: Mapping[str, list[Any]]) -> Any:
        """The caller's kind of table with these columns at its end."""


def table_of(data: object) -> Table:
    """Raises InvalidRequest for what is no table."""
    if isinstance(data, list):
        if not data:  # it has no columns either
            raise invalid("data", "there are no rows")
        for row, record in enumerate(data):
            if not isinstance(record, dict):
                raise invalid("data", f"row {row} (from 0) is a {type(record).__name__}, and a row is a dict")
        return Records(data)
    for known in type(data).__mro__:
        library = known.__module__.partition(".")[0]
        if wrapper := _TABLES.get((library, known.__name__)):
            table: Table = wrapper(data)
            return table
        if advice := _ADVICE.get((library, known.__name__)):
            raise invalid("data", f"a {library}.{known.__name__} is no table: {advice}")
    raise invalid(
        "data",
        f"a {type(data).__name__} is none of: a pandas or polars DataFrame, a pyarrow Table, a datasets "
        "Dataset, a list of dicts, or a location as text (s3://…, file://…)",
    )


class Records(Table):
    """A list of dicts."""

    holds_json: ClassVar[bool] = True

    @property
    def columns(self) -> list[Any]:
        return list(dict.fromkeys(name for record in self.data for name in record))

    def rows(self, columns: Sequence[str]) -> Rows:
        for row, record in enumerate(self.data):
            for name in columns:
                if name not in record:
                    raise invalid("data", f"row {row} (from 0) has no '{name}'", "missing_column")
            yield tuple(record[name] for name in columns)

    def with_columns(self, types: Mapping[str, ValueType], values: Mapping[str, list[Any]]) -> Any:
        return [record | {name: values[name][row] for name in types} for row, record in enumerate(self.data)]


class PandasTable(Table):
    """A DataFrame. The index stays; its named levels count as columns."""

    @property
    def columns(self) -> list[Any]:
        named = list(self.data.columns)
        return named + [name for name in self.data.index.names if name is not None and name not in named]

    def rows(self, columns: Sequence[str]) -> Rows:
        own, levels = list(self.data.columns), list(self.data.index.names)
        for name in columns:
            _check_single(name, own if name in own else levels)
        for first in range(0, len(self.data), CHUNK_ROWS):
            part = self.data.iloc[first : first + CHUNK_ROWS]
            yield from zip(*(self._values(part, name) for name in columns), strict=True)

    def with_columns(self, types: Mapping[str, ValueType], values: Mapping[str, list[Any]]) -> Any:
        pandas, frame = sys.modules["pandas"], self.data.copy(deep=False)
        for name, type in types.items():
            dtype = _PANDAS_TYPES.get(type.kind, "object")
            frame[name] = pandas.Series(values[name], dtype=dtype).array
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


class PolarsTable(Table):
    """A polars DataFrame."""

    @property
    def columns(self) -> list[Any]:
        return list(self.data.columns)

    def rows(self, columns: Sequence[str]) -> Rows:
        """Python's values have no nanoseconds: a time is read as its text, the others are refused."""
        polars = sys.modules["polars"]
        frame = self.data[list(columns)].with_columns(polars.col(polars.Time).dt.to_string("%T%.f"))
        for name, dtype in frame.schema.items():
            if _has_nanoseconds(dtype):
                advice = f"cast it to text, or to microseconds (pl.col({name!r}).dt.cast_time_unit('us'))"
                raise InvalidRequest(f"The column '{name}' has nanoseconds: {advice}.", param=name)
        yield from frame.iter_rows()

    def with_columns(self, types: Mapping[str, ValueType], values: Mapping[str, list[Any]]) -> Any:
        polars = sys.modules["polars"]
        scalars = (polars.String, polars.Int64, polars.Float64, polars.Boolean)
        library = _types(*scalars, polars.List, polars.Struct)
        return self.data.with_columns(
            polars.Series(name, values[name], dtype=_column_type(type, library))
            for name, type in types.items()
        )


def _has_nanoseconds(dtype: Any) -> bool:
    """Whether a type of polars has them, or that of its elements or of a field."""
    inner = [field.dtype for field in getattr(dtype, "fields", ())]
    inner += [dtype.inner] if getattr(dtype, "inner", None) is not None else []
    is_exact = getattr(dtype, "time_unit", None) == "ns" or str(dtype) == "Time"
    return is_exact or any(map(_has_nanoseconds, inner))


class ArrowTable(Table):
    """A pyarrow Table."""

    @property
    def columns(self) -> list[Any]:
        return list(self.data.column_names)

    def rows(self, columns: Sequence[str]) -> Rows:
        for name in columns:
            _check_single(name, self.data.column_names)
        for batch in self.data.select(list(columns)).to_batches(max_chunksize=CHUNK_ROWS):
            try:
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
            except (ValueError, OverflowError) as error:  # as times that Python's do not reach
                raise invalid("data", f"{error}; cast the column, such as to text") from error

    def with_columns(self, types: Mapping[str, ValueType], values: Mapping[str, list[Any]]) -> Any:
        arrow, table = sys.modules["pyarrow"], self.data
        for name, type in types.items():
            held = arrow.array(values[name], type=_arrow_type(type))
            table = table.append_column(name, held)
        return table


def _column_type(type: ValueType, types: Mapping[Kind, Any]) -> Any:
    """A library's type of a column. `types`: its types, and what makes those of lists and records."""
    if type.element is not None:
        return types[Kind.LIST](_column_type(type.element, types))
    if type.kind is Kind.RECORD:
        return types[type.kind]({name: _column_type(inner, types) for name, inner in type.fields.items()})
    return types[type.kind]


def _arrow_type(type: ValueType) -> Any:
    arrow = sys.modules["pyarrow"]
    text, integer, number, boolean = arrow.string(), arrow.int64(), arrow.float64(), arrow.bool_()
    return _column_type(type, _types(text, integer, number, boolean, arrow.list_, arrow.struct))


def _types(
    text: Any, integer: Any, number: Any, boolean: Any, list_of: Any, record_of: Any
) -> Mapping[Kind, Any]:
    """A library's types by the kinds that they hold."""
    return dict(zip(Kind, (text, integer, number, boolean, list_of, record_of, text), strict=True))


class HubDataset(Table):
    """A Dataset of Hugging Face's `datasets`."""

    @property
    def columns(self) -> list[Any]:
        return list(self.data.column_names)

    def rows(self, columns: Sequence[str]) -> Rows:
        plain = self.data.with_format(None).select_columns(list(columns))
        for part in plain.iter(batch_size=CHUNK_ROWS):
            yield from zip(*(part[name] for name in columns), strict=True)

    def with_columns(self, types: Mapping[str, ValueType], values: Mapping[str, list[Any]]) -> Any:
        arrow, library, dataset = sys.modules["pyarrow"], sys.modules["datasets"], self.data
        for name, type in types.items():
            schema = arrow.schema([(name, _arrow_type(type))])
            feature = library.Features.from_arrow_schema(schema)[name]
            dataset = dataset.add_column(name, values[name], feature=feature)
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


def _check_single(name: str, columns: Sequence[Any]) -> None:
    if columns.count(name) > 1:
        raise invalid("data", f"more than one column is named '{name}'")
