"""Locations such as `s3://bucket/docs/*.parquet` or `file:///srv/in/`.

Jobs may name only what the operator gave their tenant: parts of buckets, and directories with everything
below them (`places.py`).
"""

import itertools
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from nightshift.errors import InvalidRequest, LocationNotAllowed, ObjectNotFound
from nightshift.objectstore.data_names import DATA_BELOW, DATASET_NAME, is_beside_a_dataset, is_data
from nightshift.objectstore.directory import DirectoryStore, is_inside, resolved
from nightshift.objectstore.objects import (
    ObjectInfo,
    ObjectReader,
    ObjectStore,
    checked_key,
    checked_path_prefix,
    checked_prefix,
)
from nightshift.objectstore.tenant_places import bucket_places, check_apart_from_own, file_places, lies_in_own
from nightshift.process.settings import DataSettings, LocationSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

OBJECTS_MAX: Final = 10_000_000  # that one URI may match
LISTED_MAX: Final = 100_000_000  # that are listed to find them
NAME_CHARS_SHOWN: Final = 150  # at each end of a long name: a message has 640 bytes
REPEATED_MAX: Final = 2_000  # of the last keys, which a store may list again: two pages of S3

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_WILDCARDS: Final = re.compile(r"[*?]")


@dataclass(frozen=True, slots=True)
class ObjectUri:
    """An object, a pattern or a prefix. With `file:`, the bucket is empty and the key is the path without
    its `/`.
    """

    scheme: str  # s3 or file
    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> "ObjectUri":
        """Raises `InvalidRequest` for any other text."""
        scheme, separator, rest = text.partition("://")
        bucket, slash, key = rest.partition("/")
        if not separator or scheme not in ("s3", "file"):
            raise InvalidRequest(f"{text!r} is not a location: use s3://bucket/key or file:///path")
        if scheme == "s3" and not _BUCKET.fullmatch(bucket):
            raise InvalidRequest(f"{text!r} does not name a bucket: use s3://bucket/key")
        if scheme == "file" and (bucket not in ("", "localhost") or not slash):
            raise InvalidRequest(f"{text!r} is not an absolute path: use file:///path, with three slashes")
        if scheme == "file":
            try:
                key = unquote(key, errors="strict")
            except UnicodeDecodeError as error:
                raise InvalidRequest(f"{text!r} is not UTF-8 where it is quoted by %") from error
        (checked_path_prefix if scheme == "file" else checked_prefix)(key)
        return cls(scheme, bucket if scheme == "s3" else "", key)

    def __str__(self) -> str:
        key = quote(self.key, safe="/*?", errors="surrogateescape") if self.scheme == "file" else self.key
        return f"{self.scheme}://{self.bucket}/{key}"

    @property
    def is_pattern(self) -> bool:
        return _WILDCARDS.search(self.key) is not None

    @property
    def is_prefix(self) -> bool:
        return self.key.endswith("/") or not self.key

    @property
    def fixed_part(self) -> str:
        """The key up to the first wildcard."""
        return _WILDCARDS.split(self.key, maxsplit=1)[0]

    @property
    def folder(self) -> str:
        """The path of the containing directory, with its slash, or empty."""
        return self.fixed_part[: self.fixed_part.rfind("/") + 1]

    def with_key(self, key: str) -> "ObjectUri":
        return replace(self, key=key)


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object that was listed to find those of a location."""

    info: ObjectInfo
    is_match: bool  # False: it lies beside them


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
    ) -> None:
        """`own`: directories, files and `s3://` URLs of the service itself, which no job may name, except
        the directories `own_but_allowed`. `umask`: of files that are made; None: the process's.

        Raises `ConfigurationError` for places that two tenants would share, and for those in `own`.
        """
        self._buckets = bucket_places(s3_buckets)
        self._roots = file_places(file_roots)
        self._own = tuple(resolved(Path(each)) for each in own if not str(each).startswith("s3://"))
        check_apart_from_own(self._buckets, self._roots, own, own_but_allowed)
        self._lies_in_own = partial(lies_in_own, own=own, own_but_allowed=own_but_allowed)
        self._stores: dict[tuple[str, str], ObjectStore] = {}  # by bucket, or for files by tenant
        self._umask = umask
        self._client: S3Client | None = None  # for all buckets
        self._lock = threading.Lock()

    @classmethod
    def of(cls, places: LocationSettings, data: DataSettings) -> "Locations":
        """What the settings say. Raises `ConfigurationError`."""
        return cls(
            places.s3_buckets,
            places.file_roots,
            own=data.own_places,
            own_but_allowed=(data.files_dir,),
            umask=places.output_umask,
        )

    def check(self, uri: ObjectUri, tenant_id: str) -> None:
        """Follows links, then raises `LocationNotAllowed` unless it is in one of the tenant's places."""
        if uri.scheme == "s3":
            is_allowed = any(
                place.bucket == uri.bucket and _is_below(uri.fixed_part, place.of(tenant_id))
                for place in self._buckets
            )
        else:
            named = Path("/") / (uri.folder if uri.is_pattern else uri.key)
            is_allowed = is_inside(resolved(named), self._roots_of(tenant_id), self._own)
        if not is_allowed:
            setting = "NIGHTSHIFT_S3_BUCKETS" if uri.scheme == "s3" else "NIGHTSHIFT_FILE_ROOTS"
            raise LocationNotAllowed(
                f"jobs of the tenant {tenant_id!r} may not name {uri}: {setting} has the places of each"
            )

    def open(self, uri: ObjectUri, tenant_id: str) -> ObjectStore:
        """Raises `LocationNotAllowed`."""
        self.check(uri, tenant_id)
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
        found: int = 0,
        listed: int = 0,
    ) -> Iterator[ListedObject]:
        """What is listed to find the URI's object, a pattern's matches, or all data under a prefix, as
        `data_names` has it, in byte order of the keys. Nothing is held.

        `after`: go on behind this key; so many were `found` among the `listed` before. `before_each` is
        called for every object listed, and may raise to end the listing. Raises `LocationNotAllowed`,
        `ObjectNotFound` for no objects, `InvalidRequest` for too many, for one that cannot be read, and for a
        store that lists in another order.
        """
        objects = _listed(self.open(uri, tenant_id), uri, after, before_each)
        for each in objects:
            listed, found = listed + 1, found + each.is_match
            if found > OBJECTS_MAX or listed > LISTED_MAX:
                raise InvalidRequest(
                    f"{uri} stands for too many objects: at most {OBJECTS_MAX}, among {LISTED_MAX}",
                    code="too_many_objects",
                )
            yield each
        if not found:
            raise ObjectNotFound(f"nothing found at {uri}")

    def first(
        self, uri: ObjectUri, tenant_id: str, *, objects_max: int, listed_max: int
    ) -> tuple[list[ObjectInfo], bool]:
        """The first objects that `listed` would find, and whether these are all. Lists at most `listed_max`.

        Raises as `listed` does, but not for too many.
        """
        listed = itertools.count(1)
        found: list[ObjectInfo] = []
        is_whole = True

        def count() -> None:
            if next(listed) > listed_max:
                raise _ListedEnough

        try:
            for each in _listed(self.open(uri, tenant_id), uri, None, count):
                if each.is_match and len(found) == objects_max:
                    raise _ListedEnough
                if each.is_match:
                    found.append(each.info)
        except _ListedEnough:
            is_whole = False
        if not found and is_whole:
            raise ObjectNotFound(f"nothing found at {uri}")
        return found, is_whole

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
        paths = (place.of(tenant_id) for place in self._roots)
        roots = (resolved(Path(path)) for path in paths if path is not None)
        # A tenant may be called as a directory of the service is.
        return tuple(root for root in roots if not self._lies_in_own(root))


