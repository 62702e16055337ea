"""One seam, three stores: a directory, an S3 server with conditional writes and one without, over HTTP."""

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nightshift.errors import LocationNotAllowed, ObjectExists, ObjectNotFound
from nightshift.objectstore import ObjectStore, ObjectTooLarge, fenced, open_store
from nightshift.objectstore.s3_transfers import PART_BYTES
from tests.integration.servers import S3Server


def keys(store: ObjectStore, prefix: str = "", start_after: str | None = None) -> list[str]:
    return [info.key for info in store.list(prefix, start_after)]


def test_what_is_put_is_what_is_read_and_described_until_it_is_replaced(store: ObjectStore) -> None:
    body = bytes(range(256)) * 10

    put = store.put("a/b/c.bin", body, content_type="application/octet-stream")
    head = store.head("a/b/c.bin")

    assert store.read("a/b/c.bin") == body
    assert (put.size_bytes, put.sha256) == (len(body), hashlib.sha256(body).hexdigest())
    assert head is not None
    assert (head.key, head.size_bytes, head.etag) == ("a/b/c.bin", len(body), put.etag)
    assert head.modified_at.tzinfo is not None
    assert abs((head.modified_at - put.modified_at).total_seconds()) < 60

    assert store.put("a/b/c.bin", b"newer").etag != put.etag
    assert store.read("a/b/c.bin") == b"newer"


def test_an_absent_object_is_none_to_head_and_an_error_to_read(store: ObjectStore) -> None:
    assert store.head("no/such") is None
    with pytest.raises(ObjectNotFound):
        store.read("no/such")
    with pytest.raises(ObjectNotFound):
        next(iter(store.stream("no/such")))


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    assert store.put("empty", b"").size_bytes == 0
    assert store.read("empty") == b""
    assert list(store.stream("empty")) == []
    assert keys(store) == ["empty"]


RANGES = [(0, None), (0, 10), (5, 17), (17, None), (99, 100), (90, 500), (100, None), (7, 7)]


def test_a_range_is_the_slice_of_the_whole_in_pieces_of_the_size_asked_for(store: ObjectStore) -> None:
    body = os.urandom(100)
    store.put("k", body)

    for start, end in RANGES:
        pieces = list(store.stream("k", start, end, chunk_bytes=7))
        assert b"".join(pieces) == body[start:end]
        assert max(map(len, pieces), default=0) <= 7


def test_a_stream_that_is_given_up_early_leaves_the_store_usable(store: ObjectStore) -> None:
    body = os.urandom(3_000_000)
    store.put("k", body)
    for _ in range(20):
        stream = store.stream("k")
        next(stream)
        stream.close()  # type: ignore[attr-defined]

    assert store.read("k") == body


def test_read_refuses_what_is_larger_than_the_caller_will_hold(store: ObjectStore) -> None:
    store.put("k", b"x" * 11)

    with pytest.raises(ObjectTooLarge):
        store.read("k", size_bytes_max=10)


def test_a_large_body_is_streamed_in_parts_and_measured_on_the_way(store: ObjectStore) -> None:
    piece = os.urandom(1_000_003)
    count = 2 * PART_BYTES // len(piece) + 3
    whole = hashlib.sha256(piece * count)

    info = store.put("large", (piece for _ in range(count)))

    assert info.size_bytes == count * len(piece)
    assert info.sha256 == whole.hexdigest()
    stored = hashlib.sha256()
    for chunk in store.stream("large"):
        stored.update(chunk)
    assert stored.hexdigest() == whole.hexdigest()


def test_a_body_that_fails_half_way_leaves_no_object_behind(store: ObjectStore) -> None:
    def body() -> Iterator[bytes]:
        yield b"x" * (2 * PART_BYTES + 1)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        store.put("half", body())

    assert store.head("half") is None
    assert keys(store) == []


def test_if_absent_refuses_to_replace_other_bytes_and_takes_the_same_as_written(store: ObjectStore) -> None:
    """A retry whose first answer was lost must not fail."""
    first = store.put("k", b"same", if_absent=True)

    for other in (b"other", iter([b"x" * (PART_BYTES + 1)])):
        with pytest.raises(ObjectExists):
            store.put("k", other, if_absent=True)
    again = store.put("k", (piece for piece in (b"sa", b"me")), if_absent=True)

    assert (again.size_bytes, again.sha256) == (first.size_bytes, first.sha256)
    assert store.read("k") == b"same"


