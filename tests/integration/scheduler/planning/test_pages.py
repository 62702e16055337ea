"""An input of many objects is cut page by page: whatever happens between two, every row has one result."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.endpoints.texts.chat import Chat
from nightshift.errors import Conflict, ObjectNotFound
from nightshift.jobs import Job, JobState, JsonObject, ShardState, StopReason
from nightshift.jobs.part import MANIFEST_NAME
from nightshift.jobs.planning import PlanCursor
from nightshift.jobs.shard import Ring
from nightshift.lifecycle import controls, retry
from nightshift.lifecycle.tenants import Administration
from nightshift.objectstore import ObjectInfo, ObjectStore, ObjectUri
from nightshift.objectstore.listings import DELTA_LOG
from nightshift.store.shards.shards import PreparedShards, Shards
from nightshift.tenants.audit import Actor
from scheduler.duties.planning import Planned, Planning
from scheduler.input import surveying
from scheduler.input.surveying import LISTED_AHEAD, NO_ROWS, SurveyConfig
from scheduler.input.writing import PlanOutcome
from tests.helpers.fakes import MODEL, FakeClock, InMemoryQueue, a_spec, claimed, submit
from tests.integration.scheduler.scheduling import IDLE_S, TEMPLATE, Place, a_line, jsonl, lines_of
from tests.integration.store.watching import request_stop

ONE_PAGE_A_TURN = {"turn_s": 0.0, "page_shards": 3, "first_page_shards": 2}


def a_folder(place: Place, objects: int) -> Job:
    """A job over objects of one row each."""
    (place.bucket / "in").mkdir()
    for number in range(objects):
        (place.bucket / "in" / f"{number:03}.jsonl").write_bytes(jsonl([{"text": f"text {number}"}]))
    return place.native(name="in/", template=TEMPLATE, model=MODEL)


def turn(place: Place, duty: Planning) -> Planned:
    """One turn of every job, and then its outcomes."""
    place.run(duty)
    ended = duty._pool.take_outcomes()
    return Planned(
        **{outcome.value: ended[outcome] for outcome in PlanOutcome if outcome is not PlanOutcome.PAGE}
    )


def plan(place: Place, duty: Planning, turns: int = 50) -> int:
    """Turns until none is left to take. Returns how many."""
    for count in range(turns):
        place.run(duty)
        with place.store.snapshot() as tx:
            if not tx.jobs.to_plan(1):
                return count + 1
    raise AssertionError(f"{turns} turns were not enough")


def texts(place: Place, job: Job) -> list[str]:
    """The answers in the job's output, in order of its parts."""
    parts = sorted(path for path in (place.bucket / "out").iterdir() if path.name.startswith("part-"))
    lines = [line for part in parts for line in lines_of(part.read_bytes())]
    return [
        line["response"]["body"]["choices"][0]["message"]["content"] for line in lines if line["response"]
    ]


def assemble(place: Place) -> None:
    place.write_parts()
    duty = place.assembly()
    place.run(duty)


def test_rows_run_while_the_rest_of_the_input_is_listed(place: Place) -> None:
    job, duty = a_folder(place, 10), place.planning(**ONE_PAGE_A_TURN)

    assert turn(place, duty).yielded == 1

    begun = place.job(job)
    assert (begun.planned_at, begun.model, begun.rows_expected, begun.rows_estimated) == (
        None,
        MODEL,
        None,
        2,
    )
    assert (len(place.shards(job)), len(place.queue.rings)) == (2, 2)
    assert place.work_off() == 2
    assert place.job(job).state is JobState.RUNNING

    assert plan(place, duty) == 3
    planned = place.job(job)
    assert planned.planned_at is not None
    assert planned.rows_expected == 10
    place.work_off()
    assemble(place)
    assert place.job(job).state is JobState.SUCCEEDED
    assert texts(place, job) == [f"text {number}" for number in range(10)]
    with place.store.snapshot() as tx:
        assert tx.holdings.differences() == {}
        events = list(tx.events.after("default", job.id, 0, limit=100))
    assert [event.data for event in events if event.type == "job.planned"] == [
        {"shards": 10, "rows_total": None}
    ]


