"""Inputs become shards, or reasons."""

import gzip
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.errors import StorageDenied, StorageUnavailable
from nightshift.fleet.models import ModelKind
from nightshift.jobs import Face, Job, JobState, StopReason
from nightshift.jobs.shard import Ring
from nightshift.lifecycle.tenants import Administration
from nightshift.objectstore import Locations, ObjectInfo, ObjectStore, ObjectUri
from nightshift.objectstore.verdicts import as_input_error
from nightshift.store import Store
from nightshift.tenants.audit import Actor
from scheduler.duties.planning import may_plan_beside
from scheduler.runtime.duty import Interrupted
from scheduler.runtime.leadership import Elector
from scheduler.runtime.thread_pools import JobPoolConfig, in_turn
from tests.helpers.fakes import MODEL, STARTS_AT, FakeClock, InMemoryQueue, a_job, a_spec, submit
from tests.integration.scheduler.scheduling import (
    IDLE_S,
    LINE_BYTES_MAX,
    TEMPLATE,
    BusyStore,
    FailingStore,
    Place,
    a_line,
    jsonl,
)
from tests.integration.store.watching import request_stop


def codes(job: Job) -> list[tuple[str, int | None]]:
    return [(error.code, error.line) for error in job.errors]


# -- batch files -------------------------------------------------------------------------------------------


def test_a_valid_file_is_cut_exactly_at_rows(place: Place) -> None:
    job = place.batch(jsonl(a_line(f"r{number}") for number in range(10)))
    planned = place.plan(job)
    shards = place.shards(job)
    assert (planned.state, planned.model, planned.counts.total) == (JobState.QUEUED, MODEL, 10)
    assert len(shards) > 2
    assert [shard.start for shard in shards[1:]] == [shard.end for shard in shards[:-1]]
    assert sum(shard.rows_estimated or 0 for shard in shards) == 10
    assert place.work_off() == len(shards)
    assert place.job(job).counts.succeeded == 10


@pytest.mark.parametrize(
    ("quotas", "rows", "is_planned"),
    [({"queued_rows": 10}, 10, True), ({"queued_rows": 10}, 11, False), ({"queued_tokens": 9}, 1, False)],
)
def test_a_job_that_would_exceed_its_tenants_quota_fails_before_any_row_runs(
    place: Place, quotas: dict[str, int | None], rows: int, is_planned: bool
) -> None:
    with place.store.transaction() as tx:
        Administration(tx, Actor.of_user()).create_tenant("default", quotas=quotas)
    job = place.batch(jsonl(a_line(f"r{number}") for number in range(rows)))

    planned = place.plan(job)

    assert (planned.state, codes(planned)) == (
        (JobState.QUEUED, []) if is_planned else (JobState.FAILED, [("insufficient_quota", None)])
    )
    with place.store.snapshot() as tx:
        assert tx.holdings.total("default").bulk_rows == (rows if is_planned else 0)
        assert tx.holdings.differences() == {}


def test_while_redis_is_away_the_rings_of_a_planned_job_stay_owed(place: Place) -> None:
    place.queue.is_away = True
    job = place.batch(jsonl([a_line("r1")]))
    assert place.plan(job).planned_at is not None
    with place.store.snapshot() as tx:
        assert tx.outbox.length() == 1


