"""Objects that nothing refers to are collected, and never one that something does, or may yet."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from nightshift.bulk.results.segments import encode_segment
from nightshift.errors import StorageUnavailable
from nightshift.jobs import BulkClaim, Job, JobState, carry_over_key, segment_key
from nightshift.jobs.files import COMPOSING_MAX, LIFETIME, UNRECORDED_S
from nightshift.jobs.leases import Lease
from nightshift.jobs.part import CutLimits, PartUpload
from nightshift.lifecycle import cutting, transitions
from nightshift.objectstore import MIB, DirectoryStore, ObjectInfo, ObjectStore, StagedUpload, s3_transfers
from nightshift.objectstore.s3 import S3Store
from nightshift.store.jobs.references import References
from scheduler.duties.retention import COLLECTED, Retention, RetentionConfig
from tests.helpers.fakes import (
    STARTS_AT,
    FakeClock,
    a_shard_head,
    an_upload,
    an_upload_part,
    claimed,
    completed,
)
from tests.integration.scheduler.assembly.conftest import a_batch, a_native_job, assembled
from tests.integration.scheduler.scheduling import BusyStore, FailingStore, Place
from tests.integration.servers import S3Server
from tests.integration.store.watching import counters

pytestmark = pytest.mark.databases("postgresql")

OLD_S = 2 * UNRECORDED_S


def collect(place: Place, objects: Any = None, **config: Any) -> int:
    """One whole round. Returns how many objects it collected."""
    duty = Retention(place.store, objects or place.objects, RetentionConfig(**config))
    collected, has_more = 0, True
    while has_more:
        done = duty.run_once(place.store.now())
        collected, has_more = collected + done.collected, done.has_more
    return collected


def age(place: Place) -> None:
    """All objects there are were written long ago."""
    for path in Path(place.objects.url.removeprefix("file://")).rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_mtime - OLD_S,) * 2)


def keys(place: Place, prefix: str) -> list[str]:
    return [info.key for info in place.objects.list(prefix)]


def orphan(place: Place, lease: Lease, seq: int = 7) -> str:
    """A worker dies between storing a segment and listing it."""
    key = segment_key(lease, 0, seq)
    place.objects.put(key, encode_segment(a_shard_head(), []).data)
    return key


def release(place: Place, claim: BulkClaim, carry_over: str | None = None) -> None:
    with place.store.transaction() as tx:
        assert tx.leases.hand_back(claim.lease, carry_over)


def test_a_segment_that_was_never_listed_goes_once_its_term_is_past(place: Place) -> None:
    a_native_job(place, ["a", "b"])
    first = claimed(place.store)
    place.commit(first, 0, place.results(first)[:1])
    key = orphan(place, first.lease)
    age(place)
    assert collect(place) == 0, "its worker may list it at any moment"

    release(place, first)

    assert collect(place) == 1
    assert place.objects.head(key) is None
    assert keys(place, "segments/") == [segment_key(first.lease, 0, 0)]
    assert counters(place.store)[COLLECTED] == 1


def test_the_term_after_it_protects_only_its_own(place: Place) -> None:
    a_native_job(place, ["a", "b"])
    first = claimed(place.store)
    old = orphan(place, first.lease)
    release(place, first)
    second = claimed(place.store)
    new = orphan(place, second.lease)
    age(place)

    assert collect(place) == 1

    assert (place.objects.head(old), place.objects.head(new) is None) == (None, False)


def test_what_is_young_is_left_alone_whatever_it_is(place: Place) -> None:
    a_native_job(place, ["a"])
    first = claimed(place.store)
    orphan(place, first.lease)
    release(place, first)

    assert collect(place) == 0


def test_a_carry_over_stays_until_another_takes_its_place_or_its_shard_ends(place: Place) -> None:
    a_native_job(place, ["a"])
    first = claimed(place.store)
    waiting = carry_over_key(first.lease, 0, seq=0, sha256="a" * 64)
    place.objects.put(waiting, b"{}\n")
    release(place, first, waiting)
    second = claimed(place.store)
    age(place)
    assert collect(place) == 0, "the shard begins with it"

    superseding = carry_over_key(second.lease, 0, seq=0, sha256="b" * 64)
    place.objects.put(superseding, b"{}\n")
    release(place, second, superseding)
    age(place)
    assert collect(place) == 1
    assert keys(place, "segments/") == [superseding]

    place.work_off()
    assert collect(place) == 1
    assert superseding not in keys(place, "segments/")


def test_listed_segments_notes_and_files_of_a_job_stay_and_a_dead_assemblys_notes_go(place: Place) -> None:
    native = a_native_job(place, ["a", "b"])
    batch = a_batch(place, ["a"])
    place.work_off()
    note = f"assembly/{native.tenant_id}/{native.id}/000000.json"
    place.objects.put(note, b"[]")
    age(place)
    before = keys(place, "")
    assert collect(place) == 0, "both jobs have yet to be assembled"
    assert set(before) <= set(keys(place, ""))

    place.objects.delete(note)
    ended = assembled(place, native)
    assembled(place, batch)
    place.objects.put(note, b"[]")  # the scheduler died before it forgot its notes
    output = (place.bucket / "out" / "_SUCCESS").exists()
    age(place)

    assert ended.state.is_terminal
    assert output
    assert collect(place) == 1
    assert note not in keys(place, "")
    assert len(keys(place, "files/")) == 2  # the batch's input and output
    assert len(keys(place, "segments/")) > 0
    assert collect(place) == 0


def test_a_file_that_expired_goes_with_its_record_once_no_unfinished_batch_reads_it(place: Place) -> None:
    job = a_batch(place, ["a"])
    file_id = str(job.spec.input)
    with place.store.transaction() as tx:
        tx.files.expire(job.tenant_id, file_id, STARTS_AT)
    assert collect(place) == 0
    place.work_off()
    assert assembled(place, job).state is JobState.SUCCEEDED

    assert collect(place) == 1
    assert place.objects.head(f"files/default/{file_id}") is None
    with place.store.snapshot() as tx:
        assert tx.files.input(job.tenant_id, file_id) is None


def test_an_upload_whose_row_was_never_written_goes_after_a_day(place: Place) -> None:
    kept = place.upload(b"{}\n")
    place.objects.put("files/default/file-lost", b"half a day's work")
    assert collect(place, orphan_age_s=0) == 0
    age(place)

    assert collect(place) == 1

    assert keys(place, "files/") == [kept.key]


def test_the_parts_of_an_upload_stay_until_it_has_expired_and_one_without_a_record_goes(
    place: Place, clock: FakeClock
) -> None:
    with place.store.transaction() as tx:
        upload = an_upload(id="upload_1", created_at=clock.now, expires_at=clock.now + LIFETIME)
        part = an_upload_part(upload, b"one part\n")
        tx.uploads.insert(upload)
        tx.uploads.insert_part(part)
    place.objects.put(part.key, b"one part\n")
    place.objects.put("uploads/default/upload_1/part_lost", b"its API died\n")
    age(place)

    assert collect(place) == 1
    assert keys(place, "uploads/") == [part.key]

    clock.advance(seconds=(LIFETIME + COMPOSING_MAX).total_seconds())
    assert collect(place) == 1
    assert keys(place, "uploads/") == []


# -- what happens between the look and the delete --------------------------------------------------------


def half_written(place: Place) -> Job:
    """A batch whose output file was stored, whereupon everything was down for days."""
    job = a_batch(place, ["good", "bad", "good"])
    place.work_off()
    dying = place.assembly(FailingStore(place.objects, "put", StorageUnavailable(), calls_before=1))
    assert assembled(place, job, dying).state is JobState.FINALIZING
    age(place)
    return job


def test_the_output_file_of_a_batch_that_ends_meanwhile_is_still_there(place: Place) -> None:
    job = half_written(place)
    place.objects.put("files/default/file-lost", b"an orphan, to be deleted")
    age(place)

    assert collect(place, BusyStore(place.objects, "delete", lambda: assembled(place, job))) == 1

    ended = place.job(job)
    assert ended.state is JobState.SUCCEEDED
    assert len(place.file_lines(ended, ended.output_file_id)) == 2
    assert len(place.file_lines(ended, ended.error_file_id)) == 1


def test_a_batch_may_end_between_the_questions_whether_it_has_and_whether_its_file_is_on_record(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = half_written(place)
    listed: list[str] = []

    def meanwhile(name: str) -> None:
        question = getattr(References, name)

        def ask(references: References, *about: object) -> Any:
            if listed == ["another"]:
                assembled(place, job)
            listed.append("another")
            return question(references, *about)

        monkeypatch.setattr(References, name, ask)

    meanwhile("unfinished_batches")
    meanwhile("files")

    assert collect(place) == 0
    assert len(listed) == 2
    assert place.job(job).state is JobState.SUCCEEDED
    assert len(keys(place, "files/")) == 3  # its input, output and errors


def test_what_a_shard_that_was_claimed_again_goes_on_from_is_still_there(place: Place) -> None:
    job = a_native_job(place, ["a", "b"])
    first = claimed(place.store)
    place.commit(first, 0, place.results(first)[:1])
    lost = orphan(place, first.lease)
    waiting = carry_over_key(first.lease, 0, seq=0, sha256="c" * 64)
    place.objects.put(waiting, b"{}\n")
    release(place, first, waiting)
    age(place)  # everything was down for days
    claims: list[BulkClaim] = []

    def claim_again() -> None:
        claims.append(claimed(place.store))
        place.commit(claims[0], 0, place.results(claims[0])[1:])

    assert collect(place, BusyStore(place.objects, "delete", claim_again)) == 1

    assert place.objects.head(lost) is None
    assert claims[0].shard.carry_over_key == waiting
    segments = [segment_key(lease, 0, 0) for lease in (first.lease, claims[0].lease)]
    assert set(keys(place, "segments/")) == {waiting, *segments}
    assert completed(place.store, claims[0].lease, rows_total=2)
    assert assembled(place, job).state is JobState.SUCCEEDED


# -- a round ---------------------------------------------------------------------------------------------


def test_a_round_takes_as_many_passes_as_it_needs_and_no_pass_more_than_its_share(
    place: Place, clock: FakeClock
) -> None:
    a_native_job(place, ["a", "b"])
    first = claimed(place.store)
    for seq in range(7):
        orphan(place, first.lease, seq)
    release(place, first)
    age(place)
    duty = Retention(place.store, place.objects, RetentionConfig(objects_per_pass_max=3))

    passes = [duty.run_once(clock.now) for _ in range(3)]

    assert [done.collected for done in passes] == [3, 3, 1]
    assert all(done.has_more for done in passes)
    assert keys(place, "segments/") == []


def test_a_round_asks_the_store_once_what_time_it_is(place: Place, clock: FakeClock) -> None:
    for number in range(5):
        place.objects.put(f"files/default/file-{number}", b"x")
    counting = CountingStore(place.objects)
    duty = Retention(place.store, counting, RetentionConfig(objects_per_pass_max=2))

    for rounds in (1, 2):
        while duty.run_once(clock.now).has_more:
            continue
        assert counting.puts == rounds


class CountingStore:
    """An object store that counts what is written."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.puts = 0

    def put(self, key: str, data: bytes) -> ObjectInfo:
        self.puts += 1
        return self._objects.put(key, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)


