"""Parts of a native job's output: written while it runs, by any process, each whole or not at all."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pytest

from nightshift.bulk.results.part_writer import ATTEMPTS_MAX, PartWriter
from nightshift.errors import OutputInUse, StorageDenied, StorageUnavailable
from nightshift.jobs import Job, JobState, StopReason
from nightshift.jobs.part import PartState
from nightshift.objectstore import ObjectInfo, ObjectStore, Staged, StagedUpload
from scheduler.output.running_manifests import RunningManifestsConfig
from tests.helpers.fakes import FakeClock, a_spec, submit
from tests.integration.scheduler.assembly.conftest import TEXTS, a_native_job, assembled, ids, stop
from tests.integration.scheduler.scheduling import IDLE_S, FailingStore, Place


@dataclass
class WatchedStore:
    """Counts what is staged and published."""

    inner: ObjectStore
    staged_keys: list[str] = field(default_factory=list)
    published_keys: list[str] = field(default_factory=list)

    def stage(self, key: str, **more: Any) -> str:
        self.staged_keys.append(key)
        return self.inner.stage(key, **more)

    def publish(self, key: str, staged: Staged) -> ObjectInfo:
        self.published_keys.append(key)
        return self.inner.publish(key, staged)

    def staged_uploads(self, folder: Path) -> list[StagedUpload]:
        return list(self.inner.staged(f"{folder}/".removeprefix("/")))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture
def destination(place: Place) -> WatchedStore:
    store = WatchedStore(place.outputs)
    place.open_as(store)
    return store


def manifest(place: Place, name: str = "_manifest.json") -> dict[str, Any]:
    said: dict[str, Any] = json.loads(place.out(name))
    return said


def states(place: Place, job: Job) -> list[PartState]:
    with place.store.snapshot() as tx:
        return [part.state for part in tx.parts.of_job(job.id, limit=1000)]


def a_writer(place: Place, owner: str = "worker_1") -> PartWriter:
    return PartWriter(place.part_dependencies(), owner)


def cut(place: Place) -> None:
    """Without a thread that writes."""
    place.output_parts(threads_max=0).run_once(place.store.now())


def with_parts(place: Place, texts: list[str] = TEXTS) -> Job:
    """A job whose rows are done, and whose parts wait for a writer."""
    job = a_native_job(place, texts)
    place.work_off()
    cut(place)
    return job


def a_writer_dies(place: Place, destination: WatchedStore, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """It dies at this operation."""
    with monkeypatch.context() as patch:
        patch.setattr(destination, at, killed, raising=False)
        with pytest.raises(Killed):
            a_writer(place, "dying").write_next()


def test_parts_and_their_manifest_lie_there_while_the_job_runs(place: Place) -> None:
    job = a_native_job(place, 4 * TEXTS, part_rows=1)
    duty = place.output_parts()
    assert place.work_off(shards=2) == 2

    place.write_parts(duty)
    place.write_parts(duty)  # the manifest has what an earlier pass wrote

    said = manifest(place)
    assert place.job(job).state is JobState.RUNNING
    assert [file["name"] for file in said["parts"]] == place.part_names()
    assert (len(place.part_names()), said["complete"], said["status"]) == (2, False, "running")
    assert not (place.bucket / "out" / "_SUCCESS").exists()
    first = {name: place.out(name) for name in place.part_names()}

    place.work_off()
    ended = assembled(place, job)

    assert ended.counts.succeeded == 48
    assert first.items() < {name: place.out(name) for name in place.part_names()}.items()
    assert [line["custom_id"] for line in place.part_lines()] == [
        f"shard-{shard.shard_no}-row-{row + 1}"
        for shard in place.shards(job)
        for row in range(shard.rows_total or 0)
    ]


def test_a_part_ends_with_the_shard_that_fills_it(place: Place) -> None:
    job = a_native_job(place, 4 * TEXTS, part_rows=15)
    place.work_off()
    assembled(place, job)

    rows = [file["rows"] for file in manifest(place)["parts"]]
    shards = [shard.rows_total or 0 for shard in place.shards(job)]
    assert sum(rows) == 48
    assert all(15 <= count < 15 + max(shards) for count in rows[:-1])


def test_a_manifest_is_not_replaced_at_every_part(place: Place, clock: FakeClock) -> None:
    a_native_job(place, 4 * TEXTS, part_rows=1)
    duty = place.output_parts(manifests=RunningManifestsConfig(interval_s=5.0))
    written = []
    for _ in range(4):
        place.work_off(shards=1)
        place.write_parts(duty)
        place.write_parts(duty)
        written.append(len(manifest(place)["parts"]))

    assert written == [1, 1, 1, 1]
    clock.advance(seconds=5)
    place.write_parts(duty)
    assert len(manifest(place)["parts"]) == 4


def test_the_next_writer_publishes_what_was_staged_and_writes_nothing_again(
    place: Place, clock: FakeClock, destination: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = with_parts(place, [*TEXTS, "bad"])
    a_writer_dies(place, destination, monkeypatch, at="publish")
    clock.advance(seconds=60)
    cut(place)  # expires its lease
    staged = [*destination.staged_keys]
    assert len(staged) == 2

    assert a_writer(place).write_next()

    assert destination.staged_keys == staged
    assert states(place, job) == [PartState.WRITTEN]
    assert ids(place.part_lines("errors")) == [ids(place.part_lines("errors"))[0]]


def test_what_was_staged_in_part_is_discarded_by_the_next_writer(
    place: Place, clock: FakeClock, destination: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = with_parts(place, [*TEXTS, "bad"])
    a_writer_dies(place, destination, monkeypatch, at="write_staged")
    [begun] = list(destination.staged_uploads(place.bucket / "out"))
    clock.advance(seconds=60)
    cut(place)

    assert a_writer(place).write_next()

    assert states(place, job) == [PartState.WRITTEN]
    assert begun.upload_id not in {
        upload.upload_id for upload in destination.staged_uploads(place.bucket / "out")
    }
    assert len(place.part_lines()) == 12


def test_failed_rows_alone_make_no_part_of_good_ones(place: Place) -> None:
    job = a_native_job(place, ["bad", "bad"])
    place.work_off()

    assert assembled(place, job).state is JobState.SUCCEEDED

    assert (place.part_names(), len(place.part_lines("errors"))) == ([], 2)
    assert manifest(place)["parts"] == []
    assert not [path for path in (place.bucket / "out").iterdir() if path.name.startswith(".")]


def test_a_part_whose_writers_die_fails_its_job(place: Place, clock: FakeClock) -> None:
    job = with_parts(place)
    for _ in range(ATTEMPTS_MAX):
        with place.store.transaction() as tx:
            assert tx.parts.claim("dying", clock.now, 30) is not None
        clock.advance(seconds=60)
        cut(place)

    assert a_writer(place).write_next()
    ended = assembled(place, job)

    assert (ended.state, ended.errors[0].code) == (JobState.FAILED, "part_failed")
    assert ended.counts.succeeded == 12


def test_a_place_that_refuses_a_part_stops_the_job_early(place: Place) -> None:
    job = a_native_job(place, 4 * TEXTS, part_rows=1)
    place.work_off(shards=1)
    refusing = FailingStore(place.outputs, "stage", StorageDenied())
    place.open_as(refusing)
    place.write_parts()
    place.write_parts()  # it sees what the writer's thread has met, if the pass before did not

    assert place.job(job).stop_reason is StopReason.FAILED
    ended = assembled(place, job)
    assert (ended.state, ended.errors[0].code, ended.errors[0].param) == (
        JobState.FAILED,
        "storage_denied",
        "output",
    )


def test_what_was_begun_does_not_stay_behind_a_job_that_fails(
    place: Place, destination: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = with_parts(place, [*TEXTS, "bad"])
    with monkeypatch.context() as patch:
        patch.setattr(destination, "publish", refused)
        assert a_writer(place).write_next()
    assert destination.staged_uploads(place.bucket / "out")

    assert assembled(place, job).state is JobState.FAILED

    assert destination.staged_uploads(place.bucket / "out") == []


def test_a_place_that_is_away_is_tried_again_later_and_later(place: Place, clock: FakeClock) -> None:
    job = a_native_job(place, TEXTS)
    place.work_off()
    inner = place.outputs
    away = FailingStore(inner, "stage", StorageUnavailable())
    place.open_as(away)
    cut(place)

    assert a_writer(place).write_next()
    assert not a_writer(place).write_next()  # it rests
    clock.advance(seconds=2)
    assert a_writer(place).write_next()
    clock.advance(seconds=2)
    assert not a_writer(place).write_next()
    away.is_broken = False
    clock.advance(seconds=2)
    assert a_writer(place).write_next()
    assert assembled(place, job).state is JobState.SUCCEEDED


def test_a_manifest_that_cannot_be_put_in_place_leaves_nothing_else(place: Place) -> None:
    (place.bucket / "out" / "_manifest.json").mkdir(parents=True)
    job = a_native_job(place, TEXTS)
    place.work_off()

    assert assembled(place, job).state is JobState.FAILED

    assert [path.name for path in (place.bucket / "out").glob(".*")] == []


def test_what_a_full_disk_has_of_a_part_is_discarded_at_once(place: Place, destination: WatchedStore) -> None:
    a_native_job(place, TEXTS)
    place.work_off()
    full = FailingStore(destination, "write_staged", StorageUnavailable())
    place.open_as(full)
    cut(place)

    assert a_writer(place).write_next()

    assert destination.staged_keys
    assert destination.staged_uploads(place.bucket / "out") == []


def test_a_reader_of_the_manifest_sees_all_of_the_old_output_or_all_of_the_new(place: Place) -> None:
    old = a_native_job(place, ["old"])
    place.work_off()
    assembled(place, old)
    [old_name] = place.part_names()

    new = a_native_job(place, [*TEXTS, "new"], part_rows=1)
    duty = place.output_parts()
    place.work_off(shards=1)
    place.write_parts(duty)
    place.write_parts(duty)

    assert (manifest(place)["job_id"], manifest(place)["complete"]) == (old.id, True)
    assert old_name in place.part_names()
    [own] = (path.name for path in (place.bucket / "out").glob("_manifest-*"))
    assert (manifest(place, own)["job_id"], manifest(place, own)["complete"]) == (new.id, False)

    place.work_off()
    assembled(place, new)

    lying = {path.name for path in (place.bucket / "out").iterdir()}
    assert manifest(place)["job_id"] == new.id
    assert lying == {"_manifest.json", "_SUCCESS", *(file["name"] for file in manifest(place)["parts"])}


def test_a_job_that_fails_leaves_the_earlier_output_as_it_is(place: Place) -> None:
    old = a_native_job(place, ["old"])
    place.work_off()
    assembled(place, old)
    before = {name: place.out(name) for name in ("_manifest.json", "_SUCCESS", *place.part_names())}

    new = a_native_job(place, TEXTS, part_rows=1)
    place.work_off(shards=1)
    stop(place, new, StopReason.CANCELLED)
    assert assembled(place, new).state is JobState.CANCELLED

    assert {name: place.out(name) for name in before} == before
    [own] = (path.name for path in (place.bucket / "out").glob("_manifest-*"))
    assert (manifest(place, own)["status"], manifest(place, own)["complete"]) == ("cancelled", True)


def test_files_of_the_user_stay(place: Place) -> None:
    (place.bucket / "out").mkdir()
    mine = (
        "part-of-it.txt",
        "notes.json",
        "_manifest-old.txt",
        "manifest-abcdefgh.json",
        "inputs-20261127.jsonl",
        "part-00000.jsonl",
        "part-00001-abcdefgh.jsonl",
    )
    for name in mine:
        (place.bucket / "out" / name).write_text("mine")
    job = a_native_job(place, ["a"])
    place.work_off()
    assembled(place, job)

    for name in mine:
        assert place.out(name) == b"mine"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("_manifest.json", b""),
        ("_manifest.json", b"{}"),
        ("_manifest.json", b'{"job_id": 7}'),
        ("_manifest.json", b'{"job_id": "theirs", "parts": []}'),
        ("_manifest.json", b"\xff"),
        ("_SUCCESS", b""),
    ],
)
def test_a_folder_that_becomes_anothers_while_a_job_runs_is_not_written_over(
    place: Place, name: str, content: bytes
) -> None:
    job = a_native_job(place, TEXTS)
    place.work_off()
    (place.bucket / "out").mkdir()
    (place.bucket / "out" / name).write_bytes(content)

    ended = assembled(place, job)

    assert (ended.state, ended.errors[0].code, ended.errors[0].param) == (
        JobState.FAILED,
        "output_not_ours",
        "output",
    )
    assert place.out(name) == content


@pytest.mark.parametrize("rest", [b'"parts": [' + b"[" * 200_000, b'"parts": [' + b"0," * 3_000_000, b"\xff"])
def test_a_manifest_that_would_cost_too_much_to_read_is_replaced_unread(place: Place, rest: bytes) -> None:
    (place.bucket / "out").mkdir()
    (place.bucket / "out" / "_manifest.json").write_bytes(b'{"job_id": "job_old", ' + rest)
    (place.bucket / "out" / "part-00000.jsonl").write_text("{}\n")
    job = a_native_job(place, ["a"])
    place.work_off()

    assert assembled(place, job).state is JobState.SUCCEEDED

    assert manifest(place)["job_id"] == job.id
    assert place.out("part-00000.jsonl") == b"{}\n"


def test_a_job_stops_early_for_a_folder_that_becomes_anothers(place: Place) -> None:
    job = a_native_job(place, 4 * TEXTS, part_rows=1)
    (place.bucket / "out").mkdir()
    (place.bucket / "out" / "_manifest.json").write_text("{}")
    duty = place.output_parts()
    place.work_off(shards=1)
    place.write_parts(duty)
    place.write_parts(duty)

    assert place.job(job).stop_reason is StopReason.FAILED


def test_a_part_that_was_taken_away_is_written_again(place: Place) -> None:
    job = a_native_job(place, [*TEXTS, "bad"], part_rows=1)
    place.work_off()
    place.write_parts()
    whole = {name: place.out(name) for kind in ("part", "errors") for name in place.part_names(kind)}
    first, *_ = place.part_names()
    (place.bucket / "out" / first).unlink()
    (place.bucket / "out" / place.part_names("errors")[0]).write_bytes(b"cut")

    assert assembled(place, job).state is JobState.SUCCEEDED

    assert {name: place.out(name) for name in whole} == whole


def test_the_output_of_an_earlier_run_is_replaced(place: Place) -> None:
    (place.bucket / "out").mkdir()
    (place.bucket / "out" / "part-00000.jsonl").write_text("{}\n")
    (place.bucket / "out" / "_inputs-zzzzzzzz.ndjson").write_text("{}\n")
    old = {
        "job_id": "job_old",
        "inputs": {"listed_in": "_inputs-zzzzzzzz.ndjson"},
        "parts": [{"name": "part-00000.jsonl"}],
    }
    (place.bucket / "out" / "_manifest.json").write_text(json.dumps(old))
    (place.bucket / "out" / "_SUCCESS").touch()
    job = a_native_job(place, ["a"])
    place.work_off()
    place.write_parts()
    assert manifest(place)["job_id"] == "job_old", "the earlier output is whole until the new one is"
    assembled(place, job)

    lying = {path.name for path in (place.bucket / "out").iterdir()}
    assert lying == {"_manifest.json", "_SUCCESS", *place.part_names()}
    assert manifest(place)["job_id"] == job.id


@pytest.mark.parametrize("spelling", ["out/", "out"])
def test_two_jobs_never_write_to_one_folder_at_a_time(place: Place, spelling: str) -> None:
    first = a_native_job(place, ["a"])

    with pytest.raises(OutputInUse, match=first.id) as refused:
        place.native(output=place.uri(spelling))
    assert refused.value.param == "output"
    with pytest.raises(OutputInUse) as told_another:
        submit(place.store, tenant_id="other", spec=a_spec(output=place.uri(spelling)))
    assert first.id not in str(told_another.value)

    place.work_off()
    assembled(place, first)
    assert place.native(output=place.uri(spelling)).state is JobState.QUEUED


def test_the_folder_is_a_dataset_at_every_moment(place: Place) -> None:
    texts = [*TEXTS, *(3 * ["bad"]), *TEXTS]
    job = a_native_job(place, texts, format="parquet", part_rows=1)
    duty = place.output_parts()
    seen = []
    while place.work_off(shards=1):
        place.write_parts(duty)
        seen.append(dataset(place).count_rows())
        assert counted_by_duckdb(place) == seen[-1]
    assembled(place, job)

    table = dataset(place).to_table()
    assert counted_by_duckdb(place) == 27
    assert seen == sorted(seen)
    assert sorted(table["outcome"].to_pylist()) == ["errored"] * 3 + ["succeeded"] * 24
    assert len(set(table["custom_id"].to_pylist())) == 27


def dataset(place: Place) -> ds.Dataset:
    """The folder as a reader opens it: the manifest is no Parquet."""
    return ds.dataset(place.bucket / "out", format="parquet")


def counted_by_duckdb(place: Place) -> int:
    """Rows with different ids."""
    files = place.bucket / "out" / "*.parquet"
    with duckdb.connect() as connection:
        counts = connection.execute(f"SELECT count(DISTINCT custom_id), count(*) FROM '{files}'").fetchone()
    assert counts is not None
    assert counts[0] == counts[1]
    return int(counts[0])


class Killed(BaseException):
    """The process ends here."""


def refused(*args: object, **more: object) -> None:
    raise StorageDenied


def killed(*args: object, **more: object) -> None:
    raise Killed


def test_an_assembly_that_waits_for_a_part_has_nothing_new_to_log(place: Place, clock: FakeClock) -> None:
    job = a_native_job(place, TEXTS)
    place.work_off()
    duty = place.assembly()
    passes = []
    for _ in range(4):
        passes.append(duty.run_once(clock.now))
        assert duty.wait_until_idle(IDLE_S)

    assert place.job(job).state is JobState.FINALIZING
    assert sum(made.waiting for made in passes) == 3, "each looked again"
    assert [made.has_news for made in passes] == [True, False, False, False]