def test_workers_that_ran_out_of_shards_are_rung_for_the_next_page(place: Place) -> None:
    a_folder(place, 8)
    duty = place.planning(**ONE_PAGE_A_TURN)
    turn(place, duty)
    turn(place, duty)
    assert len(place.queue.rings) == 2  # for the first page: its shards are still there
    place.work_off()
    turn(place, duty)
    assert len(place.queue.rings) == 5


def test_a_job_is_not_finalized_between_two_pages(place: Place) -> None:
    job, duty = a_folder(place, 5), place.planning(**ONE_PAGE_A_TURN)
    turn(place, duty)
    place.work_off()

    with place.store.snapshot() as tx:
        assert tx.jobs.to_finalize(10) == []
        assert [waiting.id for waiting in tx.jobs.to_plan(10)] == [job.id]


def test_another_scheduler_goes_on_behind_the_last_page(place: Place) -> None:
    job = a_folder(place, 12)
    turn(place, place.planning(**ONE_PAGE_A_TURN))
    turn(place, place.planning(turn_s=0.0, page_shards=4))
    plan(place, place.planning(shard_bytes=1))  # of these, none was begun

    shards = place.shards(job)
    assert [shard.shard_no for shard in shards] == list(range(len(shards)))
    assert list(dict.fromkeys(shard.uri for shard in shards)) == [
        place.uri(f"in/{number:03}.jsonl") for number in range(12)
    ]


def test_an_object_that_is_cut_in_several_pages_is_cut_as_in_one(place: Place) -> None:
    (place.bucket / "in.jsonl").write_bytes(jsonl({"text": f"text {number}"} for number in range(200)))
    job = place.native(template=TEMPLATE, model=MODEL)
    duty = place.planning(**ONE_PAGE_A_TURN)
    turns = plan(place, duty)
    shards = place.shards(job)
    assert turns > len(shards) // 3 > 3
    assert [shard.start for shard in shards[1:]] == [shard.end for shard in shards[:-1]]
    place.work_off()
    assert place.job(job).counts.succeeded == 200


def test_a_late_scheduler_writes_no_page_and_refuses_no_job(place: Place) -> None:
    job = a_folder(place, 12)
    duty, other = place.planning(**ONE_PAGE_A_TURN), place.planning(**ONE_PAGE_A_TURN)
    turn(place, duty)
    pages = duty._pages(place.job(job))
    late, page = place.job(job), next(pages)
    turn(place, other)
    before = place.shards(job)

    assert duty._writer.write(late, page) is PlanOutcome.TOO_LATE
    assert duty._writer.refuse(late, (NO_ROWS,)) is PlanOutcome.TOO_LATE

    assert place.shards(job) == before
    assert place.job(job).stop_reason is None


def a_batch(place: Place, rows: int) -> Job:
    return place.batch(jsonl(a_line(f"r{number}", f"text {number}") for number in range(rows)))


