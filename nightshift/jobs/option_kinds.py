"""The kinds of values that options of bulk jobs have.

What a kind looks like in a request and an answer is in `api/bodies/options.py`; on the command line, in
`nightshift/cli/bulk/job_options.py`.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

COUNT_MAX: Final = 2**53 - 1  # JSON's numbers are exact so far


@dataclass(frozen=True)
class Share:
    """A number from 0 to 1."""


@dataclass(frozen=True)
class Count:
    """A whole number, bounds included."""

    at_least: int
    at_most: int = COUNT_MAX


@dataclass(frozen=True)
class Size(Count):
    """Bytes. On the command line also `64MiB`."""


@dataclass(frozen=True)
class Duration:
    """Whole seconds. In requests, in answers and on the command line `30s`, `5m` or `1h`."""

    at_most_s: int


@dataclass(frozen=True)
class Switch:
    """On or off, and off by default."""


@dataclass(frozen=True)
class Choice:
    """One of these texts."""

    values: tuple[str, ...]

    @property
    def type(self) -> Any:
        """`Literal` of them."""
        one_of: Any = Literal
        return one_of[self.values]


@dataclass(frozen=True)
class Text:
    """A text that matches a regular expression."""

    pattern: str


@dataclass(frozen=True)
class ColumnNames:
    """Names of columns, or `all`. On the command line a line of CSV."""


Kind = Share | Count | Duration | Switch | Choice | Text | ColumnNames
