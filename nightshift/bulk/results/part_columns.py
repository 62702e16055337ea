"""The columns of a Parquet part that are kept of the input.

All are texts, so that every part of a job has the same columns whatever its objects hold: a text is itself,
any other value JSON, null none. Where all columns are kept, `input` has the whole row as JSON.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from nightshift.bulk.rows.kept_values import NOTHING
from nightshift.bulk.rows.values import integer, json_text, number
from nightshift.jobs.options import KEEP_ALL, KeepColumns

WHOLE: Final = "input"
PREFIX: Final = "input."  # goes before a name that the part has already


def names_in_part(wish: KeepColumns | None, ours: Collection[str]) -> list[str]:
    """Returns the names of the kept columns beside ours, in the order of the wish."""
    names = [WHOLE] if wish == KEEP_ALL else wish or ()
    taken = {*ours, *names}
    free_names = []
    for name in names:
        free = name
        while free in ours or (free != name and free in taken):
            free = PREFIX + free
        taken.add(free)
        free_names.append(free)
    return free_names


def kept_columns(
    wish: KeepColumns | None, ours: Collection[str], texts: Iterable[str | None]
) -> dict[str, pa.Array]:
    """Returns the columns of rows whose kept texts these are, by name."""
    if wish is None:
        return {}
    return dict(zip(names_in_part(wish, ours), _arrays(wish, texts), strict=True))


def _arrays(wish: KeepColumns, texts: Iterable[str | None]) -> Sequence[pa.Array]:
    if wish == KEEP_ALL:
        return [_array(None if text == NOTHING else text for text in texts)]
    rows = [({} if text is None else _read(text) or {}) for text in texts]
    return [_array(_text(row.get(name)) for row in rows) for name in wish]


def _read(text: str) -> Any:
    """The kept columns, with numbers as they are written in a row."""
    return json.loads(text, parse_float=number, parse_int=integer)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json_text(value, (",", ":"), default=str)


def _array(texts: Iterable[str | None]) -> pa.Array:
    """Lone surrogates, which no text of Parquet can have, are escaped."""
    cells = [None if text is None else text.encode("utf-8", "backslashreplace") for text in texts]
    return pa.array(cells, pa.binary()).cast(pa.string())