def test_keys_of_an_unknown_form_are_left_alone(place: Place) -> None:
    for key in ("segments/notes.txt", "assembly/x", "files/x", "elsewhere/x"):
        place.objects.put(key, b"mine")
    age(place)

    assert collect(place) == 0


# -- half-written objects --------------------------------------------------------------------------------


def test_a_file_that_was_never_finished_is_deleted_after_a_day(tmp_path: Path) -> None:
    objects = DirectoryStore(tmp_path)
    objects.put("a/whole", b"x")
    dead, alive = (tmp_path / "a" / f".nightshift-tmp-{name}" for name in ("dead", "alive"))
    dead.write_bytes(b"ha")
    alive.write_bytes(b"ha")
    os.utime(dead, (dead.stat().st_mtime - OLD_S,) * 2)

    assert objects.forget_unfinished(timedelta(days=1)) == 1

    assert (dead.exists(), alive.exists(), objects.read("a/whole")) == (False, True, b"x")


def test_an_empty_folder_is_deleted_after_a_day(tmp_path: Path) -> None:
    objects = DirectoryStore(tmp_path / "root")
    for folder in ("old", "young"):
        key = f"{folder}/of_job/x"
        objects.discard(key, objects.stage(key))
    for path in (tmp_path / "root/old/of_job", tmp_path / "root/old", tmp_path / "root"):
        os.utime(path, (path.stat().st_mtime - OLD_S,) * 2)

    assert objects.forget_unfinished(timedelta(days=1)) == 0

    assert [path.name for path in (tmp_path / "root").iterdir()] == ["young"]


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_writer_whose_unfinished_file_is_deleted_is_told_to_begin_again(
    tmp_path: Path, if_absent: bool
) -> None:
    objects = DirectoryStore(tmp_path)

    def slowly() -> Iterator[bytes]:
        yield b"ha"
        assert objects.forget_unfinished(timedelta(days=-1)) == 1  # the writer was away for a day

    with pytest.raises(StorageUnavailable):
        objects.put("a/half", slowly(), if_absent=if_absent)

    assert objects.head("a/half") is None