def test_every_bad_line_is_told_and_no_row_runs(place: Place) -> None:
    bad = jsonl([a_line("a"), a_line("a"), a_line("b", method="GET"), a_line("c", url="/v1/embeddings")])
    more = jsonl([a_line("d", model="other"), {"custom_id": "e"}])
    no_text = jsonl([a_line("f \ud800"), a_line("g") | {"\ud800": 1}, a_line("h\0")])
    failed = place.plan(place.batch(bad + b"{not json\n" + more + no_text))
    assert failed.state is JobState.FAILED
    assert codes(failed) == [
        ("duplicate_custom_id", 2),
        ("invalid_method", 3),
        ("invalid_url", 4),
        ("invalid_json_line", 5),
        ("mismatched_model", 6),
        ("missing_required_parameter", 7),
        ("invalid_json_line", 8),
        ("invalid_json_line", 9),
        ("missing_required_parameter", 10),
    ]
    assert "surrogate" in failed.errors[6].message
    assert "NUL" in failed.errors[8].message
    assert (place.shards(failed), failed.counts.total) == ([], 0)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty_file"),
        (b"\n\n", "empty_file"),
        (jsonl([a_line("a", model="unheard-of")]), "model_not_found"),
        (jsonl([a_line("a", model="\0")]), "model_not_found"),
        (jsonl([a_line("a", model="\udfff")]), "invalid_json_line"),
    ],
)
def test_a_file_that_cannot_run_at_all_fails_its_batch(place: Place, data: bytes, code: str) -> None:
    failed = place.plan(place.batch(data))
    assert failed.state is JobState.FAILED
    assert [error.code for error in failed.errors] == [code]


def test_a_file_with_too_many_rows_fails_its_batch(place: Place) -> None:
    job = place.batch(jsonl(a_line(f"r{number}") for number in range(4)))
    failed = place.plan(job, place.planning(rows_max=3))
    assert codes(failed) == [("too_many_requests_in_file", 4)]


def test_a_file_that_was_deleted_fails_its_batch(place: Place) -> None:
    job = place.batch(jsonl([a_line("a")]))
    for info in list(place.objects.list("files/")):
        place.objects.delete(info.key)
    assert place.plan(job).errors[0].code == "object_not_found"


@pytest.mark.parametrize(("name", "packed"), [("in.jsonl", bytes), ("in.jsonl.gz", gzip.compress)])
def test_a_batch_may_name_one_file_in_an_allowed_place(
    place: Place, name: str, packed: Callable[[bytes], bytes]
) -> None:
    (place.bucket / name).write_bytes(packed(jsonl([a_line("a")])))
    spec = a_spec(input=place.uri(name), output=None)
    named = submit(place.store, face=Face.OPENAI, model=None, spec=spec)
    assert place.plan(named).counts.total == 1


def test_a_compressed_file_is_validated_by_its_lines_and_run_as_one_shard(place: Place) -> None:
    lines = [a_line(f"r{number}") for number in range(10)]
    job = place.batch(gzip.compress(jsonl(lines[:4])) + gzip.compress(jsonl(lines[4:])))
    planned = place.plan(job)

    (shard,) = place.shards(job)
    assert (planned.model, planned.counts.total) == (MODEL, 10)
    assert (shard.format, shard.start, shard.end, shard.first_row) == ("jsonl.gz", 0, None, 0)
    assert place.work_off() == 1
    assert place.job(job).counts.succeeded == 10


@pytest.mark.parametrize(
    ("data", "code", "line"),
    [
        (gzip.compress(jsonl([a_line("a"), a_line("a")])), "duplicate_custom_id", 2),
        (gzip.compress(jsonl([a_line("a")]) + b"\n\nno\n"), "invalid_json_line", 4),
        (gzip.compress(jsonl([a_line("a")]) + b"\xff\n"), "invalid_json_line", 2),
        (gzip.compress(jsonl([a_line("a")]))[:-4], "unreadable_input", 2),
        (gzip.compress(b""), "empty_file", None),
        (gzip.compress(jsonl([a_line("a")]) + b"\n" * 20_000_000), "unreadable_input", 2),
    ],
    ids=["twice", "no JSON", "no UTF-8", "cut short", "empty", "too small for what it unpacks to"],
)
def test_what_is_wrong_in_a_compressed_file_is_told_by_its_line(
    place: Place, data: bytes, code: str, line: int | None
) -> None:
    failed = place.plan(place.batch(data))

    assert (failed.state, codes(failed)) == (JobState.FAILED, [(code, line)])


