"""`nightshift workers`: list and drain workers, directly in the database, since they belong to no tenant."""

from typing import Annotated, Any

import typer

from nightshift.cli.session import DataDir, Json, operator_store
from nightshift.cli.terminal import print_list, say, utc_text
from nightshift.fleet.workers import MachineNotice, Worker, WorkerState
from nightshift.tenants.audit import Actor

app = typer.Typer(help="List workers, and drain one.", no_args_is_help=True)


@app.command("list")
def list_workers(
    all: Annotated[
        bool, typer.Option("--all", help="Also those that have stopped, with the cause if it is known.")
    ] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """List workers, newest first. Models in brackets are not loaded."""
    with operator_store(data_dir) as store, store.snapshot() as tx:
        workers = [worker for worker in tx.workers.list() if all or worker.state is not WorkerState.STOPPED]
    headings = ("ID", "HOST", "PID", "STATUS", "CAPACITY", "MODELS", "STARTED", "HEARTBEAT", "ENDED")
    print_list(workers, headings, _line, json=json, as_json=_as_json)


@app.command()
def drain(
    worker_id: Annotated[str, typer.Argument(metavar="ID", help="As shown by `nightshift workers list`.")],
    data_dir: DataDir = None,
) -> None:
    """Drain a worker: it hands back what it has, and ends.

    It hears of it with its next heartbeat, within seconds. `nightshift worker` then ends with exit code 0 and
    starts no other.
    """
    from nightshift.lifecycle.controls import request_drain

    with operator_store(data_dir) as store, store.transaction() as tx:
        request_drain(tx, Actor.of_user(), worker_id)
    say(f"{worker_id} will drain")


def _line(worker: Worker) -> tuple[object, ...]:
    return (
        worker.id,
        worker.host,
        worker.pid,
        _status(worker),
        worker.capacity.value,
        ",".join(id if id in worker.warm else f"({id})" for id in worker.models),
        utc_text(worker.started_at),
        utc_text(worker.heartbeat_at),
        worker.ended_cause and worker.ended_cause.value,
    )


def _status(worker: Worker) -> str:
    if worker.notice is not None and worker.state is WorkerState.READY:
        return f"{worker.notice.kind.value} notice"
    is_requested = worker.drain_requested_at is not None
    return "drain requested" if is_requested and worker.state is WorkerState.READY else worker.state.value


def _as_json(worker: Worker) -> dict[str, Any]:
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "status": worker.state.value,
        "capacity": worker.capacity.value,
        "models": list(worker.models),
        "warm_models": list(worker.warm),
        "started_at": utc_text(worker.started_at),
        "heartbeat_at": utc_text(worker.heartbeat_at),
        "drain_requested_at": utc_text(worker.drain_requested_at),
        "notice": _notice_json(worker.notice),
        "ended_at": utc_text(worker.ended_at),
        "ended_cause": worker.ended_cause and worker.ended_cause.value,
    }


def _notice_json(notice: MachineNotice | None) -> dict[str, str | None] | None:
    if notice is None:
        return None
    return {
        "kind": notice.kind.value,
        "received_at": utc_text(notice.received_at),
        "ends_at": utc_text(notice.ends_at),
    }
