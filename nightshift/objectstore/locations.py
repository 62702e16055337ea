"""The locations that jobs may name: what the operator gave their tenant of buckets and directories
(`tenant_places.py`), with everything below.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from nightshift.errors import InvalidRequest, LocationNotAllowed, ObjectNotFound
from nightshift.objectstore.directory import DirectoryStore, is_inside, resolved
from nightshift.objectstore.hub import DEFAULT_ENDPOINT, Hub
from nightshift.objectstore.listings import ListedObject, objects_listed
from nightshift.objectstore.objects import ObjectInfo, ObjectReader, ObjectStore
from nightshift.objectstore.tenant_places import bucket_places, check_apart_from_own, file_places, lies_in_own
from nightshift.objectstore.uris import ObjectUri
from nightshift.process.settings import DataSettings, LocationSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

OBJECTS_MAX: Final = 10_000_000  # that one URI may match
LISTED_MAX: Final = 100_000_000  # that are listed to find them


class Locations:
    """The places of every tenant, and their stores. Thread-safe.

    Keys are `ObjectUri.key`: relative to the bucket, or to `/`.
    """

    def __init__(
        self,
        s3_buckets: Sequence[str] = (),
        file_roots: Sequence[Path | str] = (),
        *,
        own: Sequence[Path | str] = (),
        own_but_allowed: Sequence[Path] = (),
        umask: int | None = None,
        hub: Hub | None = None,
    ) -> None:
        """`own`: directories, files and `s3://` URLs of the service itself, which no job may name, except
        the directories `own_but_allowed`. `umask`: of files that are made; None: the process's. `hub`: None:
        huggingface.co, without a token.

        Raises `ConfigurationError` for places that two tenants would share, and for those in `own`.
        """
        self._buckets = bucket_places(s3_buckets)
        self._roots = file_places(file_roots)
        self._own = tuple(resolved(Path(place)) for place in own if not str(place).startswith("s3://"))
        check_apart_from_own(self._buckets, self._roots, own, own_but_allowed)
        self._lies_in_own = partial(lies_in_own, own=own, own_but_allowed=own_but_allowed)
        self._stores: dict[tuple[str, str], ObjectStore] = {}  # by bucket, or for files by tenant
        self._umask = umask
        self._hub = hub or Hub(DEFAULT_ENDPOINT)
        self._client: S3Client | None = None  # for all buckets
        self._lock = threading.Lock()

    @classmethod
    def of_settings(cls, places: LocationSettings, data: DataSettings) -> "Locations":
        """The places of the settings. Raises `ConfigurationError`."""
        return cls(
            places.s3_buckets,
            places.file_roots,
            own=data.own_places,
            own_but_allowed=(data.files_dir,),
            umask=places.output_umask,
            hub=Hub.of_environment(places.hf_token_tenants),
        )

    def check(self, uri: ObjectUri, tenant_id: str) -> None:
        """Follows links, then raises `LocationNotAllowed` unless it is in one of the tenant's places."""
        if uri.scheme == "hf":
            return  # every tenant's: what is not public takes the token
        if uri.scheme == "s3":
            is_allowed = any(
                place.bucket == uri.bucket and _is_below(uri.fixed_part, place.part_of(tenant_id))
                for place in self._buckets
            )
        else:
            named = Path("/") / (uri.folder if uri.is_pattern else uri.key)
            is_allowed = is_inside(resolved(named), self._roots_of(tenant_id), self._own)
        if not is_allowed:
            allowed = "NIGHTSHIFT_S3_BUCKETS"
            if uri.scheme != "s3":
                allowed = (
                    "NIGHTSHIFT_FILE_ROOTS; `nightshift up` allows the directory in which it was started"
                )
            raise LocationNotAllowed(
                f"jobs of the tenant {tenant_id!r} may not name {uri}: name a place that the operator allows "
                f"in {allowed}"
            )

    def reader(self, uri: ObjectUri, tenant_id: str) -> ObjectReader:
        """The objects that a job may read. Raises `LocationNotAllowed`."""
        return self._hub.dataset(uri, tenant_id) if uri.scheme == "hf" else self.open(uri, tenant_id)

    def pinned(self, uri: ObjectUri, tenant_id: str) -> ObjectUri:
        """A dataset at the commit that its revision names now, others as they are. Raises `StorageError`."""
        return self._hub.dataset(uri, tenant_id).pinned() if uri.scheme == "hf" and not uri.commit else uri

    def open(self, uri: ObjectUri, tenant_id: str) -> ObjectStore:
        """The store that a job may write to. Raises `LocationNotAllowed`, also for a dataset."""
        self.check(uri, tenant_id)
        if uri.scheme == "hf":
            raise LocationNotAllowed(f"{uri} is a dataset of a hub, which jobs read and do not write")
        place = (uri.bucket, tenant_id if uri.scheme == "file" else "")
        with self._lock:
            if place not in self._stores:
                self._stores[place] = self._opened(uri, tenant_id)
            return self._stores[place]

    def listed(
        self,
        uri: ObjectUri,
        tenant_id: str,
        before_each: Callable[[], None] = lambda: None,
        *,
        after: str | None = None,
        matched: int = 0,
        listed: int = 0,
    ) -> Iterator[ListedObject]:
        """Lists objects to find the URI's object, a pattern's matches, or all data under a prefix, as
        `data_names` has it, in byte order of the keys. Nothing is held.

        `after`: go on behind this key; so many `matched` among the `listed` before. `before_each` is
        called for every object listed, and may raise to end the listing. Raises `LocationNotAllowed`,
        `ObjectNotFound` for no objects, `InvalidRequest` for too many, for one that cannot be read, and for a
        store that lists in another order.
        """
        objects = objects_listed(self.reader(uri, tenant_id), uri, after, before_each)
        for candidate in objects:
            listed, matched = listed + 1, matched + candidate.is_match
            if matched > OBJECTS_MAX or listed > LISTED_MAX:
                raise InvalidRequest(
                    f"{uri} stands for too many objects: at most {OBJECTS_MAX}, among {LISTED_MAX}",
                    code="too_many_objects",
                )
            yield candidate
        if not matched:
            raise ObjectNotFound(f"nothing found at {uri}")

    def first(
        self, uri: ObjectUri, tenant_id: str, *, objects_max: int, listed_max: int
    ) -> tuple[list[ObjectInfo], bool]:
        """The first objects that `listed` would find, and whether these are all. Lists at most `listed_max`.

        Raises as `listed` does, but not for too many.
        """
        listed = itertools.count(1)
        matches: list[ObjectInfo] = []
        is_whole = True

        def count() -> None:
            if next(listed) > listed_max:
                raise _ListedEnough

        try:
            for candidate in objects_listed(self.reader(uri, tenant_id), uri, None, count):
                if candidate.is_match and len(matches) == objects_max:
                    raise _ListedEnough
                if candidate.is_match:
                    matches.append(candidate.info)
        except _ListedEnough:
            is_whole = False
        if not matches and is_whole:
            raise ObjectNotFound(f"nothing found at {uri}")
        return matches, is_whole

    def close(self) -> None:
        with self._lock:
            self._stores.clear()
            if self._client is not None:
                self._client.close()
                self._client = None

    def _opened(self, uri: ObjectUri, tenant_id: str) -> ObjectStore:
        if uri.scheme == "file":
            roots = self._roots_of(tenant_id)
            return DirectoryStore(
                Path("/"), within=roots, without=self._own, umask=self._umask, lists_unreadable=True
            )
        from nightshift.objectstore.s3 import S3Store, s3_client  # boto3 is slow to import

        self._client = self._client or s3_client()
        return S3Store(self._client, uri.bucket)

    def _roots_of(self, tenant_id: str) -> tuple[Path, ...]:
        paths = (place.part_of(tenant_id) for place in self._roots)
        roots = (resolved(Path(path)) for path in paths if path is not None)
        # A tenant may be called as a directory of the service is.
        return tuple(root for root in roots if not self._lies_in_own(root))


class _ListedEnough(Exception):
    """Enough was listed."""


def _is_below(key: str, prefix: PurePosixPath | None) -> bool:
    """Whether all keys that begin with `key` lie in the folder `prefix` of a bucket."""
    return prefix is not None and (prefix == PurePosixPath() or key.startswith(f"{prefix}/"))
