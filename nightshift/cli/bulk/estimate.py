"""`nightshift estimate`: what a bulk job would take, by a sample of its rows."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from nightshift.cli.bulk.job_options import job_fields, with_job_options
from nightshift.cli.bulk.run import Input, submitting
from nightshift.cli.session import Json, open_client
from nightshift.cli.terminal import is_interactive, print_json, printable, rows_text, say
from nightshift.jobs import JsonObject

if TYPE_CHECKING:
    from nightshift.client import Client

EXIT_FAILED: Final = 4  # the job would fail, as `run --wait` exits then …
EXIT_NO_WORKER: Final = 1  # … or would wait
POLL_S: Final = 1.0

GpuHourPrice = Annotated[
    float | None, typer.Option(metavar="X", help="Price of an hour of a worker's GPU, in any currency.")
]
SpotPrice = Annotated[float | None, typer.Option(metavar="X", help="The same on spot machines.")]


@with_job_options
def estimate(
    context: typer.Context,
    input: Input,
    gpu_hour_price: GpuHourPrice = None,
    spot_price: SpotPrice = None,
    json: Json = False,
    **options: Any,
) -> None:
    """Tell what a bulk job would take: rows, tokens, time, workers, cost.

    Looks at the input and runs a sample of its rows, for about a minute at most. Exits with 0, with 4 if the
    job would fail, and with 1 if it would wait for a worker or another trouble.
    """
    prices = {"gpu_hour_price": gpu_hour_price, "spot_price": spot_price}
    given = job_fields([input, *context.args], **options)
    given |= {name: price for name, price in prices.items() if price is not None}
    with open_client() as client:
        with submitting(client, given, is_kept=False) as sent:
            answer = client.estimate_job(sent)
        answer = _followed(client, answer)
    if json:
        print_json(answer)
    else:
        typer.echo("\n".join(map(printable, lines_of(answer))))
    raise SystemExit(exit_code(answer))


def _followed(client: "Client", answer: JsonObject) -> JsonObject:
    """The estimate once its sample has ended."""
    shown = ""
    try:
        while answer["status"] == "running":
            sample = answer["sample"]
            line = f"sample: {sample['rows_ended']}/{rows_text(sample['rows'])}"
            if is_interactive() and line != shown:
                say(line)
                shown = line
            time.sleep(POLL_S)
            answer = client.get_estimate(answer["id"])
    except KeyboardInterrupt:
        client.cancel_job(answer["id"])
        raise
    return answer


def exit_code(answer: JsonObject) -> int:
    """The code that `nightshift estimate` exits with."""
    if any(problem["is_permanent"] for problem in answer["problems"]):
        return EXIT_FAILED
    return 0 if answer["status"] == "succeeded" else EXIT_NO_WORKER


def lines_of(answer: JsonObject) -> Iterator[str]:
    """The estimate in words."""
    said = [("problem", problem["message"]) for problem in answer["problems"]]
    if answer["figures"] is not None:
        said = [*_about_figures(answer["figures"], answer), *said]
    if answer["input"] is not None:
        said = [*_about_input(answer["input"]), *said]
    yield from (f"{name:<18}{text}" for name, text in said if text is not None)


def _about_input(input: JsonObject) -> Iterator[tuple[str, Any]]:
    at_least = "" if input["is_whole"] else "at least "
    rows = _about(rows_text(input["rows"]), is_exact=input["rows_are_exact"])
    yield "input", f"{at_least}{input['objects']} objects, {input['size_bytes']} bytes"
    yield "rows", f"{at_least}{rows}, {input['rows_read']} read"
    if at_least:
        yield "", "there are more objects, and all figures are of these alone"
    if not input["is_spread"]:
        yield "", "a part of the input was read from its beginning only"
    if input["rows_unusable"]:
        yield "without a request", f"{input['rows_unusable']} of those read"
    yield "duplicates", _about(input["duplicates"], is_exact=input["duplicates_are_exact"])
    yield "reused", _about(input["rows_reused"], is_exact=False)


def _about_figures(figures: JsonObject, answer: JsonObject) -> Iterator[tuple[str, Any]]:
    yield "rows to run", figures["rows_to_run"]
    for name in ("prompt", "completion"):
        if (tokens := figures[f"{name}_tokens"]) is not None:
            words = "{total}; a row {mean:.0f}, median {p50}, 95 % {p95}, most {most}"
            yield f"{name} tokens", words.format(**tokens)
            counts = ", ".join(f"≤{most}: {rows}" for most, rows in tokens["histogram"].items())
            yield "", f"{counts} (of the sample)"
    if figures["rows_failing"] is not None:
        codes = ", ".join(f"{code} {count}" for code, count in answer["sample"]["errors"].items())
        yield "rows too long", figures["rows_too_long"]
        yield "rows that fail", f"{figures['rows_failing']}{f' (sample: {codes})' if codes else ''}"
    if figures["rows_per_worker_s"] is not None:
        wanted, window = figures["workers_wanted"], _time(answer["window_s"])
        yield "pace", f"{figures['rows_per_worker_s']:.2f} rows/s on each worker"
        yield "workers", f"{'no number of them ends' if wanted is None else wanted} within {window}"
    if figures["eta_s"] is not None:
        yield "waits", _time(figures["waits_s"]) if figures["waits_s"] else None
        yield "time", f"{_time(figures['eta_s'])} on {answer['workers_ready']} ready workers"
    for name in ("worker_hours", "cost", "spot_cost", "saving"):
        yield name.replace("_", " "), None if figures[name] is None else f"{figures[name]:.2f}"


def _about(count: Any, *, is_exact: bool) -> str | None:
    return None if count is None else f"{'' if is_exact else 'about '}{count}"


def _time(seconds: float) -> str:
    minutes, left_s = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left_s:02}"
