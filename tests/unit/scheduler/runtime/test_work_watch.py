"""The watch asks only when there may be something new, and says which duties are due."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from nightshift.errors import DatabaseUnavailable
from nightshift.store import PendingWork
from scheduler.runtime.duty import PassResult
from scheduler.runtime.work_watch import WatchConfig, WorkWatch
from tests.helpers.fakes import STARTS_AT

CONFIG = WatchConfig()


@dataclass
class FakeDatabase:
    """A database that counts queries and answers what a test says."""

    clock_s: float = 100.0
    has_committed: bool = False
    query_s: float = 0.0  # how long the query takes
    error: Exception | None = None
    work: PendingWork = field(default_factory=lambda: PendingWork(at=STARTS_AT))
    queries: int = 0

    @property
    def now(self) -> datetime:
        return STARTS_AT + timedelta(seconds=self.clock_s - 100.0)

    def seen(self) -> bool:
        if self.error is not None:
            raise self.error
        seen, self.has_committed = self.has_committed, False
        return seen

    def close(self) -> None:
        """Nothing is open."""

    def ask(self) -> PendingWork:
        self.queries += 1
        answer = replace(self.work, at=self.now)
        self.clock_s += self.query_s
        return answer

    def commits(self, **work: object) -> None:
        """Says what there is to do from now on."""
        self.work = replace(self.work, **work)
        self.has_committed = True


@dataclass
class Delivering:
    """A duty that waits for a time."""

    name: str = "delivering"
    interval_s: float = 0.1
    own_at: datetime | None = None  # from its own memory

    def due_at(self, work: PendingWork) -> datetime | None:
        return self.own_at or work.next_delivery_at

    def run_once(self, now: datetime) -> PassResult:
        return PassResult()


class Stopping(Delivering):
    """A duty with something to do while a flag is up."""

    def due_at(self, work: PendingWork) -> datetime | None:
        return work.at if work.is_stopping else None


@dataclass
class Watched:
    database: FakeDatabase = field(default_factory=FakeDatabase)
    delivering: Delivering = field(default_factory=Delivering)
    leads: bool = True

    def __post_init__(self) -> None:
        duties = (self.delivering, Stopping("stopping"))
        self.watch = WorkWatch(
            self.database.ask,
            self.database,
            duties,
            lambda: self.leads,
            clock=lambda: self.database.clock_s,
        )

    def due_after(self, seconds: float = 0.0) -> set[str]:
        """A look is taken after so long."""
        self.database.clock_s += seconds
        self.watch.look()
        return {name for name in ("delivering", "stopping") if self.watch.is_due(name)}

    def begin_passes(self) -> None:
        for name in ("delivering", "stopping"):
            self.watch.begin_pass(name)


@pytest.fixture
def watched() -> Watched:
    """Its duties have made their first pass, and found nothing."""
    watch = Watched()
    assert watch.due_after() == {"delivering", "stopping"}, "a leader begins with a pass of each"
    watch.begin_passes()
    assert watch.due_after() == set()
    return watch


def test_without_a_commit_nothing_is_asked(watched: Watched) -> None:
    before = watched.database.queries
    for _ in range(40):
        assert watched.watch.look() == CONFIG.idle_look_s
        watched.database.clock_s += 0.1
    assert watched.database.queries == before


def test_a_commit_wakes_the_duty_that_it_concerns_and_no_other(watched: Watched) -> None:
    before = watched.database.queries
    watched.database.commits()
    assert watched.due_after(0.1) == set(), "it is no work"
    assert watched.database.queries == before + 1

    watched.database.commits(is_stopping=True)
    assert watched.due_after(0.1) == {"stopping"}


def test_a_duty_stays_due_after_a_pass_until_there_is_nothing_left(watched: Watched) -> None:
    watched.database.commits(is_stopping=True)
    watched.due_after(0.1)
    watched.begin_passes()
    assert watched.due_after(0.1) == {"stopping"}, "and nothing was committed"

    watched.begin_passes()
    watched.database.commits(is_stopping=False)
    assert watched.due_after(0.1) == set()


def test_a_duty_is_due_from_its_time_on_and_then_asks_anew(watched: Watched) -> None:
    watched.database.commits(next_delivery_at=watched.database.now + timedelta(seconds=3))
    assert watched.due_after(0.1) == set()
    assert watched.due_after(2.8) == set()
    before = watched.database.queries
    assert watched.due_after(0.2) == {"delivering"}
    assert watched.database.queries == before + 1


def test_while_there_is_a_job_looks_follow_sooner_and_the_next_one_when_a_duty_is_due(
    watched: Watched,
) -> None:
    watched.database.commits(first_deadline_at=watched.database.now + timedelta(days=1))
    watched.due_after(0.1)
    assert watched.watch.look() == CONFIG.look_s
    watched.database.commits(next_delivery_at=watched.database.now + timedelta(seconds=0.05))
    assert watched.watch.look() == pytest.approx(0.05)


def test_what_has_gone_before_its_time_wakes_none(watched: Watched) -> None:
    """A ring is owed for a moment, until its sender deletes it."""
    watched.database.commits(next_delivery_at=watched.database.now + timedelta(seconds=1))
    watched.due_after(0.1)
    watched.database.commits(next_delivery_at=None)
    assert watched.due_after(2) == set()


def test_a_duty_is_due_by_what_it_keeps_in_memory(watched: Watched) -> None:
    watched.delivering.own_at = watched.database.now + timedelta(seconds=1)
    assert watched.due_after(0.9) == set()
    assert watched.due_after(0.2) == {"delivering"}


def test_an_old_answer_is_not_used(watched: Watched) -> None:
    """The database's clock may have been set, and a commit missed."""
    watched.database.work = replace(watched.database.work, is_stopping=True)
    assert watched.due_after(CONFIG.kept_s - 0.1) == set()
    assert watched.due_after(0.2) == {"stopping"}


def test_a_query_that_takes_long_is_made_less_often(watched: Watched) -> None:
    watched.database.query_s = 1.0
    watched.database.commits()
    watched.due_after(0.1)
    before = watched.database.queries
    watched.database.commits(is_stopping=True)
    assert watched.due_after(CONFIG.asking_pause_max_s - 0.01) == set()
    assert watched.database.queries == before
    assert watched.due_after(0.02) == {"stopping"}, "and the commit was not forgotten"


def test_a_standby_asks_nothing_and_begins_with_a_pass_of_each_duty_once_it_leads(watched: Watched) -> None:
    watched.leads = False
    watched.database.commits(is_stopping=True)
    before = watched.database.queries
    assert watched.watch.look() == CONFIG.standby_s
    assert watched.due_after(60) == set()
    assert watched.database.queries == before

    watched.leads = True
    assert watched.due_after(0.5) == {"delivering", "stopping"}


@pytest.mark.parametrize("error", [DatabaseUnavailable(), RuntimeError("of all things")])
def test_while_looks_fail_every_duty_passes_and_says_so_itself(
    watched: Watched, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    watched.database.error = error
    assert watched.watch.look() == CONFIG.retry_s
    assert watched.due_after(1) == {"delivering", "stopping"}
    said = [record for record in caplog.records if vars(record)["action"] == "watch_failed"]
    assert len(said) == (0 if isinstance(error, DatabaseUnavailable) else 1), "not at every look"

    watched.database.error = None
    assert watched.due_after(1) == {"delivering", "stopping"}
    watched.begin_passes()
    assert watched.due_after(0.1) == set()


def test_closing_releases_what_waits(watched: Watched) -> None:
    watched.watch.close()
    watched.watch.wait_until_due("delivering", timeout_s=3600)
