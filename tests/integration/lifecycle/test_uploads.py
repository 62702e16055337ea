"""An upload in parts becomes one file, once, whatever is repeated, runs at once or dies in between."""

import gzip
import hashlib
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from nightshift.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded, TooManyRequests
from nightshift.jobs.files import COMPOSING_MAX, KEPT_FOR, LIFETIME, FilePurpose, Upload, UploadStatus
from nightshift.lifecycle import uploads
from nightshift.lifecycle.uploads import Ended
from nightshift.objectstore import MIB, DirectoryStore, ObjectDamaged, ObjectStore
from nightshift.objectstore.s3 import S3Store
from nightshift.store import Store
from nightshift.tenants.quotas import Quotas
from tests.helpers.fakes import FakeClock, an_upload, an_upload_part
from tests.integration.scheduler.scheduling import BusyStore
from tests.integration.servers import S3Server
from tests.integration.store.racing import both_databases

TENANT = "default"
PIECES = [b'{"a": 1}\n', b'{"b": 2}\n', b'{"c": 3}\n']
WHOLE = b"".join(PIECES)


@pytest.fixture
def objects(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "objects")


def begun(store: Store, size_bytes: int = len(WHOLE)) -> Upload:
    """A pending upload."""
    with store.transaction() as tx:
        now = tx.now()
        times = {"created_at": now, "expires_at": now + LIFETIME, "file_expires_after_s": 7200}
        upload = an_upload(size_bytes=size_bytes, **times)
        uploads.create(tx, upload, pending_max=10)
    return upload


def a_part(store: Store, objects: ObjectStore, upload: Upload, data: bytes) -> str:
    part = an_upload_part(upload, data)
    objects.put(part.key, data)
    with store.transaction() as tx:
        uploads.add_part(tx, part)
    return part.id


def parts_of(store: Store, objects: ObjectStore, upload: Upload) -> list[str]:
    return [a_part(store, objects, upload, piece) for piece in PIECES]


def complete(
    store: Store, objects: Any, upload: Upload, part_ids: list[str], md5: str | None = None
) -> Ended:
    return uploads.complete(store, objects, TENANT, upload.id, part_ids, md5)


def files(store: Store) -> list[str]:
    with store.snapshot() as tx:
        return [file.id for file in tx.files.list(TENANT, tx.now(), limit=10)]


def stored(objects: ObjectStore, prefix: str = "files/") -> list[str]:
    return [info.key for info in objects.list(prefix)]


def test_the_file_has_the_parts_in_the_order_of_the_request(store: Store, objects: DirectoryStore) -> None:
    upload = begun(store)
    first, second, third = parts_of(store, objects, upload)

    wanted = PIECES[2] + PIECES[0] + PIECES[1]
    md5 = hashlib.md5(wanted, usedforsecurity=False).hexdigest()

    ended = complete(store, objects, upload, [third, first, second], md5)

    assert ended.file is not None
    assert objects.read(ended.file.key) == wanted
    assert ended.upload.status is UploadStatus.COMPLETED
    assert (ended.file.purpose, ended.file.filename) == (FilePurpose.BATCH, "in.jsonl")
    assert ended.file.expires_at == ended.file.created_at + timedelta(hours=2)
    assert {part.id for part in ended.parts} == {first, second, third}


@pytest.mark.parametrize("server", ["moto", pytest.param("rclone", marks=pytest.mark.exhaustive)])
def test_large_parts_are_put_together_in_s3_piece_by_piece(
    sqlite_database: Any, server: str, request: pytest.FixtureRequest
) -> None:
    store = Store(sqlite_database, clock=FakeClock())
    s3: S3Server = request.getfixturevalue(f"{server}_server")
    objects = S3Store(s3.client, s3.new_bucket(), "under/a/prefix")
    pieces = [bytes([65 + number]) * (11 * MIB) for number in range(4)]  # more than one part of S3's
    upload = begun(store, size_bytes=44 * MIB)
    part_ids = [a_part(store, objects, upload, piece) for piece in pieces]

    ended = complete(store, objects, upload, part_ids)

    assert ended.file is not None
    assert ended.file.sha256 == hashlib.sha256(b"".join(pieces)).hexdigest()
    assert objects.read(ended.file.key, 64 * MIB) == b"".join(pieces)


def test_a_completion_that_is_repeated_has_the_same_file(store: Store, objects: DirectoryStore) -> None:
    upload = begun(store)
    part_ids = parts_of(store, objects, upload)
    first = complete(store, objects, upload, part_ids)
    for part in first.parts:
        objects.delete(part.key)

    again = complete(store, objects, upload, part_ids)

    assert again.file == first.file
    assert files(store) == [first.upload.file_id]
    with pytest.raises(Conflict, match="other parts or in another order"):
        complete(store, objects, upload, part_ids[::-1])


class Killed(BaseException):
    """The process ends here."""


