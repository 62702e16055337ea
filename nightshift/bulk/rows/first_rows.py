"""Looks at an input's first rows: whether any row can run, and of which model. Pure.

A job whose first rows all fail for a reason that lies in their object, such as a missing column, is refused
before a row runs, with that reason. Planning and dry runs ask the same.
"""

from dataclasses import dataclass, field
from typing import Final

from nightshift.bulk.rows.contents import separator_hint, wrapping_hint
from nightshift.bulk.rows.records import BadRow, InputFormat, Layout, Row
from nightshift.bulk.rows.requests import RowProblem, RowRequest, place_of, to_request
from nightshift.jobs import InputError, JobSpec, NewShard

NO_MODEL: Final = InputError(
    "missing_required_parameter",
    "No model is named: neither by the job's template nor in the 'body' of the first rows.",
    param="template.model",
)


@dataclass
class FirstRows:
    """The rows looked at so far. `model`: the job's, then that of the first row that names one."""

    spec: JobSpec
    model: str | None
    rows: int = field(default=0, init=False)
    has_request: bool = field(default=False, init=False)
    _first_problem: InputError | None = field(default=None, init=False)
    _has_other_problems: bool = field(default=False, init=False)  # that are of their rows alone

    def add(self, row: Row | BadRow, shard: NewShard) -> RowRequest | RowProblem:
        """Returns the row's request, or its problem."""
        self.rows += 1
        made = to_request(row, self.spec, shard)
        if isinstance(made, RowRequest):
            self.has_request = True
            model = made.body.get("model")
            self.model = self.model or (model if isinstance(model, str) else None)
        else:
            self._note(made, row, shard)
        return made

    @property
    def is_settled(self) -> bool:
        """Whether the job can run, whatever the next rows are."""
        return self.model is not None and (self.has_request or self._has_other_problems)

    def objection(self) -> InputError | None:
        """The reason why no row can run, as far as these tell. None if some may, or if there are none."""
        if not self.rows or self.is_settled:
            return None
        return NO_MODEL if self.has_request or self._first_problem is None else self._first_problem

    def _note(self, problem: RowProblem, row: Row | BadRow, shard: NewShard) -> None:
        self._has_other_problems |= not (isinstance(row, BadRow) or problem.code == "missing_column")
        if self._first_problem is None:
            place = place_of(row.index, shard, row.object if isinstance(row, Row) else None)
            message = f"{problem.message}{_hint(row, shard, self.spec.options.separator)}{place}"
            self._first_problem = InputError(problem.code, message, param=problem.param)


def _hint(row: Row | BadRow, shard: NewShard, separator: str | None) -> str:
    """About the separator of a CSV that seems to have one column, or a JSON object that holds the rows."""
    format = InputFormat(shard.format)
    if isinstance(row, BadRow):
        return ""  # its message has it
    if format.delimiter is not None:
        return separator_hint(list(row.data), separator or format.delimiter)
    return wrapping_hint(row.data) if format.layout is Layout.JSONL else ""