class _ListedEnough(Exception):
    """What was listed is enough."""


def _is_below(key: str, prefix: PurePosixPath | None) -> bool:
    """Whether all keys that begin with `key` lie in the folder `prefix` of a bucket."""
    return prefix is not None and (prefix == PurePosixPath() or key.startswith(f"{prefix}/"))


def _listed(
    store: ObjectReader, uri: ObjectUri, after: str | None, before_each: Callable[[], None]
) -> Iterator[ListedObject]:
    if not uri.is_pattern and not uri.is_prefix:
        info = store.head(checked_key(uri.key)) if after is None else None
        if info is not None:
            yield ListedObject(info, is_match=True)
        return
    order, wanted = _KeyOrder(after), _Wanted(uri)
    for info in store.list(uri.fixed_part, after):
        before_each()
        if order.is_next(info.key):
            is_match = wanted.has(info) and not (uri.is_prefix and _lies_beside_a_dataset(store, info.key))
            if is_match:
                _check_readable(uri, info)
            yield ListedObject(info, is_match=is_match)


def _lies_beside_a_dataset(store: ObjectReader, key: str) -> bool:
    """Asks the store for a few names alone."""
    folder = key[: key.rfind("/") + 1]
    return is_beside_a_dataset(key) and store.head(f"{folder}{DATASET_NAME}") is not None