def test_one_of_ten_racing_creators_wins_where_conditions_are_supported(store: ObjectStore) -> None:
    if not store.supports_conditional_put:
        pytest.skip("this server has no conditional writes; the store says so")
    winners: list[int] = []
    start = threading.Barrier(10)

    def create(number: int) -> None:
        start.wait()
        try:
            store.put("k", b"%d" % number, if_absent=True)
        except ObjectExists:
            return
        winners.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(winners) == 1
    assert store.read("k") == b"%d" % winners[0]


def test_the_probe_finds_out_what_the_server_can_do_and_leaves_nothing(
    s3_server: S3Server, bucket: str
) -> None:
    with closing(open_store(f"s3://{bucket}")) as store:
        assert store.supports_conditional_put is s3_server.has_conditional_put
        assert keys(store) == []


def test_listing_is_in_byte_order_below_a_prefix(store: ObjectStore) -> None:
    names = ["a", "a-b", "a/b", "a/b-c", "a/b/c", "a0", "b/é", "b/z", "B"]
    for name in names:
        if name not in ("a", "a/b"):  # a directory cannot hold both a name and names beneath it
            store.put(name, b"x")

    expected = sorted((name for name in names if name not in ("a", "a/b")), key=str.encode)
    assert keys(store) == expected
    assert keys(store, "a/") == ["a/b-c", "a/b/c"]
    assert keys(store, "a") == ["a-b", "a/b-c", "a/b/c", "a0"]
    assert keys(store, "a/b/") == ["a/b/c"]
    assert keys(store, "nothing/") == []


def test_listing_goes_on_after_a_key(store: ObjectStore) -> None:
    for name in ("a/1", "a/2", "b/1", "b/2"):
        store.put(name, b"x")

    assert keys(store, start_after="a/2") == ["b/1", "b/2"]
    assert keys(store, "b/", start_after="b/1") == ["b/2"]
    assert keys(store, start_after="a/1") == ["a/2", "b/1", "b/2"]


def test_a_deleted_object_is_gone_and_deleting_it_again_is_no_error(store: ObjectStore) -> None:
    store.put("a/b", b"x")

    store.delete("a/b")
    store.delete("a/b")

    assert store.head("a/b") is None
    assert keys(store) == []


@pytest.mark.parametrize("key", ["", "../up", "a/../../up", "a/..", ".", "nul\0", "x" * 1025])
def test_a_key_that_would_leave_the_root_is_refused_everywhere(store: ObjectStore, key: str) -> None:
    refused_everywhere(store, key)


@pytest.mark.parametrize("key", ["/etc/passwd", "a//b", "a/"])
def test_a_key_that_is_no_path_is_refused_where_objects_are_files(tmp_path: Path, key: str) -> None:
    refused_everywhere(open_store(tmp_path.as_uri()), key)


def refused_everywhere(store: ObjectStore, key: str) -> None:
    for attempt in (
        lambda: store.put(key, b"x"),
        lambda: store.head(key),
        lambda: store.read(key),
        lambda: next(iter(store.stream(key))),
        lambda: store.delete(key),
    ):
        with pytest.raises(LocationNotAllowed):
            attempt()


class NoLongerMine(Exception):
    """The end of a change that came to a fence."""


@pytest.mark.parametrize("size_bytes", [3, PART_BYTES + 1], ids=["small", "in parts"])
def test_an_object_that_may_not_appear_any_more_when_its_bytes_are_there_does_not(
    store: ObjectStore, size_bytes: int
) -> None:
    store.put("k", b"the next one's")
    allowed = [True]

    def body() -> Iterator[bytes]:
        yield b"x" * size_bytes
        allowed[0] = False

    with pytest.raises(NoLongerMine), fenced(lambda: allowed_by(allowed)):
        store.put("k", body())

    assert store.read("k") == b"the next one's"
    assert keys(store) == ["k"]


def test_an_object_is_not_removed_behind_a_fence(store: ObjectStore) -> None:
    store.put("k", b"the next one's")
    allowed = [True]

    with fenced(lambda: allowed_by(allowed)):
        allowed[0] = False
        with pytest.raises(NoLongerMine):
            store.delete("k")

    assert store.read("k") == b"the next one's"


def test_an_open_fence_and_one_left_behind_stop_no_write(store: ObjectStore) -> None:
    with fenced(lambda: allowed_by([True])):
        store.put("k", b"mine")
        store.put("gone", b"mine")
        store.delete("gone")
    store.put("k", b"mine, again")

    assert store.read("k") == b"mine, again"
    assert keys(store) == ["k"]


def allowed_by(answers: list[bool]) -> None:
    if not answers[-1]:
        raise NoLongerMine
