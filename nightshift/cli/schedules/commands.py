"""The commands of `nightshift schedules`."""

import json as json_module
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from nightshift.cli.schedules.changes import Change, Kind, change_of
from nightshift.cli.session import Json, open_client
from nightshift.cli.terminal import (
    EXIT_USAGE,
    fail,
    print_change,
    print_fields,
    print_json,
    print_list,
    printable,
    say,
    time_text,
    value_text,
)
from nightshift.errors import ConfigurationError, NightshiftError
from nightshift.jobs import JsonObject

if TYPE_CHECKING:
    from nightshift.cli.schedules.plan_files import Plan
    from nightshift.client import ApiError, Client

CIRCLE: Final = "circle"  # the server's code
RUN_COLUMNS: Final = (
    *(("RUN", "id"), ("DUE", "due_at"), ("DATE", "local_date"), ("STATE", "state"), ("JOB", "job_id")),
    *(("STARTED", "started_at"), ("ENDED", "ended_at"), ("VERSION", "version"), ("REASON", "reason")),
)
MARKS: Final = {Kind.CREATED: "+", Kind.UPDATED: "~", Kind.DELETED: "-"}

app = typer.Typer(help="Jobs that start by themselves: apply plans, look, pause, run.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


@app.command()
def apply(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="YAML files with plans.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the plans, show what would change, change nothing.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Also delete the tenant's schedules that are in none of the files."),
    ] = False,
    json: Json = False,
) -> None:
    """Make the server's schedules what files say, and show what changes, field by field.

    Every plan is checked before the first one is applied. One that is as it was makes no new version; its
    runs are made on behalf of the key that applied it last.
    """
    from nightshift.cli.schedules.plan_files import in_order, read_plans

    with _mistakes_in_files():
        plans = read_plans(files)
    with open_client() as client:
        there = {schedule["name"]: schedule for schedule in client.schedules()}
        named = {plan.name for plan in plans}
        left = [schedule for name, schedule in there.items() if name not in named]
        with _mistakes_in_files():
            plans = in_order(plans, {one["name"]: one["after"] for one in left if not prune})
        changes = [_checked(client, plan, there) for plan in plans]
        changes += [Change(schedule["name"], Kind.DELETED, {}) for schedule in left if prune]
        _print_changes(changes, json=json)
        if not dry_run:
            _carry_out(client, plans, changes)
    _say_outcome(changes, [] if prune else [schedule["name"] for schedule in left], dry_run=dry_run)


@app.command("list")
def list_schedules(json: Json = False) -> None:
    """List schedules with their next run and the outcome of the last."""
    with open_client() as client:
        schedules = list(client.schedules())
    headings = ("NAME", "STATE", "NEXT RUN", "LAST RUN", "RESULT", "WHEN", "ZONE", "VERSION")
    print_list(schedules, headings, _schedule_line, json=json)


@app.command()
def show(name: Name, json: Json = False) -> None:
    """Show a schedule: its plan, its next runs, its last one, and what is wrong with it."""
    with open_client() as client:
        schedule = client.get_schedule(name)
    if json:
        print_json(schedule)
    else:
        print_fields(schedule, _readable)


@app.command()
def pause(name: Name, json: Json = False) -> None:
    """Start no more runs of a schedule until it is resumed. A run that has started goes on."""
    with open_client() as client:
        schedule = client.pause_schedule(name)
    print_change(schedule, f"{name} is paused", as_json=json)


@app.command()
def resume(name: Name, json: Json = False) -> None:
    """Start runs of a paused schedule again, from its next time on."""
    with open_client() as client:
        schedule = client.resume_schedule(name)
    print_change(schedule, f"{name} goes on{_next_text(schedule)}", as_json=json)


@app.command("run-now")
def run_now(name: Name, json: Json = False) -> None:
    """Start a run of a schedule now, beside its times, and print the run's id. `history` says what became of
    it.
    """
    with open_client() as client:
        run = client.run_schedule(name)
    if json:
        print_json(run)
    else:
        typer.echo(run["id"])


@app.command()
def history(
    name: Name,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 20,
    json: Json = False,
) -> None:
    """List a schedule's runs, newest first."""
    with open_client() as client:
        runs = list(client.schedule_runs(name, limit=limit))
    print_list(runs, [heading for heading, _ in RUN_COLUMNS], _run_line, json=json)