def test_a_batch_file_is_checked_once_and_recorded_in_pages(
    place: Place, pages: list["RecordedPage"], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str | None] = []
    check_line = Chat.check_line

    def noting(chat: Chat, body: JsonObject) -> int:
        checked.append(body["messages"][0]["content"])
        return check_line(chat, body)

    monkeypatch.setattr(Chat, "check_line", noting)
    job = a_batch(place, 40)
    duty = place.planning(turn_s=0.0, page_shards=3, shard_rows=5, shard_bytes=10_000)

    assert turn(place, duty).yielded == 1
    begun = place.job(job)
    assert (begun.planned_at, begun.model, begun.counts.total) == (None, MODEL, None)
    assert len(place.shards(job)) == 3
    assert place.work_off() == 3
    assert plan(place, duty) == 2

    assert checked == [f"text {number}" for number in range(40)]
    assert [page.shards for page in pages] == [3, 3, 2]
    assert [page.is_durable for page in pages] == [False, False, True]
    planned = place.job(job)
    assert (planned.counts.total, planned.rows_expected) == (40, 40)
    with place.store.snapshot() as tx:
        assert tx.holdings.differences() == {}
        [event] = [
            event for event in tx.events.after("default", job.id, 0, 100) if event.type == "job.planned"
        ]
    assert event.data == {"shards": 8, "rows_total": 40}
    place.work_off()
    assemble(place)
    ended = place.job(job)
    assert (ended.state, ended.counts.succeeded) == (JobState.SUCCEEDED, 40)
    assert len({line["custom_id"] for line in place.file_lines(ended, ended.output_file_id)}) == 40
    with place.store.snapshot() as tx:
        assert tx.holdings.differences() == {}


def test_a_batch_file_of_one_page_is_counted_as_before(place: Place, pages: list["RecordedPage"]) -> None:
    job = a_batch(place, 40)
    plan(place, place.planning(page_shards=100))
    assert [page.is_durable for page in pages] == [True]
    planned = place.job(job)
    assert (planned.counts.total, planned.rows_estimated) == (40, None)
    with place.store.snapshot() as tx:
        assert tx.holdings.total("default").bulk_rows == 40
        assert tx.holdings.differences() == {}


def test_a_scheduler_with_other_limits_cuts_the_rest_of_a_batch_file(place: Place) -> None:
    job = a_batch(place, 40)
    turn(place, place.planning(turn_s=0.0, page_shards=3, shard_rows=5, shard_bytes=10_000))
    turn(place, place.planning(turn_s=0.0, page_shards=2, shard_rows=3, shard_bytes=10_000))
    plan(place, place.planning(shard_rows=7, shard_bytes=10_000))

    shards = place.shards(job)
    assert [shard.shard_no for shard in shards] == list(range(len(shards)))
    assert [shard.first_row for shard in shards] == [0, 5, 10, 15, 18, 21, 28, 35]
    assert [shard.start for shard in shards[1:]] == [shard.end for shard in shards[:-1]]
    place.work_off()
    assert place.job(job).counts.succeeded == 40


def test_a_bad_line_at_the_end_of_a_batch_file_lets_no_row_run(place: Place) -> None:
    job = place.batch(jsonl(a_line(f"r{number}") for number in range(40)) + b"{\n")
    plan(place, place.planning(turn_s=0.0, page_shards=3, shard_rows=5))
    failed = place.job(job)
    assert (failed.state, [error.line for error in failed.errors]) == (JobState.FAILED, [41])
    assert place.shards(job) == []


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.EXPIRED])
def test_a_job_that_is_stopped_between_two_pages_gets_no_further_one(
    place: Place, reason: StopReason
) -> None:
    job, duty = a_folder(place, 12), place.planning(**ONE_PAGE_A_TURN)
    turn(place, duty)
    place.work_off(shards=1)
    assert request_stop(place.store, place.job(job), reason)
    turn(place, duty)
    assemble(place)

    ended = place.job(job)
    assert ended.state is reason.final_state
    assert (ended.counts.total, ended.counts.succeeded, ended.counts.failed) == (2, 1, 1)
    assert [shard.state for shard in place.shards(job)] == [ShardState.DONE, ShardState.STOPPED]
    assert texts(place, job) == ["text 0"]
    with pytest.raises(Conflict, match="not read to its end"):
        retry.check(ended)
    with place.store.snapshot() as tx:
        assert tx.holdings.differences() == {}
        assert not tx.holdings.total("default").bulk_rows


