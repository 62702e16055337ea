"""An S3 server that refuses, hangs, crawls, damages and forgets to answer: what a store makes of it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from nightshift.errors import (
    CredentialsRefused,
    ObjectNotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from nightshift.objectstore import (
    ObjectChanged,
    ObjectDamaged,
    ObjectStore,
    fenced,
    open_store,
    read_verified,
)
from nightshift.objectstore.s3_transfers import PART_BYTES, REQUEST_S
from nightshift.objectstore.verdicts import storage_verdict
from tests.integration.objectstore.conftest import more
from tests.integration.objectstore.s3_faults import (
    ANY,
    AnswerLost,
    CutShort,
    Damaged,
    Fault,
    FaultyS3,
    Mistaken,
    Refused,
    Slow,
    Swallowed,
    TagsWritten,
    Unreachable,
    faulty_s3,
)
from tests.integration.servers import S3Server


@dataclass(frozen=True)
class Site:
    """A bucket, the faulty way to it, and the straight one."""

    front: FaultyS3
    store: ObjectStore
    direct: ObjectStore


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short timeouts, for servers that do not answer. Those of a busy machine may need longer."""
    for timeout in ("CONNECT_TIMEOUT_S", "READ_TIMEOUT_S"):
        monkeypatch.setattr(f"nightshift.objectstore.s3.{timeout}", 1)


@pytest.fixture
def site(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *context: 0.1)
    bucket = moto_server.new_bucket()
    with faulty_s3(moto_server) as front:
        with moto_server.in_environment():
            direct = open_store(f"s3://{bucket}")
        with front.server().in_environment():
            store = open_store(f"s3://{bucket}")
        with closing(store), closing(direct):
            yield Site(front, store, direct)


@pytest.mark.parametrize("fault", [Refused(503, "SlowDown"), Refused(500, "InternalError")])
def test_a_burst_of_errors_is_outlasted(site: Site, fault: Refused) -> None:
    site.front.set("PUT", fault, times=2)
    site.front.set("GET", fault, times=2)

    site.store.put("k", b"whole")

    assert site.store.read("k") == b"whole"


def test_a_store_that_only_refuses_is_unavailable_after_a_bounded_number_of_tries(
    site: Site,
) -> None:
    site.front.set("PUT", Refused(503, "SlowDown"))

    with pytest.raises(StorageUnavailable, match="SlowDown"):
        site.store.put("k", b"x")

    assert len(site.front.seen) == 5
    assert site.direct.head("k") is None


@pytest.mark.parametrize("code", ["AccessDenied", "ExpiredToken", "InvalidAccessKeyId"])
def test_a_refusal_is_asked_once_and_not_stormed(site: Site, code: str) -> None:
    site.front.set("PUT", Refused(403, code))

    with pytest.raises(StorageDenied, match=code):
        site.store.put("k", b"x")

    assert len(site.front.seen) == 1


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (Refused(400, "ExpiredToken"), CredentialsRefused),
        (Refused(403, "InvalidAccessKeyId"), CredentialsRefused),
        (Refused(403, "AccessDenied"), StorageDenied),
    ],
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.put("k", b"x"),
        lambda store: store.head("k"),  # whose answer cannot say why
        lambda store: list(store.stream("k")),
        lambda store: list(store.list()),
        lambda store: store.delete("k"),
    ],
    ids=["put", "head", "stream", "list", "delete"],
)
def test_refused_credentials_are_told_from_a_refused_place(
    site: Site, refused: Refused, error: type[StorageDenied], ask: Callable[[ObjectStore], object]
) -> None:
    site.front.set(ANY, refused)

    with pytest.raises(StorageDenied, match=refused.code) as raised:
        ask(site.store)

    assert raised.type is error


def long_put(store: ObjectStore) -> object:
    return store.put("k", os.urandom(12_000_000), deadline_s=1.5)