def test_before_any_worker_has_registered_no_model_is_unknown(store: Store, tmp_path: Path) -> None:
    place = Place.at(store, tmp_path)
    job = place.batch(jsonl([a_line("a", model="some-model")]))
    assert place.plan(job).model == "some-model"


def test_a_model_that_does_something_else_is_refused(place: Place) -> None:
    place.serve_model("encoder", ModelKind.ENCODER)
    job = place.batch(jsonl([a_line("a", model="encoder")]))
    assert place.plan(job).errors[0].code == "model_not_supported"


# -- native inputs -----------------------------------------------------------------------------------------


def test_a_native_input_is_cut_without_being_read(place: Place) -> None:
    (place.bucket / "in.jsonl").write_bytes(jsonl({"text": f"text {number}"} for number in range(50)))
    job = place.native(template=TEMPLATE, model=MODEL)
    planned = place.plan(job)
    assert planned.counts.total is None
    assert 40 <= (planned.rows_estimated or 0) <= 60
    assert len(place.shards(job)) > 3
    place.work_off()
    assert place.job(job).counts.succeeded == 50


def test_a_pattern_names_many_objects_of_several_formats(place: Place) -> None:
    (place.bucket / "in-1.jsonl").write_bytes(jsonl([{"text": "one"}]))
    (place.bucket / "in-2.jsonl.gz").write_bytes(gzip.compress(jsonl([{"text": "two"}, {"text": "three"}])))
    (place.bucket / "in-3.csv").write_text("text\nfour\n")
    pq.write_table(pa.table({"text": ["five", "six"]}), place.bucket / "in-4.parquet")
    job = place.native(name="in-*", template=TEMPLATE, model=MODEL)
    place.plan(job)
    assert [shard.format for shard in place.shards(job)] == ["jsonl", "jsonl.gz", "csv", "parquet"]
    place.work_off()
    assert place.job(job).counts.succeeded == 6


