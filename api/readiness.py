"""Checks the parts that the service depends on; a missing optional one means degraded."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from api.services import Services
from nightshift.errors import NightshiftError
from nightshift.store.databases.migrate import serves

PROBE_KEY: Final = "readyz"  # never exists
WORKER_SILENCE_MAX: Final = timedelta(seconds=30)  # six heartbeats


@dataclass(frozen=True)
class Part:
    """A part and its problem, if any."""

    name: str
    is_required: bool
    problem: str | None

    @property
    def is_well(self) -> bool:
        return self.problem is None


def check_parts(services: Services) -> Sequence[Part]:
    """Check every part now. Blocks up to their timeouts."""
    needs_worker = services.settings.api.ready_needs_worker
    database = _problem_with_database(services)
    return (
        Part("database", True, database),
        Part("storage", True, _problem_with_storage(services)),
        Part("queue", False, _problem_with_queue(services)),
        Part("worker", needs_worker, database or _problem_with_workers(services)),
    )


def _problem_with_database(services: Services) -> str | None:
    try:
        if not serves(services.store.database):
            return "the schema is not the one this version expects; run the migrations"
    except NightshiftError as error:
        return error.message
    return None


def _problem_with_storage(services: Services) -> str | None:
    try:
        services.objects.head(PROBE_KEY)
    except NightshiftError as error:
        return error.message
    return None


def _problem_with_queue(services: Services) -> str | None:
    try:
        services.queue.ping()
    except NightshiftError as error:
        return error.message
    return None


def _problem_with_workers(services: Services) -> str | None:
    with services.store.snapshot() as tx:
        if tx.workers.ready_since(tx.now() - WORKER_SILENCE_MAX) == 0:
            return "no worker is ready"
    return None
