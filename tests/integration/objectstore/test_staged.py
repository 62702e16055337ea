"""Objects written in steps that may be different processes': staged, published, discarded."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from nightshift.errors import LocationNotAllowed, ObjectNotFound, StorageDenied, StorageUnavailable
from nightshift.objectstore import DirectoryStore, ObjectStore, Staged, StagedUpload, fenced, open_store, s3
from nightshift.objectstore.objects import TEMPORARY_PREFIX
from nightshift.objectstore.s3 import S3Store
from nightshift.objectstore.s3_transfers import PART_BYTES
from tests.integration.objectstore.conftest import Place, more
from tests.integration.objectstore.s3_faults import Refused, Unreachable
from tests.integration.objectstore.test_faults import Site, site
from tests.integration.objectstore.test_objectstore import NoLongerMine, allowed_by, keys
from tests.integration.objectstore.test_s3 import port_of, through_proxy
from tests.integration.servers import S3Server, cutting_proxy
from tests.integration.store.racing import at_once

__all__ = ["site"]  # a fixture

KEY = "out/part-00007.jsonl"

PUBLISH = """
import json, sys
from nightshift.objectstore import Staged, open_store
url, key, staged = sys.argv[1:]
print(open_store(url).publish(key, Staged.from_json(json.loads(staged))).sha256)
"""
STAGE_AND_WAIT = """
import json, sys, time
from nightshift.objectstore import open_store
url, key = sys.argv[1:]
store = open_store(url)
staged = store.write_staged(key, store.stage(key), [b"whole"])
print(json.dumps(staged.to_json()), flush=True)
time.sleep(600)
"""


def staged_as(store: ObjectStore, key: str = KEY, data: bytes = b"whole") -> Staged:
    pieces = (data[begin : begin + 1_000_000] for begin in range(0, len(data), 1_000_000))
    return store.write_staged(key, store.stage(key), pieces)


def uploads(store: ObjectStore, prefix: str = "") -> list[StagedUpload]:
    return sorted(store.staged(prefix), key=lambda upload: upload.key)


def process(place: Place, program: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program, place.store.url, *arguments]
    environment = {**os.environ, **place.environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


# -- appearing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [0, more(1), more(PART_BYTES), 20_000_000])
def test_a_staged_object_appears_whole_when_it_is_published(store: ObjectStore, size_bytes: int) -> None:
    body = os.urandom(size_bytes)
    staged = staged_as(store, data=body)
    assert (keys(store), store.head(KEY)) == ([], None)
    store.put(KEY, b"another job's")

    info = store.publish(KEY, Staged.from_json(json.loads(json.dumps(staged.to_json()))))
    again = store.publish(KEY, staged)

    assert (again.etag, again.size_bytes, again.sha256) == (info.etag, info.size_bytes, info.sha256)
    assert store.read(KEY) == body
    assert (info.size_bytes, info.sha256) == (size_bytes, hashlib.sha256(body).hexdigest())
    head = store.head(KEY)
    assert head is not None
    assert (head.size_bytes, head.etag) == (info.size_bytes, info.etag)
    assert (keys(store), uploads(store)) == ([KEY], [])


def test_another_process_publishes_what_was_staged(place: Place) -> None:
    staged = staged_as(place.store)

    output, _ = process(place, PUBLISH, KEY, json.dumps(staged.to_json())).communicate(timeout=60)

    assert output.strip() == staged.sha256
    assert place.store.read(KEY) == b"whole"


def test_what_a_killed_process_staged_is_in_no_listing_and_can_still_be_published(place: Place) -> None:
    with process(place, STAGE_AND_WAIT, KEY) as writer:
        assert writer.stdout is not None
        said = writer.stdout.readline()
        writer.kill()
    staged = Staged.from_json(json.loads(said))

    assert (keys(place.store), place.store.head(KEY)) == ([], None)
    assert uploads(place.store) == [StagedUpload(KEY, staged.upload_id)]
    place.store.publish(KEY, staged)
    assert place.store.read(KEY) == b"whole"


# -- discarding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "there", [None, b"other", more(b"a longer one")], ids=["nothing", "as long", "longer"]
)
def test_a_late_publish_fails_and_changes_nothing_once_the_upload_is_discarded(
    store: ObjectStore, there: bytes | None
) -> None:
    staged = staged_as(store)
    if there is not None:
        store.put(KEY, there)

    store.discard(KEY, staged.upload_id)

    with pytest.raises(ObjectNotFound):
        store.publish(KEY, staged)
    with pytest.raises(ObjectNotFound):
        store.write_staged(KEY, staged.upload_id, [b"late"])
    assert keys(store) == ([] if there is None else [KEY])
    assert there is None or store.read(KEY) == there


def test_an_upload_that_is_discarded_while_it_is_written_is_not_finished(store: ObjectStore) -> None:
    upload_id = store.stage(KEY)

    def body() -> Iterator[bytes]:
        yield bytes(PART_BYTES)
        store.discard(KEY, upload_id)
        yield b"the rest"

    with pytest.raises(ObjectNotFound):
        store.write_staged(KEY, upload_id, body())

    assert (keys(store), uploads(store)) == ([], [])


def test_discarding_twice_is_no_error_and_takes_nothing_that_was_published(store: ObjectStore) -> None:
    gone, published = staged_as(store), staged_as(store)
    store.publish(KEY, published)

    for _ in range(2):
        store.discard(KEY, gone.upload_id)
        store.discard(KEY, published.upload_id)

    assert store.read(KEY) == b"whole"
    assert uploads(store) == []


def test_one_upload_of_a_key_is_discarded_and_not_the_other(store: ObjectStore) -> None:
    late, ours = staged_as(store, data=b"late"), staged_as(store, data=b"ours")

    store.discard(KEY, late.upload_id)
    store.publish(KEY, ours)

    with pytest.raises(ObjectNotFound):
        store.publish(KEY, late)
    assert store.read(KEY) == b"ours"


def test_of_a_publish_and_a_discard_at_once_one_wins_whole(atomic_store: ObjectStore) -> None:
    for number in range(20):
        key = f"out/{number}"
        staged = staged_as(atomic_store, key)

        is_published, _ = at_once(
            lambda key=key, staged=staged: publishes(atomic_store, key, staged),
            lambda key=key, staged=staged: atomic_store.discard(key, staged.upload_id),
        )

        assert (atomic_store.head(key) is not None) is bool(is_published)
        assert publishes(atomic_store, key, staged) is is_published
        assert (atomic_store.head(key) is not None) is bool(is_published)


def publishes(store: ObjectStore, key: str, staged: Staged) -> bool:
    try:
        store.publish(key, staged)
    except ObjectNotFound:
        return False
    return True


def test_several_that_publish_at_once_all_find_the_object_published(atomic_store: ObjectStore) -> None:
    staged = staged_as(atomic_store)

    infos = at_once(*[lambda: atomic_store.publish(KEY, staged)] * 4)

    assert {info.etag for info in infos} == {infos[0].etag}
    assert atomic_store.read(KEY) == b"whole"


def test_a_body_that_fails_half_way_leaves_no_object_and_can_be_discarded(store: ObjectStore) -> None:
    upload_id = store.stage(KEY)

    def body() -> Iterator[bytes]:
        yield b"x" * (PART_BYTES + 1)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        store.write_staged(KEY, upload_id, body())

    assert (keys(store), uploads(store)) == ([], [StagedUpload(KEY, upload_id)])
    store.discard(KEY, upload_id)
    assert uploads(store) == []


# -- fences, limits, keys --------------------------------------------------------------------------------


def test_nothing_appears_behind_a_fence_and_nothing_is_discarded(store: ObjectStore) -> None:
    allowed = [True]
    with fenced(lambda: allowed_by(allowed)):
        staged = staged_as(store)
        allowed[0] = False
        with pytest.raises(NoLongerMine):
            store.publish(KEY, staged)
        assert keys(store) == []
        with pytest.raises(NoLongerMine):
            store.discard(KEY, staged.upload_id)

    store.publish(KEY, staged)
    assert store.read(KEY) == b"whole"


def test_a_body_is_given_up_at_its_deadline(store: ObjectStore) -> None:
    with pytest.raises(StorageUnavailable):
        store.write_staged(KEY, store.stage(KEY), [b"x"], deadline_s=0)

    assert keys(store) == []


@pytest.mark.parametrize("key", [more(""), "../up", more("nul\0"), more("x" * 1025)])
@pytest.mark.parametrize(
    "step",
    [
        lambda store, key: store.stage(key),
        lambda store, key: store.write_staged(key, "id", [b"x"]),
        lambda store, key: store.publish(key, Staged(upload_id="id", size_bytes=1, sha256="")),
        lambda store, key: store.discard(key, "id"),
    ],
    ids=["stage", "write", "publish", "discard"],
)
def test_a_key_that_would_leave_the_root_is_refused_at_every_step(
    store: ObjectStore, key: str, step: Callable[[ObjectStore, str], object]
) -> None:
    with pytest.raises(LocationNotAllowed):
        step(store, key)


# -- what was left behind --------------------------------------------------------------------------------


def test_uploads_left_behind_are_listed_by_prefix_and_in_pages(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "UPLOADS_PER_PAGE", 2)
    begun = [StagedUpload(key, store.stage(key)) for key in ("a/1", "a/2", "a/b/3", "a/b/4", "ab", "b/5")]
    store.publish("a/6", staged_as(store, "a/6"))

    assert uploads(store) == begun
    assert uploads(store, "a/") == begun[:4]
    assert uploads(store, "a/b") == begun[2:4]
    assert uploads(store, "a") == begun[:5]
    assert uploads(store, "c/") == []


def test_young_uploads_and_those_to_keep_are_not_forgotten(store: ObjectStore) -> None:
    kept, dead = store.stage("a/kept"), store.stage("a/dead")

    # moto says of every upload that it began in 2010.
    assert list(store.staged("a/", older_than=timedelta(days=36_500))) == []
    assert store.forget_unfinished(timedelta(days=36_500)) == 0
    assert store.forget_unfinished(timedelta(seconds=-1), kept={kept}) == 1

    assert uploads(store) == [StagedUpload("a/kept", kept)]
    with pytest.raises(ObjectNotFound):
        store.write_staged("a/dead", dead, [b"x"])


def test_an_id_of_another_target_names_no_file_of_a_directory(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "root")
    (tmp_path / "secret").write_bytes(b"secret")
    other = store.stage("a/other")
    store.put("a/k", b"ours")

    for upload_id in ("../../secret", "k", other, "", "."):
        store.discard("a/k", upload_id)
        with pytest.raises(ObjectNotFound):
            store.write_staged("a/k", upload_id, [b"x"])
        with pytest.raises(ObjectNotFound):
            store.publish("a/k", Staged(upload_id=upload_id, size_bytes=6, sha256="0" * 64))

    assert ((tmp_path / "secret").read_bytes(), store.read("a/k")) == (b"secret", b"ours")
    assert uploads(store) == [StagedUpload("a/other", other)]


def test_a_folder_that_a_user_made_for_an_output_outlives_what_is_discarded_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir(mode=0o750)
    store = DirectoryStore(tmp_path)

    store.discard("out/k", store.stage("out/k"))

    assert list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o777 == 0o750


def test_uploads_at_a_users_location_are_listed_by_the_keys_they_were_staged_as(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "ours").mkdir()
    ours = tmp_path / "real" / "ours"
    store = DirectoryStore(Path("/"), within=(tmp_path / "real",), without=(ours,))
    key = f"{tmp_path}/link/out/k".lstrip("/")
    upload_id = store.stage(key)
    (ours / f"{TEMPORARY_PREFIX}{'0' * 32}.secret").write_bytes(b"")

    assert uploads(store, key.removesuffix("k")) == [StagedUpload(key, upload_id)]
    assert uploads(store, f"{tmp_path}/link/".lstrip("/")) == [StagedUpload(key, upload_id)]
    with pytest.raises(LocationNotAllowed):
        uploads(store, f"{tmp_path}/".lstrip("/"))


def test_stores_with_different_prefixes_do_not_see_each_others_uploads(
    s3_server: S3Server, bucket: str
) -> None:
    ours, others = S3Store(s3_server.client, bucket, "ours"), S3Store(s3_server.client, bucket, "others")
    upload_id = ours.stage("k")

    assert (uploads(ours), uploads(others)) == ([StagedUpload("k", upload_id)], [])


# -- a server that fails ---------------------------------------------------------------------------------


def test_answers_cut_off_at_every_step_are_outlasted(
    s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = os.urandom(20_000_000)
    steps: list[Callable[[ObjectStore, Any], Any]] = [
        lambda store, _: store.stage(KEY),
        lambda store, upload_id: store.write_staged(KEY, upload_id, [body]),
        lambda store, staged: store.publish(KEY, staged),
    ]
    result: Any = None
    with closing(open_store(f"s3://{bucket}")) as direct:
        for step in steps:
            with (
                cutting_proxy(port_of(s3_server), cuts=1, after_bytes=10) as port,
                closing(through_proxy(s3_server, bucket, monkeypatch, port)) as store,
            ):
                result = step(store, result)

        assert direct.read(KEY) == body
        assert result.sha256 == hashlib.sha256(body).hexdigest()


def test_a_connection_that_breaks_while_bytes_are_sent_is_tried_again(site: Site) -> None:
    site.front.set("PUT", Unreachable(), times=2)

    site.store.publish(KEY, staged_as(site.store, data=bytes(20_000_000)))

    assert len(site.front.met) == 2
    assert site.direct.read(KEY) == bytes(20_000_000)


def test_a_bucket_that_refuses_after_half_the_parts_is_an_error_that_names_the_object(site: Site) -> None:
    upload_id = site.store.stage(KEY)
    site.front.set("PUT", Refused(403, "AccessDenied"), path="partNumber=2")

    with pytest.raises(StorageDenied, match=f"{KEY}: AccessDenied"):
        site.store.write_staged(KEY, upload_id, [bytes(20_000_000)])

    assert (site.direct.head(KEY), uploads(site.direct)) == (None, [StagedUpload(KEY, upload_id)])


@pytest.mark.parametrize(
    ("method", "step"),
    [
        ("POST", lambda store, staged: store.stage(KEY)),
        ("PUT", lambda store, staged: store.write_staged(KEY, staged.upload_id, [b"x"])),
        ("POST", lambda store, staged: store.publish(KEY, staged)),
        ("DELETE", lambda store, staged: store.discard(KEY, staged.upload_id)),
        ("GET", lambda store, staged: list(store.staged("out/"))),
    ],
    ids=["stage", "write", "publish", "discard", "list"],
)
def test_a_store_that_only_refuses_is_unavailable_at_every_step(
    site: Site, method: str, step: Callable[[ObjectStore, Staged], object]
) -> None:
    staged = staged_as(site.direct)
    site.front.set(method, Refused(503, "SlowDown"))

    with pytest.raises(StorageUnavailable, match=r"out/.*SlowDown"):
        step(site.store, staged)

    assert len(site.front.seen) == 5
    assert site.direct.head(KEY) is None


def test_a_publish_that_failed_is_not_retried_behind_a_fence(site: Site) -> None:
    staged = staged_as(site.direct)
    questions: list[str] = []

    def once() -> None:
        questions.append("may I?")
        if len(questions) > 2:  # at the fence's beginning, and before the first try
            raise NoLongerMine

    site.front.set("POST", Refused(503, "SlowDown"), times=1)
    with pytest.raises(NoLongerMine), fenced(once):
        site.store.publish(KEY, staged)

    assert site.direct.head(KEY) is None
    site.store.publish(KEY, staged)
    assert site.direct.read(KEY) == b"whole"


def test_a_server_that_cannot_list_uploads_shows_none(site: Site) -> None:
    site.store.stage(KEY)
    site.front.set("GET", Refused(501, "NotImplemented"))

    assert uploads(site.store) == []
    assert site.store.forget_unfinished(timedelta(0)) == 0