def test_a_paused_job_is_cut_on_and_not_claimed(place: Place) -> None:
    job, duty = a_folder(place, 5), place.planning(**ONE_PAGE_A_TURN)
    turn(place, duty)
    with place.store.transaction() as tx:
        controls.pause(tx, place.job(job), tx.now())
    plan(place, duty)
    with place.store.transaction() as tx:
        assert tx.claims.bulk("worker", [MODEL], tx.now(), 30) is None
        assert len(controls.resume(tx, place.job(job), tx.now())) == 5
    assert place.work_off() == 5


def test_a_broken_object_behind_rows_that_ran_fails_the_job_which_keeps_them(place: Place) -> None:
    (place.bucket / "in").mkdir()
    for number in range(LISTED_AHEAD):
        pq.write_table(pa.table({"text": [f"text {number}"]}), place.bucket / "in" / f"{number:03}.parquet")
    (place.bucket / "in" / "999.parquet").write_bytes(b"PAR1 no footer")
    job = place.native(name="in/", template=TEMPLATE, model=MODEL)
    duty = place.planning(turn_s=0.0, page_shards=20, first_page_shards=20)
    turn(place, duty)
    place.work_off()
    plan(place, duty)
    assemble(place)

    ended = place.job(job)
    assert ended.state is JobState.FAILED
    assert (ended.errors[0].code, ended.errors[0].param) == ("unreadable_input", "input")
    assert "in/999.parquet" in ended.errors[0].message
    assert ended.counts.succeeded == 20
    assert texts(place, job)[:20] == [f"text {number}" for number in range(20)]


def test_empty_objects_get_no_shard_and_nothing_but_these_is_an_empty_input(place: Place) -> None:
    job = a_folder(place, 2)
    for number, ending in enumerate(10 * ["jsonl", "csv", "jsonl.gz", "csv.zst", "parquet", "arrow"]):
        (place.bucket / "in" / f"empty-{number}.{ending}").touch()
    (place.bucket / "nothing").mkdir()
    for number in range(50):
        (place.bucket / "nothing" / f"{number}.jsonl").write_bytes(b"\n" * (number % 2))
    output = place.uri("out/nothing/")
    nothing = place.native(name="nothing/", output=output, template=TEMPLATE, model=MODEL)

    plan(place, place.planning(turn_s=0.0, page_listed=7, page_shards=5, first_page_shards=5))

    assert len(place.shards(job)) == 2
    assert place.job(job).planned_at is not None
    failed = place.job(nothing)
    assert (failed.state, failed.errors[0].code) == (JobState.FAILED, "empty_input")


def test_the_model_is_that_of_the_first_rows_however_many_objects_have_none(place: Place) -> None:
    (place.bucket / "in").mkdir()
    for number in range(20):
        (place.bucket / "in" / f"{number:03}.jsonl").write_bytes(b"\n\n")
    (place.bucket / "in" / "last.jsonl").write_bytes(jsonl([a_line("a")]))
    job = place.native(name="in/")

    plan(place, place.planning(**ONE_PAGE_A_TURN))

    assert place.job(job).model == MODEL
    assert place.work_off() <= 2
    assert place.job(job).counts.succeeded == 1


def test_a_page_beyond_the_quota_waits_for_rows_to_end(place: Place, clock: FakeClock) -> None:
    with place.store.transaction() as tx:
        Administration(tx, Actor.of_user()).create_tenant("default", quotas={"queued_rows": 4})
    job, duty = a_folder(place, 5), place.planning(turn_s=60.0, page_shards=3, first_page_shards=2)

    assert turn(place, duty).postponed == 1
    assert (len(place.shards(job)), place.job(job).planning_attempts) == (2, 0)
    place.work_off(shards=1)
    assert turn(place, duty).started == 0  # it rests
    clock.advance(seconds=10)
    assert turn(place, duty).planned == 1
    assert len(place.shards(job)) == 5


