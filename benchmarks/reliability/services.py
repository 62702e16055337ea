"""The whole service with production's timeouts and the fake engine: real processes, on a real disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from nightshift.process.settings import SchedulerSettings, WorkerSettings
from tests.faults.kit.launch import SCALED, running
from tests.faults.kit.service import Parts, Service, Stamp
from tests.helpers.waiting import wait_for
from workers.intake.claiming import IntakeTimes

Database = Literal["sqlite", "postgresql"]
POINTS = "points.log"

_FIELDS = {**WorkerSettings.model_fields, **SchedulerSettings.model_fields}

# The fault tests shorten these timeouts; a figure uses production's.
PRODUCTION = {name: str(_FIELDS[name.lower()].default) for name in SCALED if name.lower() in _FIELDS} | {
    "FAKE_POLL_S": str(IntakeTimes().poll_s)
}


@contextmanager
def service_on(
    database: Database, *, workers: int = 1, timed: bool = False, **settings: str
) -> Iterator[Service]:
    """A service whose commits wait for the disk. `settings` as in `tests.faults.kit.launch.running`.

    `timed`: every process records when it passes a failpoint; `points` reads that.
    """
    parts = Parts(database=database, workers=workers, durable=True, are_forked=False)
    with tempfile.TemporaryDirectory(prefix="ns-bench-") as name:
        folder = Path(name)
        logs = {"FAILPOINT_LOG": str(folder / POINTS)} if timed else {}
        with running(folder, parts, **(PRODUCTION | logs | settings)) as service:
            yield service


def points(service: Service) -> Mapping[str, Sequence[int]]:
    """When each failpoint was passed, in ns of CLOCK_MONOTONIC, in order."""
    passed: dict[str, list[int]] = {}
    for line in (service.folder / POINTS).read_text().splitlines():
        at_ns, name = line.split()
        passed.setdefault(name, []).append(int(at_ns))
    return {name: sorted(times) for name, times in passed.items()}


def admissions(service: Service) -> Sequence[Stamp]:
    """Requests given to the engines, in order."""
    return [stamp for stamp in service.stamps() if stamp.what == "added"]


def wait_for_admissions(service: Service, count: int) -> None:
    """Returns once the engines have been given `count` requests."""
    wait_for(f"{count} admissions", lambda: len(admissions(service)) >= count)
