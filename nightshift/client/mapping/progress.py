"""The progress of a call on a terminal or in a notebook; elsewhere, in the log, what keeps it waiting."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nightshift.client.answers import RemoteJob

log = logging.getLogger(__name__)


@contextmanager
def progress_bar(name: str, *, is_wanted: bool) -> Iterator[Callable[[RemoteJob], None]]:
    """Yields a function to call with each look at the job."""
    from rich.console import Console

    console = Console(stderr=True)
    if not is_wanted or not (console.is_terminal or console.is_jupyter):
        logged: str | None = None

        def log_problem(job: RemoteJob) -> None:
            nonlocal logged
            problem = job.data.get("problem") or {}
            if problem and problem["code"] != logged:
                log.warning("%s waits: %s", name, problem["message"])
            logged = problem.get("code")

        yield log_problem
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        bar = bars.add_task(name, total=None)

        def show(job: RemoteJob) -> None:
            problem = job.data.get("problem")
            said = f"{job.counts.failed} failed" if job.counts.failed else str(job.state)
            says = f"{name}: {problem['message'] if problem else said}"
            bars.update(bar, description=says, completed=job.rows_done, total=job.rows_expected)

        yield show
