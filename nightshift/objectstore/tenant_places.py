"""Whose places are whose: the directories and parts of buckets that a tenant's jobs may name.

    /srv/in                 the default tenant's
    acme=/srv/acme          the tenant acme's
    /srv/{tenant}/files     each tenant's own, under its name

Buckets likewise: `bucket`, `acme=bucket/docs`, `bucket/{tenant}`. No two tenants have a place in common.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from nightshift.errors import ConfigurationError
from nightshift.objectstore.directory import is_inside, resolved
from nightshift.tenants.keys import DEFAULT_TENANT, is_tenant_name

ANY_TENANT: Final = "{tenant}"
_OWNER: Final = re.compile(r"([a-z0-9-]{1,32})=")


@dataclass(frozen=True, slots=True)
class Place:
    """A directory, or with a bucket a prefix of its keys. `path` may have the component `{tenant}`."""

    text: str
    owner: str | None  # None: the tenant whose name stands for {tenant}
    bucket: str  # empty for files
    path: PurePosixPath  # absolute for files; "." is a whole bucket

    def part_of(self, tenant_id: str) -> PurePosixPath | None:
        """The tenant's part of it; none for a name like `../x`, which keys of earlier releases may have."""
        if self.owner is None and is_tenant_name(tenant_id):
            return PurePosixPath(*(tenant_id if part == ANY_TENANT else part for part in self.path.parts))
        return self.path if self.owner == tenant_id else None

    @property
    def fixed_path(self) -> PurePosixPath:
        """The path before `{tenant}`."""
        return PurePosixPath(*itertools.takewhile(lambda part: part != ANY_TENANT, self.path.parts))

    def overlaps(self, bucket: str, path: PurePosixPath) -> bool:
        mine = self.fixed_path
        return self.bucket == bucket and (mine.is_relative_to(path) or path.is_relative_to(mine))


def file_places(texts: Sequence[str | Path]) -> tuple[Place, ...]:
    """Raises `ConfigurationError` for places that two tenants would share."""
    places = []
    for text in map(str, texts):
        owner, path = _owner_and_path(text, "FILE_ROOTS")
        if not path.startswith("/") and ANY_TENANT in path:
            raise _invalid("FILE_ROOTS", f"{text!r} is not an absolute path")
        before, _, after = path.partition(ANY_TENANT)
        root = PurePosixPath(resolved(Path(before)))
        rest = (ANY_TENANT, after.strip("/")) if owner is None else ()
        places.append(Place(text, owner, "", root.joinpath(*rest)))
    return _apart(places, "FILE_ROOTS")


def bucket_places(texts: Sequence[str]) -> tuple[Place, ...]:
    """Raises `ConfigurationError` for places that two tenants would share."""
    places = []
    for text in texts:
        owner, name = _owner_and_path(text, "S3_BUCKETS")
        bucket, _, prefix = name.partition("/")
        places.append(Place(text, owner, bucket, PurePosixPath(prefix)))
    return _apart(places, "S3_BUCKETS")


def check_apart_from_own(
    buckets: Sequence[Place],
    roots: Sequence[Place],
    own: Sequence[Path | str],
    own_but_allowed: Sequence[Path] = (),
) -> None:
    """Raises `ConfigurationError` for places in what the service keeps itself.

    A directory may hold the service's own: jobs do not see that part. A bucket's part may not.
    """
    for text in map(str, own):
        scheme, separator, name = text.partition("://")
        bucket, _, prefix = name.partition("/")
        for place in buckets if separator and scheme == "s3" else ():
            if place.overlaps(bucket, PurePosixPath(prefix)):
                raise _invalid("S3_BUCKETS", f"{place.text!r} overlaps the service's own objects, {text}")
    for place in roots:
        if lies_in_own(Path(place.fixed_path), own, own_but_allowed):
            raise _invalid("FILE_ROOTS", f"{place.text!r} lies where the service keeps its own data")


def lies_in_own(path: Path, own: Sequence[Path | str], own_but_allowed: Sequence[Path]) -> bool:
    """Whether a directory is in what the service keeps itself, and not in the part of it for jobs."""
    directories = [resolved(Path(place)) for place in own if not str(place).startswith("s3://")]
    allowed = [resolved(place) for place in own_but_allowed]
    return any(map(path.is_relative_to, directories)) and not is_inside(path, allowed, directories)


def _owner_and_path(text: str, setting: str) -> tuple[str | None, str]:
    owned = _OWNER.match(text)
    path = text[owned.end() :] if owned else text
    names = path.split("/")
    if not any(ANY_TENANT in name for name in names):
        return (owned[1] if owned else DEFAULT_TENANT), path
    if owned or names[0] == ANY_TENANT or names.count(ANY_TENANT) != 1 or path.count(ANY_TENANT) != 1:
        raise _invalid(setting, f"{text!r}: {ANY_TENANT} must be one whole name below a fixed one")
    return None, path


def _apart(places: list[Place], setting: str) -> tuple[Place, ...]:
    for one, other in itertools.combinations(places, 2):
        is_same_owner = one.owner == other.owner is not None
        if not is_same_owner and one.overlaps(other.bucket, other.fixed_path):
            raise _invalid(setting, f"{one.text!r} and {other.text!r} overlap: tenants would share it")
    return tuple(places)


def _invalid(setting: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"NIGHTSHIFT_{setting}: {problem}", param=setting)