def test_a_folder_that_datasets_has_saved_is_read_with_all_its_splits(place: Place) -> None:
    (place.bucket / "in").mkdir()
    (place.bucket / "in" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split in ("train", "test"):
        folder = place.bucket / "in" / split
        folder.mkdir()
        (folder / "dataset_info.json").write_text("{}")
        (folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
        features = {
            b"huggingface": b'{"info": {"features": {"text": {"dtype": "string", "_type": "Value"}}}}'
        }
        table = pa.table({"text": [f"{split} {number}" for number in range(3)]}).replace_schema_metadata(
            features
        )
        with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as writer:
            writer.write_table(table)
    job = place.native(name="in/", template=TEMPLATE, model=MODEL)

    planned = place.plan(job)

    assert [shard.format for shard in place.shards(job)] == ["arrow", "arrow"]
    assert planned.rows_estimated == 6
    place.work_off()
    assert place.job(job).counts.succeeded == 6


def test_a_prefix_with_a_file_of_another_kind_is_refused_by_its_name(place: Place) -> None:
    """It may be data: only names that are known to be no data are left out."""
    (place.bucket / "in").mkdir()
    (place.bucket / "in" / "README.md").write_text("# rows")
    (place.bucket / "in" / "a.jsonl").write_bytes(jsonl([{"text": "a"}]))
    (place.bucket / "in" / "b.avro").write_bytes(b"Obj")

    (error,) = place.plan(place.native(name="in/", template=TEMPLATE, model=MODEL)).errors

    assert error.code == "unreadable_input"
    assert "in/b.avro' has none of the endings" in error.message
    assert "by a pattern, such as 'docs/*.jsonl'" in error.message


def test_an_uploaded_file_is_read_as_its_name_says(place: Place) -> None:
    file = place.upload(b"text\nhello\n", filename="rows.csv")
    job = place.native(input=file.id, output=None, template=TEMPLATE, model=MODEL)
    place.plan(job)
    assert [(shard.uri, shard.format) for shard in place.shards(job)] == [(file.id, "csv")]


def test_a_file_that_expires_while_its_job_waits_to_be_planned_is_read(
    place: Place, clock: FakeClock
) -> None:
    file = place.upload(jsonl([{"text": "a"}]), expires_at=clock.now + timedelta(hours=1))
    job = place.native(input=file.id, output=None, template=TEMPLATE, model=MODEL)
    clock.advance(hours=2)

    assert place.plan(job).errors == ()
    assert [shard.uri for shard in place.shards(job)] == [file.id]


def test_rows_that_are_requests_name_the_model_themselves(place: Place) -> None:
    (place.bucket / "in.jsonl").write_bytes(b"{broken\n" + jsonl([a_line("a"), a_line("b")]))
    assert place.plan(place.native()).model == MODEL


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty_input"),
        (b"\n" * 500, "empty_input"),
        (jsonl([{"text": "nobody is named"}]), "missing_required_parameter"),
        (jsonl([a_line("a", model="unheard-of")]), "model_not_found"),
    ],
)
def test_an_input_that_cannot_run_fails_its_job(place: Place, data: bytes, code: str) -> None:
    (place.bucket / "in.jsonl").write_bytes(data)
    failed = place.plan(place.native())
    assert (failed.state, failed.errors[0].code) == (JobState.FAILED, code)


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv"])
def test_no_more_is_read_than_some_rows_may_take_to_find_the_first(place: Place, name: str) -> None:
    header = b"text,lang\n" if name.endswith(".csv") else b""
    (place.bucket / name).write_bytes(header + b"\n" * 20 * LINE_BYTES_MAX + jsonl([a_line("a")]))
    failed = place.plan(place.native(name=name, template=TEMPLATE, model=MODEL))
    assert (failed.state, failed.errors[0].code) == (JobState.FAILED, "empty_input")
    assert f"first {4 * LINE_BYTES_MAX} bytes" in failed.errors[0].message


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("nothing.jsonl", "object_not_found"),
        ("nothing-*.jsonl", "object_not_found"),
        ("notes.txt", "unreadable_input"),
    ],
)
def test_an_input_that_is_not_there_or_no_input_fails_its_job(place: Place, name: str, code: str) -> None:
    (place.bucket / "notes.txt").write_text("hello")
    assert place.plan(place.native(name=name)).errors[0].code == code


def test_a_place_jobs_may_not_name_fails_the_job_even_if_it_was_accepted(place: Place) -> None:
    failed = place.plan(place.native(input="file:///etc/passwd"))
    assert failed.errors[0].code == "location_not_allowed"


def test_an_embedding_job_needs_a_model_that_embeds(place: Place) -> None:
    (place.bucket / "in.jsonl").write_bytes(jsonl([{"text": "hello"}]))
    job = place.native(endpoint="/v1/embeddings", template={"model": MODEL, "input": "{{text}}"}, model=MODEL)
    assert place.plan(job).errors[0].code == "model_not_supported"


# -- faults ------------------------------------------------------------------------------------------------


def test_a_job_whose_storage_is_away_waits_and_is_tried_again_after_a_rest(
    place: Place, clock: FakeClock
) -> None:
    job = place.batch(jsonl([a_line("a")]))
    failing = FailingStore(place.objects, "head", StorageUnavailable())
    duty = place.planning(failing)
    assert place.plan(job, duty).planned_at is None

    failing.is_broken = False
    assert duty.run_once(clock.now).counts["postponed"] == 1
    assert duty.run_once(clock.advance(seconds=JobPoolConfig.retry_first_s - 1)).started == 0
    clock.advance(seconds=1)
    assert place.plan(job, duty).planned_at is not None


def test_a_refusal_of_our_own_store_is_waited_out_and_one_of_theirs_is_final(place: Place) -> None:
    job = place.batch(jsonl([a_line("a")]))
    ours = place.planning(FailingStore(place.objects, "head", StorageDenied()))
    assert place.plan(job, ours).state is JobState.QUEUED

    denied = as_input_error(StorageDenied(), "input")
    assert (denied.code, denied.param) == ("storage_denied", "input")


