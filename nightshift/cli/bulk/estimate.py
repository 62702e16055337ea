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
    if answer["input"] is not None:
        yield from _input_lines(answer["input"], answer)
    for name in ("prompt", "completion"):
        if (tokens := answer[f"{name}_tokens"]) is not None:
            yield _line(
                f"{name} tokens",
                f"{tokens['total']}; a row {tokens['mean']:.0f}, median {tokens['p50']}, "
                f"95 % {tokens['p95']}, most {tokens['most']}",
            )
            counts = tokens["histogram"].items()
            yield _line("", ", ".join(f"≤{most}: {rows}" for most, rows in counts) + " (of the sample)")
    if answer["rows_failing"] is not None:
        codes = ", ".join(f"{code} {count}" for code, count in answer["sample"]["errors"].items())
        yield _line("rows too long", answer["rows_too_long"])
        yield _line("rows that fail", f"{answer['rows_failing']}{f' (sample: {codes})' if codes else ''}")
    yield from _time_lines(answer)
    for problem in answer["problems"]:
        yield _line("problem", problem["message"])


def _input_lines(input: JsonObject, answer: JsonObject) -> Iterator[str]:
    at_least = "" if input["is_whole"] else "at least "
    rows = rows_text(input["rows"])
    yield _line("input", f"{at_least}{input['objects']} objects, {input['size_bytes']} bytes")
    yield _line("rows", f"{at_least}{_about(rows, input['rows_are_exact'])}, {input['rows_read']} read")
    if not input["is_whole"]:
        yield _line("", "there are more objects, and all figures are of these alone")
    if not input["is_spread"]:
        yield _line("", "a part of the input was read from its beginning only")
    if input["rows_unusable"]:
        yield _line("without a request", f"{input['rows_unusable']} of those read")
    yield _line("duplicates", _about(str(input["duplicates"]), input["duplicates_are_exact"]))
    if input["rows_reused"] is not None:
        yield _line("reused", _about(str(input["rows_reused"]), False))
    if answer["rows_to_run"] is not None:
        yield _line("rows to run", answer["rows_to_run"])


def _time_lines(answer: JsonObject) -> Iterator[str]:
    if answer["rows_per_worker_s"] is not None:
        yield _line("pace", f"{answer['rows_per_worker_s']:.2f} rows/s on each worker")
    if answer["eta_s"] is not None:
        yield _line("time", f"{_time(answer['eta_s'])} on {answer['workers_ready']} ready workers, if idle")
    if answer["worker_hours"] is not None:
        window, wanted = _time(answer["window_s"]), answer["workers_wanted"]
        yield _line(
            "workers", f"{wanted if wanted is not None else 'no number of them ends'} within {window}"
        )
        yield _line("worker hours", f"{answer['worker_hours']:.2f}")
    for name in ("cost", "spot_cost", "saving"):
        if answer[name] is not None:
            yield _line(name.replace("_", " "), f"{answer[name]:.2f}")


def _line(name: str, said: object) -> str:
    return f"{name:<18}{said}"


def _about(text: str, is_exact: bool) -> str:
    return text if is_exact else f"about {text}"


def _time(seconds: float) -> str:
    minutes, left_s = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left_s:02}"
