"""One round of chaos: work without a pause, faults in the midst of it, rest, and the oracle."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import func, select

from nightshift.errors import DatabaseUnavailable
from nightshift.jobs import Face, JobKind, JobState
from nightshift.store import tables
from tests.faults.chaos import oracle
from tests.faults.chaos.damage import Damage
from tests.faults.chaos.oracle import Limits, OracleFailure
from tests.faults.chaos.recoveries import Recoveries
from tests.faults.chaos.schedule import Action, Kind
from tests.faults.chaos.workload import BulkJob, Job, Row, some_rows, submit_bulk, submit_online
from tests.faults.kit.processes import Footprint
from tests.faults.kit.service import Service
from workers.upstreams.messages.continuing import LONG_TOKENS

JOBS_OPEN_MAX: Final = 6  # bulk jobs that have not ended: enough for all workers, and soon done
FEED_S: Final = 0.25  # between two submissions
ROWS: Final = 40  # of a bulk job; two or three shards of them
STEP_MS: Final = 20  # of the fake engine

LIMITS: Final = Limits(attempts_max=20, kills_are_many=True)  # as many attempts as the service allows
REST_S: Final = 120.0  # after a round's last fault: leases run out, leaders are replaced, delays end
GROWTH_MAX_BYTES: Final = 96 * 1024 * 1024
"""Bytes by which a process may grow after the first round that it lived through. A scheduler that waits for
the lead grows by 70 MiB when it takes it.
"""
GROWTH_MAX_FILES: Final = 50


@dataclass(frozen=True)
class Length:
    """The sizes of generated texts, for an engine's speed."""

    row_tokens: tuple[int, int]
    long_row_tokens: int | None  # outlasts a carry-over's interval: tokens are saved and gone on from
    sampling: Mapping[str, Any] = field(default_factory=dict)
    has_online: bool = True