def test_a_job_cancelled_while_its_input_is_read_is_not_planned(place: Place, clock: FakeClock) -> None:
    job = place.batch(jsonl([a_line("a")]))

    def cancelled() -> None:
        assert request_stop(place.store, job, StopReason.CANCELLED)

    duty = place.planning(BusyStore(place.objects, "stream", cancelled))
    assert place.plan(job, duty).planned_at is None
    assert duty.run_once(clock.now).too_late == 1
    assert place.shards(job) == []


class Killed(BaseException):
    """Stands for the death of a process: nothing that follows is run."""


def killed_over(place: Place, job: Job) -> bool:
    """Another scheduler begins, and dies reading the job's input. False: it did not read it."""
    dead: list[threading.Thread] = []

    def dies() -> None:
        dead.append(threading.current_thread())
        raise Killed

    duty = place.planning(BusyStore(place.objects, "stream", dies))
    place.run(duty)
    for thread in dead:
        thread.join(IDLE_S)  # else pytest holds its end against whichever test runs by then
    return bool(dead)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_job_that_three_schedulers_died_with_fails_and_kills_no_fourth(place: Place) -> None:
    job = place.batch(jsonl([a_line("a")]))

    assert [killed_over(place, job) for _ in range(4)] == [True, True, True, False]

    failed = place.job(job)
    assert (failed.state, codes(failed)) == (JobState.FAILED, [("planning_failed", None)])
    assert failed.errors[0].param == "input_file_id"
    assert "3 times" in failed.errors[0].message


@pytest.mark.parametrize("error", [StorageUnavailable("away"), RuntimeError("a defect"), Interrupted()])
def test_an_attempt_that_ended_in_order_is_held_against_no_job(place: Place, error: Exception) -> None:
    job = place.batch(jsonl([a_line("a")]))
    for _ in range(4):
        assert place.plan(job, place.planning(FailingStore(place.objects, "head", error))) == job
    assert place.plan(job).planned_at is not None


def test_a_scheduler_that_leads_no_longer_plans_nothing(place: Place, clock: FakeClock) -> None:
    job, late = place.batch(jsonl([a_line("a")])), place.planning()
    clock.advance(hours=1)
    assert Elector(place.store, "next", clock=lambda: 0.0).attempt()
    assert place.plan(job, late) == job


def test_of_jobs_that_may_have_killed_a_scheduler_one_at_a_time_is_planned() -> None:
    new, suspect, other = (
        replace(a_job(), tenant_id=f"tenant-{attempts}", planning_attempts=attempts) for attempts in (0, 1, 2)
    )
    assert may_plan_beside(new, [suspect], free=3)
    assert may_plan_beside(suspect, [new], free=3)
    assert not may_plan_beside(suspect, [new, other], free=2)


# -- tenants -----------------------------------------------------------------------------------------------