def test_what_was_staged_of_a_part_is_kept_while_it_may_be_published(place: Place) -> None:
    job = a_native_job(place, ["a"])
    place.work_off()
    with place.store.transaction() as tx:
        cutting.cut(tx, job, CutLimits(1, 1), tx.now(), is_complete=True)
        claim = tx.parts.claim("scheduler_1", tx.now(), 30.0)
        assert claim is not None
        key = f"results/{job.tenant_id}/{job.id}/part-00000.jsonl"
        upload = PartUpload(name="part-00000.jsonl", key=key, upload_id=place.objects.stage(key))
        assert tx.parts.record_uploads(claim.lease, [upload])
    unknown = place.objects.stage(f"{key}.unknown")
    age(place)

    collect(place)
    assert list(place.objects.staged()) == [StagedUpload(key, upload.upload_id)]
    assert unknown != upload.upload_id

    with place.store.transaction() as tx:
        assert transitions.finish(tx, job, JobState.FAILED, tx.now())
    collect(place)
    assert list(place.objects.staged()) == []


def test_an_upload_in_parts_that_was_never_finished_is_aborted(s3_server: S3Server, bucket: str) -> None:
    ours, others = S3Store(s3_server.client, bucket, "ours"), S3Store(s3_server.client, bucket, "others")
    if s3_server.name != "moto":
        assert ours.forget_unfinished(timedelta(0)) == 0, "a server that lists none is no error"
        return
    s3_server.client.create_multipart_upload(Bucket=bucket, Key="ours/half")

    # moto says of every upload that it began in 2010.
    assert ours.forget_unfinished(timedelta(days=36_500)) == 0
    assert others.forget_unfinished(timedelta(days=1)) == 0
    assert ours.forget_unfinished(timedelta(days=1)) == 1
    assert "Uploads" not in s3_server.client.list_multipart_uploads(Bucket=bucket)


def test_a_writer_whose_upload_in_parts_is_aborted_is_told_to_begin_again(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_transfers, "PART_BYTES", 5 * MIB)  # the least a part may have
    with moto_server.in_environment():
        objects = S3Store(moto_server.client, moto_server.new_bucket())

        def slowly() -> Iterator[bytes]:
            yield from [bytes(MIB)] * 11
            assert objects.forget_unfinished(timedelta(days=1)) == 1  # as of 2010, says moto
            yield b"the rest"

        with pytest.raises(StorageUnavailable):
            objects.put("half", slowly())

        assert objects.head("half") is None
