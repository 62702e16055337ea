"""Which of an object's columns a job uses: a defect of any other one is none of its rows. Pure."""

from collections.abc import Collection, Set

from nightshift.bulk.rows.records import UnreadableInput
from nightshift.bulk.rows.templates import parent_column


def refuse_twice(twice: Set[str], columns: Collection[str] | None) -> None:
    """Raises `UnreadableInput` for a column that an object has twice, if it is among these. None: all."""
    used = twice if columns is None else twice & {root_of(column, twice) for column in columns}
    if used:
        raise UnreadableInput(
            f"It has more than one column named {min(used)!r}: name each of them differently."
        )


def root_of(column: str, names: Collection[str]) -> str:
    """The name of the column that a column or a part of one, as in templates, is read from."""
    return column if column in names else parent_column(column) or column