class GatedStore:
    """An object store that answers nothing about one tenant's objects before it is opened."""

    def __init__(self, inner: ObjectStore, tenant_id: str) -> None:
        self.opened = threading.Event()
        self.kept_waiting: SimpleQueue[str] = SimpleQueue()
        self._inner = inner
        self._tenant_id = tenant_id

    def head(self, key: str) -> ObjectInfo | None:
        if f"/{self._tenant_id}/" in key:
            self.kept_waiting.put(key)
            assert self.opened.wait(IDLE_S)
        return self._inner.head(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class SignallingQueue(InMemoryQueue):
    """Says when the first ring arrives: a job is planned."""

    def __init__(self) -> None:
        super().__init__()
        self.rung = threading.Event()

    def ring(self, rings: Sequence[Ring]) -> None:
        super().ring(rings)
        self.rung.set()


def heavy_batches(place: Place, count: int) -> list[Job]:
    spec = a_spec(input="file-heavy", output=None)
    return [
        submit(place.store, tenant_id="heavy", face=Face.OPENAI, model=None, spec=spec) for _ in range(count)
    ]


def test_however_many_slow_inputs_a_tenant_has_another_tenants_is_planned_beside_them(
    place: Place, clock: FakeClock
) -> None:
    place.queue = queue = SignallingQueue()
    heavy_batches(place, 200)
    gated = GatedStore(place.objects, "heavy")
    duty = place.planning(gated)
    assert duty.run_once(clock.now).started == 4  # of eight threads
    for _ in range(4):
        gated.kept_waiting.get(timeout=IDLE_S)

    clock.advance(seconds=1)
    job = place.batch(jsonl([a_line("a")]))
    assert duty.run_once(clock.now).started == 1
    assert queue.rung.wait(IDLE_S)
    assert place.job(job).planned_at is not None
    assert gated.kept_waiting.empty()

    gated.opened.set()
    assert duty.wait_until_idle(IDLE_S)


def test_every_tenants_first_job_is_found_before_anyones_second(store: Store, clock: FakeClock) -> None:
    first, second, third = (submit(store, tenant_id="many") for _ in range(3))
    clock.advance(seconds=1)
    few = submit(store, tenant_id="few")
    with store.snapshot() as tx:
        jobs = tx.jobs.first_to_plan(limit=10, of_each=2)
        assert tx.jobs.first_to_plan(limit=2, of_each=2) == jobs[:2]
    in_order = sorted([first, second, third], key=lambda job: job.id)
    assert jobs == [in_order[0], few, in_order[1]]


def test_of_waiting_tenants_the_one_served_longest_ago_is_next() -> None:
    one, two, three = (
        [replace(a_job(), tenant_id=name) for _ in range(2)] for name in ("one", "two", "three")
    )
    order = in_turn([*one, *two, *three], {"one": 7, "two": 5, "three": 0})
    assert order == [three[0], two[0], one[0], three[1], two[1], one[1]]


class EndlessStore:
    """An object store whose objects and listings never end."""

    def __init__(self, inner: ObjectStore) -> None:
        self.reading = threading.Event()
        self._inner = inner

    def stream(self, *range: Any, **options: Any) -> Iterator[bytes]:
        while True:
            self.reading.set()
            yield b"\n" * 1000

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        while True:
            self.reading.set()
            yield ObjectInfo(key="another", size_bytes=1, etag="e", modified_at=STARTS_AT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("why", ["the job is cancelled", "the scheduler stops"])
def test_planning_ends_at_the_next_step(place: Place, clock: FakeClock, why: str) -> None:
    stop, endless = threading.Event(), EndlessStore(place.objects)
    job = place.batch(b"anything")
    duty = place.planning(endless, may_continue=lambda: not stop.is_set())
    duty.run_once(clock.now)
    assert endless.reading.wait(IDLE_S)

    if why == "the scheduler stops":
        stop.set()
    else:
        assert request_stop(place.store, job, StopReason.CANCELLED)
        duty.run_once(clock.now)

    assert duty.wait_until_idle(IDLE_S)
    assert place.job(job).planning_attempts == 0


def test_a_listing_ends_at_the_next_object_when_it_is_told_to(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = ObjectUri.parse(place.uri("*.jsonl"))
    endless = EndlessStore(place.objects)
    monkeypatch.setattr(Locations, "open", lambda *arguments: endless)

    def told() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        list(place.locations.listed(uri, "default", told))


def test_two_schedulers_plan_a_job_once(place: Place, clock: FakeClock) -> None:
    job = place.batch(jsonl(a_line(f"r{number}") for number in range(10)))
    one, other = place.planning(), place.planning()
    one.run_once(clock.now)
    other.run_once(clock.now)
    assert one.wait_until_idle(IDLE_S)
    assert other.wait_until_idle(IDLE_S)
    numbers = [shard.shard_no for shard in place.shards(job)]
    assert numbers == list(range(len(numbers)))