def test_an_api_that_dies_between_the_files_bytes_and_its_record_loses_nothing(
    store: Store, objects: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = begun(store)
    part_ids = parts_of(store, objects, upload)

    def die(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(uploads, "_record", die)
        with pytest.raises(Killed):
            complete(store, objects, upload, part_ids)
    assert (len(stored(objects)), files(store)) == (1, [])

    ended = complete(store, objects, upload, part_ids)

    assert files(store) == [ended.upload.file_id]
    assert stored(objects) == [f"files/{TENANT}/{ended.upload.file_id}"]
    assert objects.read(stored(objects)[0]) == WHOLE


def test_of_two_completions_at_once_both_have_the_one_file(store: Store, objects: DirectoryStore) -> None:
    upload = begun(store)
    part_ids = parts_of(store, objects, upload)
    ended: list[Ended] = []
    other = BusyStore(objects, "put", lambda: ended.append(complete(store, objects, upload, part_ids)))

    ended.append(complete(store, other, upload, part_ids))

    assert ended[0].file == ended[1].file
    assert files(store) == [ended[0].upload.file_id]


def test_of_two_completions_in_different_orders_one_counts(store: Store, objects: DirectoryStore) -> None:
    upload = begun(store)
    part_ids = parts_of(store, objects, upload)
    won: list[Ended] = []
    other = BusyStore(objects, "put", lambda: won.append(complete(store, objects, upload, part_ids[::-1])))

    with pytest.raises(Conflict):
        complete(store, other, upload, part_ids)

    assert files(store) == [won[0].upload.file_id]
    assert won[0].file is not None
    assert objects.read(won[0].file.key) == b"".join(PIECES[::-1])
    assert stored(objects) == [won[0].file.key]


def test_a_completion_overtaken_by_its_repeat_has_the_same_file(
    store: Store, objects: DirectoryStore
) -> None:
    upload = begun(store)
    part_ids = parts_of(store, objects, upload)
    first: list[Ended] = []

    def end_first() -> None:
        first.append(complete(store, objects, upload, part_ids))
        for part in first[0].parts:
            objects.delete(part.key)

    ended = complete(store, BusyStore(objects, "stream", end_first), upload, part_ids)

    assert ended.file == first[0].file is not None


@pytest.mark.parametrize("moment", ["stream", "put"])
def test_a_completion_overtaken_by_a_cancel_is_refused_and_leaves_nothing(
    store: Store, objects: DirectoryStore, moment: str
) -> None:
    upload = begun(store)
    part_ids = parts_of(store, objects, upload)

    def cancel() -> None:
        with store.transaction() as tx:
            ended = uploads.cancel(tx, TENANT, upload.id)
        for part in ended.parts if moment == "stream" else ():
            objects.delete(part.key)

    with pytest.raises(Conflict):
        complete(store, BusyStore(objects, moment, cancel), upload, part_ids)

    assert (stored(objects), files(store)) == ([], [])


def test_completions_above_a_quota_store_nothing(store: Store, objects: DirectoryStore) -> None:
    done = begun(store)
    complete(store, objects, done, parts_of(store, objects, done))
    before = stored(objects)
    upload = begun(store)
    part_ids = parts_of(store, objects, upload)

    for order in (part_ids, part_ids[::-1]):
        with pytest.raises(QuotaExceeded):
            uploads.complete(store, objects, TENANT, upload.id, order, None, Quotas(stored_files=1))

    assert stored(objects) == before


@both_databases
def test_parts_are_added_at_once(store: Store, objects: DirectoryStore) -> None:
    upload = begun(store)
    added: dict[int, str] = {}

    def add(number: int) -> None:
        added[number] = a_part(store, objects, upload, PIECES[number])

    threads = [threading.Thread(target=add, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended = complete(store, objects, upload, [added[0], added[1], added[2]])

    assert ended.file is not None
    assert objects.read(ended.file.key) == WHOLE


@pytest.mark.parametrize(
    ("order", "param", "why"),
    [
        ([0, 1, 1, 2], "part_ids[2]", "is given twice"),
        ([0, 1, 2, 3], "part_ids[3]", "this upload has no part"),
        ([4], "part_ids[0]", "this upload has no part"),
        ([0, 1], "part_ids", "have 18 bytes together, and the upload was created for 27 bytes"),
    ],
    ids=["twice", "of another upload", "unknown", "too few bytes"],
)
def test_part_ids_that_do_not_fit_are_refused_by_name(
    store: Store, objects: DirectoryStore, order: list[int], param: str, why: str
) -> None:
    upload, another = begun(store), begun(store)
    known = [*parts_of(store, objects, upload), a_part(store, objects, another, b"{}\n"), "part_unknown"]

    with pytest.raises(InvalidRequest, match=why) as refused:
        complete(store, objects, upload, [known[place] for place in order])

    assert refused.value.param == param
    assert stored(objects) == []
    assert complete(store, objects, upload, known[:3]).file is not None  # the upload is pending still


def test_a_compressed_file_may_come_byte_by_byte(store: Store, objects: DirectoryStore) -> None:
    packed = gzip.compress(WHOLE)
    upload = begun(store, size_bytes=len(packed))
    part_ids = [a_part(store, objects, upload, bytes([byte])) for byte in packed]

    ended = complete(store, objects, upload, part_ids)

    assert ended.file is not None
    assert objects.read(ended.file.key) == packed


@pytest.mark.parametrize(
    ("data", "md5", "code"),
    [(b'{"a": "\xff"}\n', None, "invalid_encoding"), (b"{}\n", "0" * 32, "md5_mismatch")],
)
def test_a_file_that_cannot_be_used_is_refused_and_leaves_nothing(
    store: Store, objects: DirectoryStore, data: bytes, md5: str | None, code: str
) -> None:
    upload = begun(store, size_bytes=len(data))
    part_id = a_part(store, objects, upload, data)

    with pytest.raises(InvalidRequest) as refused:
        complete(store, objects, upload, [part_id], md5)

    assert refused.value.code == code
    assert (stored(objects), files(store)) == ([], [])


def test_a_part_that_has_lost_bytes_is_not_made_into_a_file(store: Store, objects: DirectoryStore) -> None:
    upload = begun(store)
    part_ids = parts_of(store, objects, upload)
    objects.put(f"uploads/{TENANT}/{upload.id}/{part_ids[1]}", b'{"b": 9}\n')

    with pytest.raises(ObjectDamaged):
        complete(store, objects, upload, part_ids)

    assert stored(objects) == []


def test_an_upload_that_has_expired_takes_no_part_and_becomes_no_file(
    store: Store, objects: DirectoryStore, clock: FakeClock
) -> None:
    upload = begun(store)
    part_ids = parts_of(store, objects, upload)
    clock.advance(seconds=LIFETIME.total_seconds())

    for act in (
        lambda: a_part(store, objects, upload, b"x"),
        lambda: complete(store, objects, upload, part_ids),
        lambda: store.run(lambda tx: uploads.cancel(tx, TENANT, upload.id)),
    ):
        with pytest.raises(Conflict, match="with status 'expired'"):
            act()


def test_a_completion_that_began_in_time_ends_though_the_upload_expires_meanwhile(
    store: Store, objects: DirectoryStore, clock: FakeClock
) -> None:
    upload = begun(store)
    part_ids = parts_of(store, objects, upload)

    def expires() -> None:
        clock.advance(seconds=LIFETIME.total_seconds())
        with store.transaction() as tx:
            assert uploads.expire(tx, tx.now(), 10) == []

    assert complete(store, BusyStore(objects, "put", expires), upload, part_ids).file is not None


def test_an_upload_that_retention_has_ended_is_not_recorded(
    store: Store, objects: DirectoryStore, clock: FakeClock
) -> None:
    upload = begun(store)
    part_ids = parts_of(store, objects, upload)

    def sleeps() -> None:
        clock.advance(seconds=(LIFETIME + COMPOSING_MAX).total_seconds())

    with pytest.raises(Conflict, match="with status 'expired'"):
        complete(store, BusyStore(objects, "put", sleeps), upload, part_ids)
    with store.transaction() as tx:
        assert {part.id for part in uploads.expire(tx, tx.now(), 10)} == set(part_ids)
    assert files(store) == []


def test_a_cancelled_upload_stays_cancelled_and_a_completed_one_completed(
    store: Store, objects: DirectoryStore
) -> None:
    cancelled, completed = begun(store), begun(store)
    part_ids = parts_of(store, objects, completed)
    complete(store, objects, completed, part_ids)

    for _ in range(2):
        ended = store.run(lambda tx: uploads.cancel(tx, TENANT, cancelled.id))
        assert ended.upload.status is UploadStatus.CANCELLED
    with pytest.raises(Conflict, match="Cannot cancel an upload with status 'completed'"):
        store.run(lambda tx: uploads.cancel(tx, TENANT, completed.id))
    with pytest.raises(Conflict, match="Cannot complete an upload with status 'cancelled'"):
        complete(store, objects, cancelled, ["part_1"])
    with pytest.raises(NotFound):
        store.run(lambda tx: uploads.cancel(tx, "another", cancelled.id))


def test_there_are_limits_to_pending_uploads_and_to_what_is_sent_again(
    store: Store, objects: DirectoryStore, clock: FakeClock
) -> None:
    upload = begun(store)
    with pytest.raises(TooManyRequests), store.transaction() as tx:
        uploads.create(tx, upload, pending_max=1)
    clock.advance(seconds=LIFETIME.total_seconds())
    with store.transaction() as tx:
        assert tx.uploads.count_pending(TENANT, tx.now()) == 0

    again = begun(store)
    too_much = an_upload_part(again, size_bytes=again.parts_bytes_max + 1)
    with pytest.raises(InvalidRequest, match=f"at most {again.parts_bytes_max}"), store.transaction() as tx:
        uploads.add_part(tx, too_much)


def test_records_of_ended_uploads_are_forgotten_after_a_day(
    store: Store, objects: DirectoryStore, clock: FakeClock
) -> None:
    upload = begun(store)
    complete(store, objects, upload, parts_of(store, objects, upload))
    clock.advance(seconds=(LIFETIME + KEPT_FOR).total_seconds())
    with store.transaction() as tx:
        uploads.expire(tx, tx.now(), 10)
        assert tx.uploads.get(TENANT, upload.id) is None
