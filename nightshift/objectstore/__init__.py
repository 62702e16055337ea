"""The object store: a directory or S3 behind one interface, `ObjectStore`."""

from pathlib import Path

from nightshift.errors import ConfigurationError
from nightshift.objectstore.directory import DirectoryStore
from nightshift.objectstore.fences import fenced
from nightshift.objectstore.locations import Locations
from nightshift.objectstore.objects import (
    MIB,
    READ_BYTES_MAX,
    STREAM_CHUNK_BYTES,
    ObjectChanged,
    ObjectDamaged,
    ObjectInfo,
    ObjectReader,
    ObjectStore,
    ObjectTooLarge,
    Staged,
    StagedUpload,
    checked_key,
    copy_verified,
    read_verified,
)
from nightshift.objectstore.uris import ObjectUri

__all__ = [
    "MIB",
    "READ_BYTES_MAX",
    "STREAM_CHUNK_BYTES",
    "DirectoryStore",
    "Locations",
    "ObjectChanged",
    "ObjectDamaged",
    "ObjectInfo",
    "ObjectReader",
    "ObjectStore",
    "ObjectTooLarge",
    "ObjectUri",
    "Staged",
    "StagedUpload",
    "checked_key",
    "copy_verified",
    "fenced",
    "open_store",
    "read_verified",
]


def open_store(url: str) -> ObjectStore:
    """The store at `file:///directory` (created if missing) or `s3://bucket/prefix`.

    Raises `InvalidRequest` for a malformed URL, and `ConfigurationError` for another kind of URL, a pattern
    or a directory that cannot be made.
    """
    if not url.startswith(("file://", "s3://")):
        raise ConfigurationError(f"{url!r} is no store: use s3://bucket/key or file:///path")
    uri = ObjectUri.parse(url)
    if uri.is_pattern:
        raise ConfigurationError(f"{url!r} is a pattern, not a place to keep objects in")
    if uri.scheme == "s3":
        from nightshift.objectstore.s3 import S3Store, s3_client  # boto3 is slow to import

        return S3Store(s3_client(), uri.bucket, uri.key.strip("/"))
    root = Path("/") / uri.key
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"The directory {root} of objects cannot be made: {error.strerror}"
        raise ConfigurationError(message, param="STORAGE_URL") from error
    return DirectoryStore(root)