def _check_readable(uri: ObjectUri, info: ObjectInfo) -> None:
    """Raises `InvalidRequest` naming the object: leaving it out would lose its rows."""
    reason = info.unreadable
    try:
        checked_key(info.key)
    except LocationNotAllowed as error:
        reason = reason or error.message
    if reason is not None:
        name = str(uri.with_key(info.key))
        if len(name) > 2 * NAME_CHARS_SHOWN:
            name = f"{name[:NAME_CHARS_SHOWN]}…{name[-NAME_CHARS_SHOWN:]}"
        named = f"{name} cannot be read: {reason}."
        raise InvalidRequest(
            f"{named} Take it away, or name the others by a pattern.", code="unreadable_input"
        )


class _KeyOrder:
    """Passes keys in byte order, each once. Raises `InvalidRequest` for another order: a listing that goes on
    behind a key would leave some out.
    """

    def __init__(self, after: str | None) -> None:
        self._last = b"" if after is None else os.fsencode(after)
        self._latest: deque[str] = deque(maxlen=REPEATED_MAX)

    def is_next(self, key: str) -> bool:
        """False: it was listed before, as some stores do between two pages while another client writes."""
        encoded = os.fsencode(key)
        if encoded > self._last:
            self._last = encoded
            self._latest.append(key)
            return True
        if key in self._latest:
            return False
        raise InvalidRequest(
            f"The store lists {key!r} behind a key that sorts after it. Name its objects one by one: only "
            "stores that list in the order of their keys can be listed.",
            code="unordered_listing",
        )


class _Wanted:
    """The objects that a pattern or a prefix stands for, by their keys.

    `*` and `?` match within one folder, as in a shell; a prefix matches all data below it. Empty parts of a
    key count for nothing, as in a path: `a//b` is found as `a/b` is. A store has objects of both keys.
    """

    def __init__(self, uri: ObjectUri) -> None:
        self._uri = uri
        folders = "/".join(map(_folder_pattern, uri.key.split("/")))
        self._keys = re.compile(folders + DATA_BELOW if uri.is_prefix else folders, re.DOTALL)
        self._parts = [re.compile(_folder_pattern(part), re.DOTALL) for part in _parts_of(uri.key)]

    def has(self, info: ObjectInfo) -> bool:
        """Whether the location stands for the object. It stands for a folder that was not entered if it may
        stand for objects in there which are not found elsewhere.
        """
        if info.unreadable is not None and info.key.endswith("/"):
            return self._may_lie_in(info.key) and not self._is_found_elsewhere(info.key)
        if self._keys.fullmatch(info.key) is not None:
            return True
        return "//" in f"/{info.key}/" and self._has_parts(_parts_of(info.key))

    def _has_parts(self, parts: Sequence[str]) -> bool:
        count = len(self._parts)
        if len(parts) < count or not self._begin(parts):
            return False
        rest = "/".join(parts[count:])
        return not rest or (self._uri.is_prefix and is_data(rest))

    def _may_lie_in(self, folder: str) -> bool:
        parts = _parts_of(folder)
        is_on_the_way = len(parts) < len(self._parts) and self._begin(parts)
        return is_on_the_way or (self._uri.is_prefix and self._has_parts([*parts, "any"]))

    def _is_found_elsewhere(self, folder: str) -> bool:
        """Whether a link leads to a folder of which a prefix has all data anyway."""
        is_link = os.path.islink(f"/{folder}".rstrip("/"))
        if not is_link or self._uri.is_pattern or not self._uri.is_prefix:
            return False
        base, target = (os.path.realpath(f"/{key}").rstrip("/") for key in (self._uri.key, folder))
        return target == base or (target.startswith(f"{base}/") and is_data(f"{target[len(base) + 1 :]}/any"))

    def _begin(self, parts: Sequence[str]) -> bool:
        """Whether the location's parts match these, as far as there are both."""
        return all(pattern.fullmatch(part) for pattern, part in zip(self._parts, parts, strict=False))


def _parts_of(key: str) -> list[str]:
    return [part for part in key.split("/") if part]


def _folder_pattern(name: str) -> str:
    """One name of a path. What follows a star is looked for once, at its first place: linear in the key."""
    first, *others = (
        "".join("[^/]" if letter == "?" else re.escape(letter) for letter in piece)
        for piece in name.split("*")
    )
    if not others:
        return first
    between = "".join(f"(?>[^/]*?{piece})" for piece in others[:-1])
    return f"{first}{between}[^/]*{others[-1]}"
