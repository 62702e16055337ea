"""A job's progress on a terminal; in a pipe, only what keeps the job from going on."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from nightshift.cli.terminal import is_interactive, problem_text, rows_text, say, time_text
from nightshift.client import RemoteJob

PACE_WINDOW_S: Final = 15.0  # steady, yet quick to show a change
BAR_CELLS: Final = 20
NARROW_COLUMNS: Final = 110  # below, a shorter bar and no rates, so that it stays one line
NARROW_BAR_CELLS: Final = 8
ID_CHARS_SHOWN: Final = 10  # enough to tell jobs apart

Show = Callable[[RemoteJob], None]


@dataclass(frozen=True)
class Sample:
    at_s: float
    rows: int
    tokens: int


@dataclass
class Pace:
    """Recent rows and tokens per second."""

    samples: deque[Sample] = field(default_factory=deque)

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        while self.samples[-1].at_s - self.samples[0].at_s > PACE_WINDOW_S and len(self.samples) > 2:
            self.samples.popleft()

    @property
    def rows_per_s(self) -> float:
        return self._per_second(self.samples[-1].rows - self.samples[0].rows) if self.samples else 0.0

    @property
    def tokens_per_s(self) -> float:
        return self._per_second(self.samples[-1].tokens - self.samples[0].tokens) if self.samples else 0.0

    def left_s(self, rows_left: int) -> float | None:
        """Seconds until this many more rows are done, if known."""
        return rows_left / self.rows_per_s if self.rows_per_s > 0 else None

    def _per_second(self, amount: int) -> float:
        elapsed_s = self.samples[-1].at_s - self.samples[0].at_s
        return amount / elapsed_s if elapsed_s > 0 else 0.0


@contextmanager
def progress_of(job_id: str) -> Iterator[Show]:
    """Yields a function to call with each change of the job."""
    if not is_interactive():
        yield ProblemLines(say).show
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    from rich.table import Column

    console = Console(stderr=True)
    is_narrow = console.width < NARROW_COLUMNS
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=NARROW_BAR_CELLS if is_narrow else BAR_CELLS, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[says]}", table_column=Column(no_wrap=False)),  # narrow text wraps
    )
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task(f"{_short(job_id)} queued", total=None, says="")
        pace = Pace()
        # Above the bar, where a line stays.
        problems = ProblemLines(lambda line: console.print(line, markup=False, highlight=False))

        def show(job: RemoteJob) -> None:
            problems.show(job)
            pace.add(
                Sample(time.monotonic(), job.rows_done, job.usage.prompt_tokens + job.usage.completion_tokens)
            )
            description = f"{_short(job.id)} {job.state}"
            bars.update(
                bar,
                description=description,
                completed=job.rows_done,
                total=job.rows_expected,
                says=describe(job, pace, is_narrow=is_narrow),
            )

        yield show


@dataclass
class ProblemLines:
    """A line when a problem of a job, or the wait for its window, begins, changes and is over."""

    print: Callable[[str], None]
    shown: str | None = None  # the code of the problem, or that of the wait

    def show(self, job: RemoteJob) -> None:
        problem, resumes_at = job.data.get("problem"), job.data.get("resumes_at")
        if problem is not None:
            cause, said = problem["code"], problem_text(problem)
        elif resumes_at is not None:
            cause, said = str(resumes_at), f"{job.id} waits for its window, until {time_text(resumes_at)}"
        else:
            cause, said = None, f"{job.id} goes on"
        if cause == self.shown or job.state.is_terminal:
            return
        self.shown = cause
        self.print(said)


def _short(job_id: str) -> str:
    return job_id if len(job_id) <= ID_CHARS_SHOWN else f"{job_id[:ID_CHARS_SHOWN]}…"


def describe(job: RemoteJob, pace: Pace, *, is_narrow: bool = False) -> str:
    """`1200/5000 rows, 3 failed, 85.0 rows/s, 9100 tokens/s, 0:00:45 left`, if narrow without the rates."""
    about = "" if job.counts.total is not None else "about "
    total = f"/{about}{job.rows_expected}" if job.rows_expected is not None else ""
    words = [f"{job.rows_done}{total} rows" if total else rows_text(job.rows_done)]
    if job.counts.failed:
        words.append(f"{job.counts.failed} failed")
    if pace.rows_per_s > 0 and not is_narrow:
        words += [f"{pace.rows_per_s:.1f} rows/s", f"{pace.tokens_per_s:.0f} tokens/s"]
    left_s = None if job.rows_expected is None else pace.left_s(max(0, job.rows_expected - job.rows_done))
    if left_s is not None:
        minutes, seconds = divmod(round(left_s), 60)
        words.append(f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left")
    return ", ".join(words)
