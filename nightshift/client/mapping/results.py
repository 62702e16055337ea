"""The result of a call: the data with their answers, and the rows that have none."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nightshift.client.answers import RemoteJob
from nightshift.client.mapping.forms import InvalidAnswer, OutputForm
from nightshift.errors import NightshiftError
from nightshift.jobs import JsonObject

NOT_RUN = "not_run"


@dataclass(frozen=True)
class FailedRow:
    """A row without an answer. `key`: the text of its key, or of its place from 0 without one.

    `code`, `message`: the server's; `invalid_answer` for one that lacks the form, as where `max_tokens` cut
    it off; `not_run` for a row that the job did not reach.
    """

    key: str
    code: str
    message: str


@dataclass(frozen=True)
class MapResult:
    """`data`: the caller's kind of table with the answers' columns, null in rows that failed; of data at a
    location, the folder with the answers.
    """

    data: Any
    failed: list[FailedRow]
    job: RemoteJob


class MapFailed(NightshiftError):
    """The job did not reach its end."""

    default_code = "map_failed"

    def __init__(self, job: RemoteJob) -> None:
        why = "; ".join(job.errors) or f"it was {job.state}"
        super().__init__(
            f"{job.id} {job.state}: {why.rstrip('.')}. {job.counts.succeeded} rows have answers: "
            "result(partial=True) returns them, and the same call computes the others."
        )
        self.job = job


@dataclass
class Answers:
    """Takes the bytes of results' lines, and keeps each row's values. `keeps_values`: False where only
    failures are of interest.
    """

    form: OutputForm
    keeps_values: bool = True
    values: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    failed: dict[str, FailedRow] = field(default_factory=dict)
    last_id: str | None = None  # of the last whole line
    _rest: bytes = b""

    def begin(self) -> None:
        """Drops the part of a line that a broken stream has left."""
        self._rest = b""

    def take(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            row: JsonObject = json.loads(line)
            self._take_row(row)
            self.last_id = row["id"]

    def _take_row(self, row: JsonObject) -> None:
        id, body = str(row["custom_id"]), (row.get("response") or {}).get("body") or {}
        if row["outcome"] != "succeeded":
            error = row.get("error") or body.get("error") or {}
            code, message = error.get("code") or row["outcome"], error.get("message") or "no reason was given"
            self.failed[id] = FailedRow(id, code, message)
            return
        choice = body["choices"][0]
        try:
            values = self.form.read(choice["message"].get("content") or "")
        except InvalidAnswer as error:
            is_cut = choice.get("finish_reason") == "length"
            why = " It was cut off: raise 'max_tokens' in parameters." if is_cut else ""
            self.failed[id] = FailedRow(id, InvalidAnswer.default_code, f"{error.message}{why}")
        else:
            self.values[id] = values if self.keeps_values else {}
