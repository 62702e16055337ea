"""The columns of a Parquet part that are kept of the input.

All are texts, so that every part of a job has the same columns whatever its objects hold: a text is itself,
any other value JSON, null none. Where all columns are kept, `input` has the whole row as JSON.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from nightshift.bulk.rows.kept_values import NOTHING
from nightshift.jobs.options import KEEP_ALL, KeepColumns

WHOLE: Final = "input"
PREFIX: Final = "input."  # of a name that the part has already


def names_in_part(asked: KeepColumns | None, ours: Collection[str]) -> list[str]:
    """What the kept columns are called beside ours, in the order asked."""
    names = [WHOLE] if asked == KEEP_ALL else asked or ()
    taken = {*ours, *names}
    found = []
    for name in names:
        free = name
        while free in ours or (free != name and free in taken):
            free = PREFIX + free
        taken.add(free)
        found.append(free)
    return found


def kept_columns(
    asked: KeepColumns | None, ours: Collection[str], texts: Iterable[str | None]
) -> dict[str, pa.Array]:
    """By name, the columns of rows of which these texts are kept."""
    if asked is None:
        return {}
    return dict(zip(names_in_part(asked, ours), _arrays(asked, texts), strict=True))


def _arrays(asked: KeepColumns, texts: Iterable[str | None]) -> Sequence[pa.Array]:
    if asked == KEEP_ALL:
        return [_array(None if text == NOTHING else text for text in texts)]
    rows = [({} if text is None else json.loads(text) or {}) for text in texts]
    return [_array(_text(row.get(name)) for row in rows) for name in asked]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _array(texts: Iterable[str | None]) -> pa.Array:
    """Lone surrogates, which no text of Parquet can have, are escaped."""
    cells = [None if text is None else text.encode("utf-8", "backslashreplace") for text in texts]
    return pa.array(cells, pa.binary()).cast(pa.string())
