"""`nightshift worker`: supervise one Celery worker, and release its leases when it ends."""

import signal
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Final

import typer

from nightshift.cli.processes.children import Child, RestartBackoff
from nightshift.cli.processes.gpus import Workers, gpus_for, shares
from nightshift.cli.processes.supervisor import Spawn, Supervisor, run_program
from nightshift.cli.session import LazyModels, Upstreams
from nightshift.cli.terminal import EXIT_FAILED, fail
from nightshift.errors import ConfigurationError
from nightshift.process.exit_codes import CONFIGURATION_EXIT

# Short: a dead worker's rows already wait for a model to be loaded again.
RESTART: Final = RestartBackoff(first_s=0.2)
HEARD_OF_WITHIN: Final = timedelta(seconds=30)  # six heartbeats


def worker(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="PATH_OR_ID",
            help="A model to serve: a directory or a hub id. May be repeated.  [default: NIGHTSHIFT_MODELS]",
            show_default=False,
        ),
    ] = None,
    lazy_model: LazyModels = None,
    upstream: Upstreams = None,
    workers: Workers = None,
    check: Annotated[
        bool, typer.Option("--check", help="Start nothing; exit 0 if a worker on this host is ready, else 1.")
    ] = False,
) -> None:
    """Run a worker on each GPU, or one without, or one for upstreams, and keep them running.

    SIGTERM drains them: unfinished work is saved and handed back, and the command exits 0.
    """
    if check:
        _check()
        return
    from nightshift.cli.models import with_added
    from nightshift.cli.processes.worker_child import worker_children
    from nightshift.cli.session import data_settings
    from nightshift.fleet.checkpoints import check_references
    from nightshift.process.settings import WorkerSettings, check_settings
    from nightshift.process.upstreams import read_upstreams

    check_settings()
    given = {
        "models": tuple(model or ()),
        "lazy_models": tuple(lazy_model or ()),
        "upstreams": tuple(upstream or ()),
    }
    settings = WorkerSettings().model_copy(update={name: models for name, models in given.items() if models})
    if settings.upstreams:
        read_upstreams(settings.upstreams)
        keep_running(worker_children(settings, shares(workers or 1, ())))
        return
    if not settings.models and not settings.lazy_models:
        raise ConfigurationError(
            "a worker needs a model: use --model, --upstream, NIGHTSHIFT_MODELS or NIGHTSHIFT_UPSTREAMS",
            param="model",
        )
    models = with_added(settings.models, data_settings().data_dir)
    check_references(models, settings.lazy_models)
    settings = settings.model_copy(update={"models": models})
    gpus = gpus_for(settings.device, settings.engine_tensor_parallel_size)
    keep_running(worker_children(settings, shares(workers or len(gpus) or 1, gpus)))


def keep_running(children: Sequence[Child], spawn: Spawn = run_program) -> None:
    """Supervises workers until they are asked to stop or a restart can help none of them."""
    from nightshift.broker.queue import Queue
    from nightshift.cli.processes.worker_child import WorkerExitHandler
    from nightshift.fleet.workers import ExitCause
    from nightshift.process.logs import set_up_logging
    from nightshift.process.private_files import keep_files_private
    from nightshift.process.settings import DataSettings, QueueSettings, SchedulerSettings
    from nightshift.store import Store, open_database

    set_up_logging("supervisor")
    keep_files_private(DataSettings())
    store = Store(open_database(DataSettings()))
    queue = Queue(QueueSettings())
    handler = WorkerExitHandler(store, queue, SchedulerSettings().attempts_max, workers=len(children))
    supervisor = Supervisor([children], on_exit=handler, backoff=RESTART, spawn=spawn)
    with supervisor.signals(forwarded=[signal.SIGUSR1]):
        try:
            supervisor.start()
            supervisor.watch()
        finally:
            stopped = [handler.record_exit(ended, was_told=True) for ended in supervisor.stop()]
            queue.close()
            store.close()
    if (ended := handler.gave_up_on) is not None:
        fail(f"giving up: {ended}", CONFIGURATION_EXIT if ended.is_configuration else EXIT_FAILED)
    if unclean := [recorded.cause for recorded in stopped if recorded.cause is not ExitCause.DRAINED]:
        fail(f"a worker did not end by itself ({unclean[0].value}): what it held is run again")


def _check() -> None:
    """A container's health check of this host's workers, from the database."""
    from nightshift.cli.session import operator_store
    from nightshift.fleet.workers import WorkerState

    host = socket.gethostname()
    with operator_store() as store, store.snapshot() as tx:
        ready = tx.workers.list(heartbeat_since=tx.now() - HEARD_OF_WITHIN, state=WorkerState.READY)
    if not any(worker.host == host for worker in ready):
        fail(f"no worker on {host} is ready")