LENGTHS: Final = {
    "fake": Length((10, 60), 200),
    "upstream": Length((10, 60), LONG_TOKENS, {"ignore_eos": True}),
    # Online requests that wait for an upstream for a minute are told so: vLLM is away for longer.
    "vllm": Length((10, 60), None, {"temperature": 0, "ignore_eos": True}, has_online=False),
    "demo": Length((50, 150), 200, {"temperature": 1.0, "ignore_eos": True}),
}


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round that passed, in numbers."""

    seed: int
    round_no: int
    seconds: float
    kills: int  # processes of ours that died by SIGKILL, at failpoints too
    jobs: int
    rows: int
    rows_redone: (
        dict[str, int] | None
    )  # finished twice, by what cost the first time; our engine does not tell
    tokens_redone: int  # as the service counts them
    attempts_most: int  # leases of one shard
    repeated_webhooks: int
    grown_bytes: int  # the most any process has grown since the first round it lived through
    grown_files: int
    faults: dict[str, int]
    recovery_s: dict[str, list[float]]  # until what the killed process held was leased again, by fault
    free_s: dict[str, list[float]] = field(default_factory=dict)  # … was to be had by others
    dead_lettered: int = (
        0  # rows that were alone in a worker each time it was killed, and are taken for the reason
    )
    rest_s: float = 0.0  # from the last fault until nothing was left to do


class Rounds:
    """Plays rounds against one running service."""

    def __init__(self, service: Service, seed: int, say: Callable[[str], None] = print) -> None:
        self._service = service
        self._seed = seed
        self._say = say
        self._first_seen: dict[int, Footprint] = {}  # of a process, at the end of the first round it saw

    def play(self, round_no: int, actions: Sequence[Action]) -> Round:
        """Raises OracleFailure, or TimeoutError when the service does not come to rest."""
        service = self._service
        started_s = time.monotonic()
        with Recoveries(service) as recoveries:
            damage = Damage(service, recoveries)
            with Feeder(service, round_no) as feeder:
                for action in actions:
                    time.sleep(action.wait_s)
                    self._say(f"round {round_no}: {action}")
                    damage.do(action)
                damage.over()
            faults = Counter(str(action.kind) for action in actions)
            faults[Kind.FAILPOINT] -= len(service.disarm())
            last_s = time.monotonic()
            self._come_to_rest(feeder.jobs)
            rest_s = time.monotonic() - last_s
        verdict = oracle.check(service, feeder.jobs, LIMITS)
        grown_bytes, grown_files = self._check_growth()
        return Round(
            seed=self._seed,
            round_no=round_no,
            seconds=round(time.monotonic() - started_s, 1),
            kills=sum(count for kind, count in faults.items() if Kind(kind).is_kill),
            jobs=verdict.jobs,
            rows=verdict.rows,
            rows_redone=self._rows_redone(feeder.jobs, recoveries),
            tokens_redone=self._tokens_redone(feeder.jobs),
            attempts_most=verdict.attempts_most,
            repeated_webhooks=verdict.repeated_webhooks,
            grown_bytes=grown_bytes,
            grown_files=grown_files,
            faults={kind: count for kind, count in faults.items() if count},
            recovery_s=recoveries.over_s,
            free_s=recoveries.free_s,
            rest_s=round(rest_s, 1),
            dead_lettered=verdict.dead_lettered,
        )

    def _come_to_rest(self, jobs: Sequence[Job]) -> None:
        """A sender that died has its webhooks to itself for a minute: that much is not waited for."""
        patience_s = REST_S * self._service.parts.slower
        oracle.wait_for_ends(self._service, jobs, patience_s)
        self._service.let_webhooks_be_due()
        oracle.quiesce(self._service, jobs, patience_s)

    def _rows_redone(self, jobs: Sequence[Job], recoveries: Recoveries) -> dict[str, int] | None:
        if self._service.parts.engine != "fake":
            return None  # only the fake one stamps what it does
        ids = {job.id for job in jobs if isinstance(job, BulkJob)}
        redone: Counter[str] = Counter()
        before: dict[str, tuple[str, int, int]] = {}  # under which lease a row was last finished
        for stamp in self._service.stamps():
            if stamp.what != "done" or stamp.lease is None or stamp.lease[0] not in ids:
                continue
            if stamp.row in before:
                redone[recoveries.lost.get(before[stamp.row], "another fault")] += 1
            before[stamp.row] = stamp.lease
        return dict(redone)

    def _tokens_redone(self, jobs: Sequence[Job]) -> int:
        with self._service.store.snapshot() as tx:
            return sum(tx.jobs.fetch(job.id).tokens_redone for job in jobs)

    def _check_growth(self) -> tuple[int, int]:
        """A process that has lived through rounds has not grown. Returns the most bytes and open files."""
        grown = [(0, 0)]
        for role, now in self._service.footprints().items():
            then = self._first_seen.setdefault(now.pid, now)
            grown.append((now.rss_bytes - then.rss_bytes, now.open_files - then.open_files))
            if grown[-1][0] > GROWTH_MAX_BYTES or grown[-1][1] > GROWTH_MAX_FILES:
                raise OracleFailure(f"{role} grows: {then}, later {now}")
        return max(size for size, _ in grown), max(files for _, files in grown)


class Feeder:
    """Keeps the service at work from a thread of its own, within `with`."""

    def __init__(self, service: Service, round_no: int) -> None:
        self._service = service
        self._round_no = round_no
        self._length = LENGTHS[service.parts.engine]
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self.jobs: list[Job] = []  # what was accepted

    def __enter__(self) -> "Feeder":
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error is not None and about[0] is None:
            raise self._error

    def _run(self) -> None:
        number = 0
        try:
            while not self._is_over.wait(FEED_S):
                self._feed(number)
                number += 1
        except (AssertionError, TimeoutError) as error:
            self._error = error

    def _feed(self, number: int) -> None:
        service, length, name = self._service, self._length, f"{self._round_no}-{number}"
        if length.has_online:
            self.jobs.append(submit_online(service, Row(name, f"online {name} ms={STEP_MS}", 8)))
        if self._jobs_open() < JOBS_OPEN_MAX:
            face = Face.OPENAI if number % 3 == 2 else Face.NATIVE
            seed, sampling = self._round_no * 10_000 + number, length.sampling
            rows = some_rows(ROWS, seed=seed, step_ms=STEP_MS, tokens=length.row_tokens, sampling=sampling)
            rows.append(Row("long", f"{name} ms={STEP_MS}", length.long_row_tokens, sampling=sampling))
            self.jobs.append(submit_bulk(service, rows, face=face))

    def _jobs_open(self) -> int:
        job = tables.job
        ended = [state for state in JobState if state.is_terminal]
        try:
            with self._service.database.read() as connection:
                return connection.execute(
                    select(func.count()).where(job.c.kind == JobKind.BULK, job.c.state.not_in(ended))
                ).scalar_one()
        except DatabaseUnavailable:
            return JOBS_OPEN_MAX