def test_a_page_that_no_quota_will_ever_allow_fails_the_job_which_keeps_its_rows(place: Place) -> None:
    with place.store.transaction() as tx:
        Administration(tx, Actor.of_user()).create_tenant("default", quotas={"queued_rows": 2})
    job, duty = a_folder(place, 5), place.planning(**ONE_PAGE_A_TURN)
    turn(place, duty)
    place.work_off()
    assert turn(place, duty).refused == 1
    assemble(place)
    ended = place.job(job)
    assert (ended.state, ended.errors[0].code) == (JobState.FAILED, "insufficient_quota")
    assert (ended.counts.total, ended.counts.succeeded) == (2, 2)


class CountingStore:
    """An object store of generated objects of one row each, that counts what is asked of it."""

    def __init__(self, inner: ObjectStore, objects: int) -> None:
        self.listed = 0
        self.listings: list[str | None] = []
        self._inner = inner
        self._objects = objects

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        if prefix.endswith(DELTA_LOG):  # it has no table
            return
        self.listings.append(start_after)
        first = 0 if start_after is None else int(start_after.rpartition("/")[2].partition(".")[0]) + 1
        for number in range(first, self._objects):
            self.listed += 1
            yield ObjectInfo(
                key=f"{prefix}{number:07}.jsonl", size_bytes=20, etag="e", modified_at=FakeClock().now
            )

    def stream(self, key: str, *where: Any, **options: Any) -> Iterator[bytes]:
        if key.endswith(MANIFEST_NAME):
            raise ObjectNotFound
        yield b'{"text": "some tx"}\n'

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def counting(place: Place, objects: int) -> Iterator[CountingStore]:
    store = CountingStore(place.objects, objects)
    place.open_as(store)
    yield store


def test_no_more_is_listed_than_a_page_needs_and_nothing_twice(place: Place) -> None:
    job = place.native(name="in/", template=TEMPLATE, model=MODEL)
    with counting(place, objects=1000) as store:
        duty = place.planning(turn_s=0.0, page_shards=100)
        turn(place, duty)
        assert store.listed <= 64 + LISTED_AHEAD
        plan(place, duty)

        assert len(store.listings) == 1 + 10
        assert store.listed <= 1000 + len(store.listings) * LISTED_AHEAD
    with place.store.snapshot() as tx:
        numbers = [shard.shard_no for shard in tx.shards.of_job(job.id, limit=2000)]
    assert numbers == list(range(1000))


def test_one_listing_serves_all_pages_of_a_turn(place: Place) -> None:
    job = place.native(name="in/", template=TEMPLATE, model=MODEL)
    with counting(place, objects=1000) as store:
        turn(place, place.planning(page_shards=100))
        assert (store.listings, store.listed) == ([None], 1000)
    assert place.job(job).planned_at is not None


@dataclass(frozen=True)
class RecordedPage:
    shards: int
    is_durable: bool


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[RecordedPage]:
    """As they are recorded from here on."""
    recorded: list[RecordedPage] = []
    insert = Shards.insert_bulk

    def insert_bulk(shards: Shards, prepared: PreparedShards) -> None:
        options = shards._connection.get_execution_options()
        recorded.append(RecordedPage(prepared.count, options["nightshift_durable"]))
        insert(shards, prepared)

    monkeypatch.setattr(Shards, "insert_bulk", insert_bulk)
    return recorded


def test_no_writer_waits_while_shards_are_made_into_rows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_folder(place, 7)
    only_read: list[bool] = []
    prepare = Shards.prepared

    def prepared(shards: Shards, *arguments: Any) -> PreparedShards:
        only_read.append(shards._connection.get_execution_options().get("nightshift_reads_only", False))
        return prepare(shards, *arguments)

    monkeypatch.setattr(Shards, "prepared", prepared)
    plan(place, place.planning(page_shards=3, first_page_shards=2))

    assert only_read == [True, True, True]