def parts_put(store: ObjectStore) -> object:
    return store.put("k", (os.urandom(1_000_000) for _ in range(40)), deadline_s=1.5)


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("put", [long_put, parts_put], ids=["one request", "parts"])
@pytest.mark.parametrize("fault", [Swallowed(), Swallowed(bytes_per_s=1024)], ids=["hang", "1 KB/s"])
def test_a_put_that_hangs_or_crawls_ends_at_its_deadline_with_nothing_half_written(
    site: Site, fault: Swallowed, put: Callable[[ObjectStore], object]
) -> None:
    site.front.set("PUT", fault)

    with pytest.raises(StorageUnavailable):
        put(site.store)

    assert site.direct.head("k") is None
    # Five tries of a second each, and the pauses between them, would have been possible.
    assert len([line for line in site.front.seen if line.startswith("PUT")]) <= 3


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.head("k"),
        lambda store: store.read("k"),
        lambda store: list(store.list()),
        lambda store: store.delete("k"),
        lambda store: store.put("k", b"x"),
    ],
    ids=["head", "read", "list", "delete", "put"],
)
def test_every_operation_ends_although_the_server_never_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch, ask: Callable[[ObjectStore], object]
) -> None:
    # The time that an operation has is over once the server has seen its first try.
    clock = SimpleNamespace(monotonic=lambda: 2 * REQUEST_S * len(site.front.seen))
    monkeypatch.setattr("nightshift.objectstore.time_limits.time", clock)
    for method in ("HEAD", "GET", "DELETE", "PUT"):
        site.front.set(method, Swallowed())

    with pytest.raises(StorageUnavailable):
        ask(site.store)

    assert len(site.front.seen) == 1


@pytest.mark.usefixtures("short_timeouts")
def test_time_that_is_up_for_one_operation_is_not_up_for_the_next(site: Site) -> None:
    site.front.set("PUT", Swallowed(), times=1)
    with pytest.raises(StorageUnavailable):
        site.store.put("k", b"x" * 1000, deadline_s=0.1)

    site.store.put("k", b"y", deadline_s=60)

    assert site.store.read("k") == b"y"


def test_a_body_that_is_slow_to_come_by_is_given_up_at_the_deadline(site: Site) -> None:
    def slowly() -> Iterator[bytes]:
        yield b"x" * 1_000_000
        time.sleep(0.2)  # the source's pace is what is tested
        yield b"x" * 40_000_000

    with pytest.raises(StorageUnavailable):
        site.store.put("k", slowly(), deadline_s=0.1)

    assert site.direct.head("k") is None


def test_a_put_whose_answer_was_lost_counts_as_written(site: Site) -> None:
    assert site.store.supports_conditional_put
    site.front.set("PUT", AnswerLost(), times=1)

    info = site.store.put("k", b"once", if_absent=True)  # tried again, it finds its own bytes

    assert site.direct.read("k") == b"once"
    assert info.sha256 is not None


def test_a_conflict_of_conditional_writers_is_tried_again(site: Site) -> None:
    assert site.store.supports_conditional_put
    site.front.set("PUT", Refused(409, "ConditionalRequestConflict"), times=2)

    site.store.put("k", b"mine", if_absent=True)

    assert site.direct.read("k") == b"mine"


def test_a_change_that_failed_is_not_retried_behind_a_fence(site: Site) -> None:
    questions: list[str] = []

    def once() -> None:
        questions.append("may I?")
        if len(questions) > 2:  # at the fence's beginning, and before the first try
            raise PermissionError

    site.front.set("PUT", Refused(503, "SlowDown"), times=1)
    with pytest.raises(PermissionError), fenced(once):
        site.store.put("k", b"too late")

    assert len(site.front.seen) == 1
    assert site.direct.head("k") is None


def test_bytes_damaged_on_the_way_are_fetched_again(site: Site) -> None:
    info = site.direct.put("k", b"as written")
    sha256 = info.sha256 or ""
    site.front.set("GET", Damaged(), times=3)

    assert read_verified(site.store, "k", sha256) == b"as written"


def test_bytes_that_stay_damaged_are_an_error_and_never_handed_on(site: Site) -> None:
    info = site.direct.put("k", b"as written")
    site.front.set("GET", Damaged())

    with pytest.raises(ObjectDamaged):
        read_verified(site.store, "k", info.sha256 or "")


