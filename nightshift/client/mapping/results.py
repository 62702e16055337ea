"""The result of a call: the data with their answers, and the rows that have none."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nightshift.client.answers import RemoteJob, row_error
from nightshift.client.mapping.calls import form_of_job, key_of_job
from nightshift.client.mapping.forms import InvalidAnswer, OutputForm
from nightshift.client.mapping.rows import MapData, ids_of, table_for
from nightshift.client.mapping.tables import Records
from nightshift.errors import NightshiftError
from nightshift.jobs import JobState, JsonObject

if TYPE_CHECKING:
    from nightshift.client.http_client import Client

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


Outcome = dict[str, Any] | FailedRow
"""A row's values by column, or why it has none."""


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


def joined(
    client: "Client", job: RemoteJob, data: object, known: MapData | None, *, partial: bool
) -> MapResult:
    """The answers of a job that has ended, joined to `data`, or to what was sent (`known`), or else to their
    keys. Raises MapFailed for a job that did not succeed, unless a part will do.
    """
    if job.state is not JobState.SUCCEEDED and not partial:
        raise MapFailed(job)
    form, key = form_of_job(job), key_of_job(job)
    results = client.results(job.id, is_followed=True)
    if (location := job.data.get("output")) is not None:
        return MapResult(location, _failed(_outcome(row, form, json_as_text=True) for row in results), job)
    table, ids = (None, []) if known is None else (known.table, known.ids)
    if data is not None:
        table = table_for(form, data)
        ids = ids_of(table, key)
    json_as_text = table is not None and not table.holds_json
    outcomes_by_id = {
        str(row["custom_id"]): _outcome(row, form, json_as_text=json_as_text) for row in results
    }
    if table is None:
        ids = list(outcomes_by_id) if key else sorted(outcomes_by_id, key=int)
        table = Records([{key: id} if key else {"row": int(id)} for id in ids])
    outcomes = [outcomes_by_id.get(id) or _not_run(id, job) for id in ids]
    values = {
        name: [None if isinstance(outcome, FailedRow) else outcome[name] for outcome in outcomes]
        for name in form.columns
    }
    return MapResult(table.with_columns(form.columns, values), _failed(outcomes), job)


def _failed(outcomes: Iterable[Outcome]) -> list[FailedRow]:
    return [outcome for outcome in outcomes if isinstance(outcome, FailedRow)]


def _outcome(row: JsonObject, form: OutputForm, *, json_as_text: bool) -> Outcome:
    id, why = str(row["custom_id"]), row_error(row)
    if row["outcome"] != "succeeded":
        return FailedRow(id, why.get("code") or row["outcome"], why.get("message") or "no reason was given")
    choice = row["response"]["body"]["choices"][0]
    try:
        return form.read(choice["message"].get("content") or "", json_as_text=json_as_text)
    except InvalidAnswer as error:
        is_cut = choice.get("finish_reason") == "length"
        advice = " It was cut off: raise 'max_tokens' in parameters." if is_cut else ""
        return FailedRow(id, InvalidAnswer.default_code, f"{error.message}{advice}")


def _not_run(id: str, job: RemoteJob) -> FailedRow:
    reason = job.errors[0] if job.errors else f"{job.id}, which {job.state}, has no result of this row."
    return FailedRow(id, NOT_RUN, reason)