def test_between_two_pages_another_tenants_job_has_its_turn(place: Place) -> None:
    specs = [a_spec(input=place.uri("in/"), template=TEMPLATE) for _ in range(8)]
    large = [submit(place.store, tenant_id="heavy", model=MODEL, spec=spec) for spec in specs]
    with counting(place, objects=100_000):
        duty = place.planning(turn_s=0.0, page_shards=10)
        turn(place, duty)
        other = place.batch(jsonl([a_line("a")]))
        turn(place, duty)
    assert place.job(other).planned_at is not None
    assert all(place.job(job).planned_at is None for job in large)


def test_what_a_job_has_cut_is_forgotten_once_it_is_planned(place: Place) -> None:
    job, duty = a_folder(place, 5), place.planning(**ONE_PAGE_A_TURN)
    turn(place, duty)
    assert place.job(job).plan_cursor.shards == 2
    plan(place, duty)
    assert place.job(job).plan_cursor == PlanCursor(page=3)
    assert claimed(place.store).job.id == job.id


class MeetingStore:
    """An object store whose objects' first reads wait for each other, so many at a time; it counts reads."""

    def __init__(self, inner: ObjectStore, parties: int) -> None:
        self.most_at_once = 0
        self._inner = inner
        self._barrier = threading.Barrier(parties, timeout=IDLE_S)
        self._met: set[str] = set()
        self._at_once = 0
        self._lock = threading.Lock()

    def stream(self, key: str, *where: Any, **options: Any) -> Iterator[bytes]:
        if key.endswith(MANIFEST_NAME):  # of the output: there is none
            yield from self._inner.stream(key, *where, **options)
            return
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            is_first = key not in self._met
            self._met.add(key)
        try:
            if is_first:
                self._barrier.wait()
            yield from self._inner.stream(key, *where, **options)
        finally:
            with self._lock:
                self._at_once -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def parquet_folder(place: Place, objects: int) -> Job:
    (place.bucket / "in").mkdir()
    for number in range(objects):
        table = pa.table({"text": [f"text {number}", f"more {number}"]})
        pq.write_table(table, place.bucket / "in" / f"{number:03}.parquet", row_group_size=1)
    return place.native(name="in/", template=TEMPLATE, model=MODEL)


def meeting(place: Place, job: Job, parties: int) -> MeetingStore:
    assert job.spec.input is not None
    store = MeetingStore(place.locations.open(ObjectUri.parse(job.spec.input), job.tenant_id), parties)
    place.open_as(store)
    return store


def test_footers_are_read_side_by_side_and_not_more_than_so_many(place: Place) -> None:
    job, at_once = parquet_folder(place, 32), SurveyConfig.read_at_once
    store = meeting(place, job, parties=at_once)

    turn(place, place.planning(shard_bytes=100_000))

    assert store.most_at_once == at_once
    assert len(place.shards(job)) == 32
    assert place.job(job).rows_estimated == 64


def test_a_footer_too_long_to_be_held_beside_others_is_read_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveying, "AHEAD_BYTES_MAX", 100)
    job = parquet_folder(place, 5)
    store = meeting(place, job, parties=1)

    turn(place, place.planning(shard_bytes=100_000))

    assert store.most_at_once == 1
    assert (len(place.shards(job)), place.job(job).rows_estimated) == (5, 10)


class Killed(BaseException):
    """Stands for the death of a process: nothing that follows is run."""


class DeadlyQueue(InMemoryQueue):
    """A scheduler dies as it rings."""

    def ring(self, rings: Sequence[Ring]) -> None:
        raise Killed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_job_is_planned_though_a_scheduler_dies_after_each_of_its_pages(place: Place) -> None:
    place.queue = DeadlyQueue()
    job = a_folder(place, 14)
    for shards in (2, 5, 8, 11, 14):
        duty = place.planning(**ONE_PAGE_A_TURN)
        place.run(duty)
        assert (len(place.shards(job)), place.job(job).planning_attempts) == (shards, 1)
        place.work_off()
    place.queue = InMemoryQueue()
    plan(place, place.planning())
    assemble(place)

    assert place.job(job).state is JobState.SUCCEEDED
    assert texts(place, job) == [f"text {number}" for number in range(14)]