def test_an_unknown_key_is_not_tried_again(site: Site) -> None:
    with pytest.raises(ObjectNotFound):
        site.store.read("no such")

    assert len(site.front.seen) == 1


def test_a_wanted_etag_reads_that_object_and_no_other(site: Site) -> None:
    etag = site.direct.put("k", b"as it was").etag
    assert b"".join(site.store.stream("k", if_match=etag)) == b"as it was"

    site.direct.put("k", b"as it is")

    for start, end in ((0, None), (3, 5)):
        with pytest.raises(ObjectChanged):
            list(site.store.stream("k", start, end, if_match=etag))


def test_another_object_than_the_wanted_one_is_refused_although_the_server_knows_no_conditions(
    site: Site,
) -> None:
    etag = site.direct.put("k", b"as it was").etag
    site.front.set("GET", Mistaken())

    with pytest.raises(ObjectChanged):
        list(site.store.stream("k", if_match=etag))


@pytest.mark.parametrize(
    ("method", "form"),
    [(ANY, "{}"), ("GET", 'W/"{}"'), ("PUT", "W/{}"), ("POST", ' "{}" '), ("HEAD", "{}")]
    + [more(method, form) for method in (ANY, "GET", "PUT", "POST", "HEAD") for form in ('W/"{}"', "W/{}")],
)
def test_a_tag_that_a_server_writes_otherwise_is_the_same_tag(site: Site, form: str, method: str) -> None:
    """`method`: the requests whose answers have it in that form; to others the server says it as S3 does."""
    site.front.set(method, TagsWritten(form))
    put = site.store.put("in/k", b"as it was")
    listed = next(iter(site.store.list("in/")))
    there = site.direct.head("in/k")
    assert there is not None
    assert {put.etag, listed.etag} == {there.etag}
    assert site.store.head("in/k") == there

    for etag in {there.etag, form.format(there.etag)}:
        assert b"".join(site.store.stream("in/k", 3, if_match=etag)) == b"it was"
    site.store.put("in/long", bytes(PART_BYTES + 1))

    site.direct.put("in/k", b"as it is")
    with pytest.raises(ObjectChanged):
        list(site.store.stream("in/k", if_match=listed.etag))


@pytest.mark.parametrize(
    "operation",
    [
        lambda store: store.head("k"),
        lambda store: list(store.list()),
        lambda store: list(store.stream("k")),
        lambda store: store.put("new", b"x"),
        lambda store: store.put("long", bytes(PART_BYTES + 1)),
    ],
    ids=["head", "list", "stream", "put", "put in parts"],
)
def test_a_server_that_says_no_tags_is_refused_by_the_objects_name(
    site: Site, operation: Callable[[ObjectStore], object]
) -> None:
    site.direct.put("k", b"x")
    site.front.set(ANY, TagsWritten(None))

    with pytest.raises(StorageError, match=r"(k|new|long): the server says no ETag") as refused:
        operation(site.store)
    assert storage_verdict(refused.value, in_our_store=False) == "fail"


def test_an_object_that_is_replaced_between_two_pieces_is_not_pasted_together(site: Site) -> None:
    site.direct.put("k", bytes(200_000))
    site.front.set("GET", CutShort(), times=1)
    site.front.set("GET", Mistaken())

    with pytest.raises(StorageUnavailable, match="replaced"):
        list(site.store.stream("k"))


@pytest.mark.parametrize(
    "fault", [CutShort(), CutShort(is_reset=True), Slow(delay_s=0.1, bytes_per_s=400_000), Unreachable()]
)
def test_a_stream_that_breaks_or_drips_has_every_byte_all_the_same(site: Site, fault: Fault) -> None:
    data = os.urandom(200_000)
    site.direct.put("k", data)
    site.front.set("GET", fault, times=3)

    assert site.store.read("k") == data
    assert b"".join(site.store.stream("k", 1000, 150_000)) == data[1000:150_000]
    assert len(site.front.met) >= 2
