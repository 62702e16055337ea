"""Checks of the object store: whether it keeps its promises, how fast it is, and its clock."""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from statistics import median
from typing import Final

from nightshift.cli.doctor.clocks import compare
from nightshift.cli.doctor.examination import Finding, error, ok, warning
from nightshift.cli.doctor.site import Site
from nightshift.errors import ObjectExists, ObjectNotFound, StorageDenied, StorageError
from nightshift.objectstore import ObjectStore

FOLDER: Final = "doctor/"
SAMPLES: Final = 5  # per kind of request
SAMPLE_BYTES: Final = 64 * 1024  # about a segment's size
RANGE: Final = (1024, 2048)
SLOW_MS: Final = 250.0  # across regions it is less

_DIRECTORY: Final = "see that NIGHTSHIFT_STORAGE_URL names a directory that this user can write to"
_ANOTHER_STORE: Final = "results cannot be kept there: name another store in NIGHTSHIFT_STORAGE_URL"


@contextmanager
def some_key(store: ObjectStore) -> Iterator[str]:
    """Yields the key of an object, and removes the object."""
    key = f"{FOLDER}{uuid.uuid4().hex}"
    try:
        yield key
    finally:
        store.delete(key)


def look_at_storage(site: Site) -> Finding:
    """Objects can be written, read and deleted, and are not overwritten by accident.

    Raises ConfigurationError.
    """
    try:
        return _tried(site)
    except StorageError as refusal:
        return error(refusal.message, _advice(refusal) if site.has_s3 else _DIRECTORY)


def _advice(refusal: StorageError) -> str:
    if isinstance(refusal, StorageDenied):
        return (
            "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the machine's role), and see that the "
            "bucket is there and its policy lets them read, write, list and delete"
        )
    return (
        "see that the store runs and can be reached from here; NIGHTSHIFT_STORAGE_URL names its bucket, and "
        "AWS_ENDPOINT_URL its address where it is not Amazon's"
    )


def _tried(site: Site) -> Finding:
    content = b"nightshift doctor"
    with site.objects() as store, some_key(store) as key:
        store.put(key, content, if_absent=True)
        if store.read(key) != content:
            return error(f"{store.url}: what was read is not what was written", _ANOTHER_STORE)
        with suppress(ObjectExists):
            store.put(key, b"something else", if_absent=True)
            return error(f"{store.url}: what must not be replaced was replaced", _ANOTHER_STORE)
        return ok(f"{store.url}: write, read, delete")


def look_at_conditions(site: Site) -> Finding:
    """The server itself refuses what a condition forbids; some servers ignore conditions."""
    with site.objects() as store:
        if not store.url.startswith("s3://"):
            return ok("replacing is prevented by the file system")
        from nightshift.objectstore.s3 import S3Store  # boto3 is slow to import

        assert isinstance(store, S3Store)
        enforced = store.conditions()
    rules = {
        "If-None-Match on a PUT": enforced.replacing,
        "If-Match on a GET": enforced.reading_another,
        "If-Match on a PUT (not used)": enforced.replacing_another,
    }
    detail = "; ".join(f"{name}: {'enforced' if is_kept else 'ignored'}" for name, is_kept in rules.items())
    if enforced.replacing and enforced.reading_another:
        return ok(detail)
    return warning(
        detail,
        "results are safe without them: keys differ by writer, the database chooses among them, and an "
        f"input's etag is compared in the answer. Let nothing else write under {store.url}: an object there "
        "is kept from being replaced only by looking first",
    )


def look_at_multipart(site: Site) -> Finding:
    """An upload in parts is published whole, and never once it was aborted."""
    content = b"nightshift doctor"
    with site.objects() as store, some_key(store) as key, some_key(store) as fenced_key:
        store.publish(key, store.write_staged(key, store.stage(key), [content]))
        if store.read(key) != content:
            return error(f"{store.url}: an upload in parts has other bytes than were sent", _ANOTHER_STORE)
        upload_id = store.stage(fenced_key)
        staged = store.write_staged(fenced_key, upload_id, [content])
        store.discard(fenced_key, upload_id)
        with suppress(ObjectNotFound):
            store.publish(fenced_key, staged)
            return error(
                f"{store.url}: an upload that was aborted was published all the same", _ANOTHER_STORE
            )
    return ok("an upload in parts is published whole, and not once it was aborted")


def look_at_latency(site: Site) -> Finding:
    """The median of a few requests of each kind."""
    content = bytes(SAMPLE_BYTES)
    with site.objects() as store, some_key(store) as key:
        store.put(key, b"")  # the next ones have a connection
        put_ms = _median_ms(lambda: store.put(key, content))
        get_ms = _median_ms(lambda: list(store.stream(key)))
        range_ms = _median_ms(lambda: list(store.stream(key, *RANGE)))
    detail = (
        f"put {put_ms:.1f} ms, get {get_ms:.1f} ms, ranged get {range_ms:.1f} ms "
        f"(median of {SAMPLES}, {SAMPLE_BYTES // 1024} KiB)"
    )
    figures = {"put_ms": round(put_ms, 2), "get_ms": round(get_ms, 2), "range_get_ms": round(range_ms, 2)}
    if max(put_ms, get_ms, range_ms) >= SLOW_MS:
        return warning(
            detail,
            "use a store nearer to the workers (in their region): each segment and each read waits so long",
            **figures,
        )
    return ok(detail, **figures)


def look_at_storage_clock(site: Site) -> Finding:
    """Retention goes by the store's clock. S3 tells it in whole seconds, in its Date header."""
    resolution = timedelta(seconds=1) if site.has_s3 else timedelta()
    with site.objects() as store, some_key(store) as key:
        return compare("the object store's clock", lambda: store.put(key, b"").modified_at, resolution)


def _median_ms(call: Callable[[], object]) -> float:
    def once() -> float:
        began_s = time.perf_counter()
        call()
        return (time.perf_counter() - began_s) * 1000

    times: Sequence[float] = [once() for _ in range(SAMPLES)]
    return median(times)