@app.command()
def delete(name: Name, json: Json = False) -> None:
    """Delete a schedule with its history. Its jobs stay, and one that runs goes on."""
    with open_client() as client:
        client.delete_schedule(name)
    print_change({"name": name, "object": "schedule", "deleted": True}, f"{name} is deleted", as_json=json)


@contextmanager
def _mistakes_in_files() -> Iterator[None]:
    """Ends the command as a mistake in its options does."""
    try:
        yield
    except ConfigurationError as error:
        fail(error.message, EXIT_USAGE)


def _checked(client: "Client", plan: "Plan", there: Mapping[str, JsonObject]) -> Change:
    from nightshift.client import ApiError

    before = there.get(plan.name)
    try:
        after = client.apply_schedule(plan.body, dry_run=True)
    except ApiError as error:
        if error.code != CIRCLE:
            raise _blamed(plan, error) from error
        # There is one until the plans before it are applied, for the files make none.
        after = (before or {}) | plan.body | {"change": Kind.UPDATED if before else Kind.CREATED}
    return change_of(before, after)


def _carry_out(client: "Client", plans: "Sequence[Plan]", changes: Sequence[Change]) -> None:
    """Applies the plans, then deletes; what was done before an error stays.

    A plan that is as it was is applied, too: from then on its runs are made on behalf of this key.
    """
    from nightshift.client import ApiError

    for plan in plans:
        try:
            client.apply_schedule(plan.body)
        except ApiError as error:
            raise _blamed(plan, error) from error
    for change in changes:
        if change.kind is Kind.DELETED:
            client.delete_schedule(change.name)


def _blamed(plan: "Plan", error: "ApiError") -> NightshiftError:
    """The error with the file and the line of the plan, where the server refuses that."""
    return plan.error(error.message, error.param) if error.status in (400, 404, 409, 422) else error


def _print_changes(changes: Sequence[Change], *, json: bool) -> None:
    if json:
        print_json([change.as_json for change in changes])
        return
    for change in changes:
        if change.kind is not Kind.UNCHANGED:
            typer.echo(f"{MARKS[change.kind]} {printable(change.name)}")
            for path, (before, after) in change.fields.items():
                typer.echo(f"    {printable(path)}: {_difference(before, after)}")
            if change.kind is Kind.UPDATED and not change.fields:
                typer.echo("    webhook.secret, or another field that is not shown")


def _difference(before: Any, after: Any) -> str:
    return _json(after) if before is None else f"{_json(before)} → {_json(after)}"


def _say_outcome(changes: Sequence[Change], left: Sequence[str], *, dry_run: bool) -> None:
    counts = Counter(change.kind for change in changes)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in Kind if counts[kind])
    say(f"{'would be: ' if dry_run else ''}{said or 'there are no plans'}")
    if left:
        say(
            f"in none of the files, and left as they are: {', '.join(map(printable, left))} (--prune deletes)"
        )


def _schedule_line(schedule: JsonObject) -> tuple[object, ...]:
    next_runs, last = schedule.get("next_runs") or [None], schedule.get("last_run") or {}
    return (
        schedule["name"],
        _state_of(schedule),
        _time(next_runs[0]),
        _time(last.get("due_at")),
        last.get("state"),
        f"after {schedule['after']}" if schedule.get("after") else schedule.get("cron"),
        schedule.get("time_zone"),
        schedule.get("version"),
    )


def _state_of(schedule: JsonObject) -> str:
    problem = schedule.get("problem")
    if problem:
        return f"problem ({problem['code']})"
    return "paused" if schedule.get("paused_at") else "active"


def _run_line(run: JsonObject) -> tuple[object, ...]:
    values = ((field, run[field]) for _, field in RUN_COLUMNS)
    return tuple(None if value is None else value_text(field, value) for field, value in values)


def _next_text(schedule: JsonObject) -> str:
    next_runs = schedule.get("next_runs")
    return f"; its next run is at {time_text(next_runs[0])}" if next_runs else ""


def _readable(field: str, value: Any) -> str:
    if field == "next_runs":
        return ", ".join(map(time_text, value))
    if field == "problem":
        return printable(f"{value['message']} ({value['code']})")
    if field == "last_run":
        return printable(f"{value['state']}, due {time_text(value['due_at'])}, {value['job_id'] or 'no job'}")
    return value_text(field, value)


def _time(at_s: int | None) -> str | None:
    return None if at_s is None else time_text(at_s)


def _json(value: Any) -> str:
    return printable(json_module.dumps(value, ensure_ascii=False))
