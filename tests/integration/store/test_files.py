"""Files: found until they expire or are deleted, listed in order."""

from datetime import timedelta

import pytest

from nightshift.jobs.files import File, FilePurpose
from nightshift.store import Store
from tests.helpers.fakes import FakeClock, a_file


def keep(store: Store, *files: File) -> None:
    with store.transaction() as tx:
        for file in files:
            tx.files.insert(file)


def test_a_file_is_found_until_it_expires_and_by_its_job_until_it_is_deleted(
    store: Store, clock: FakeClock
) -> None:
    odd = {"filename": '../ünïcode "quoted".jsonl', "size_bytes": 5_000_000_000}
    file = a_file(expires_at=clock.now + timedelta(hours=1), **odd)
    keep(store, file)

    clock.advance(minutes=59)
    with store.snapshot() as tx:
        assert tx.files.get("default", file.id, tx.now()) == file
        assert tx.files.get("default", "file-unknown", tx.now()) is None
    clock.advance(minutes=1)
    with store.transaction() as tx:
        assert tx.files.get("default", file.id, tx.now()) is None
        assert tx.files.list("default", tx.now(), limit=10) == []
        assert (tx.files.input("default", file.id), tx.files.input("another", file.id)) == (file, None)
        assert [tx.files.delete("default", file.id) for _ in range(2)] == [True, False]
        assert tx.files.input("default", file.id) is None


@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_show_every_file_once_in_order_however_many_share_a_moment(
    store: Store, clock: FakeClock, newest_first: bool
) -> None:
    files = [a_file(created_at=clock.now + timedelta(seconds=n // 3)) for n in range(8)]
    keep(store, *files)

    with store.snapshot() as tx:
        pages = [tx.files.list("default", tx.now(), limit=3, newest_first=newest_first)]
        while pages[-1]:
            last = pages[-1][-1]
            pages.append(tx.files.list("default", tx.now(), limit=3, after=last, newest_first=newest_first))

    in_order = sorted(files, key=lambda file: (file.created_at, file.id), reverse=newest_first)
    assert [file for page in pages for file in page] == in_order


def test_files_are_listed_by_purpose(store: Store) -> None:
    upload, output = a_file(purpose=FilePurpose.BATCH), a_file(purpose=FilePurpose.BATCH_OUTPUT)
    keep(store, upload, output)

    with store.snapshot() as tx:
        assert tx.files.list("default", tx.now(), limit=10, purpose=FilePurpose.BATCH_OUTPUT) == [output]
