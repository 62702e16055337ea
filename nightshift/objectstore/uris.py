"""Locations such as `s3://bucket/docs/*.parquet` or `file:///srv/in/`."""

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, unquote

from nightshift.errors import InvalidRequest
from nightshift.objectstore.objects import checked_path_prefix, checked_prefix

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
