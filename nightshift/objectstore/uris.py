"""Locations such as `s3://bucket/docs/*.parquet` or `file:///srv/in/`."""

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, unquote

from nightshift.errors import InvalidRequest
from nightshift.objectstore.objects import checked_path_prefix, checked_prefix

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_NAME: Final = r"\w[\w.+-]{0,95}"
_DATASET: Final = re.compile(
    rf"(datasets/{_NAME}/{_NAME}(?:@{_NAME}(?:%2F{_NAME})*)?)(?:/(.*))?", re.ASCII | re.DOTALL
)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_WILDCARDS: Final = re.compile(r"[*?]")


@dataclass(frozen=True, slots=True)
class ObjectUri:
    """An object, a pattern or a prefix. With `file:`, the bucket is empty and the key is the path without
    its `/`. With `hf:`, the bucket is `datasets/org/name`, or with a revision `datasets/org/name@revision`.
    """

    scheme: str  # s3, file or hf
    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> "ObjectUri":
        """Raises `InvalidRequest` for any other text."""
        scheme, separator, rest = text.partition("://")
        bucket, slash, key = rest.partition("/")
        if separator and scheme == "hf":
            match = _DATASET.fullmatch(rest)
            if match is None:
                form = "hf://datasets/org/name@revision/path, with a slash in the revision as %2F"
                raise InvalidRequest(f"{text!r} does not name a dataset: use {form}")
            return cls(scheme, match[1].removesuffix("@main"), checked_path_prefix(match[2] or ""))
        if not separator or scheme not in ("s3", "file"):
            forms = "s3://bucket/key, file:///path or hf://datasets/org/name/path"
            raise InvalidRequest(f"{text!r} is not a location: use {forms}")
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

    @property
    def commit(self) -> str | None:
        """The commit of a dataset, if its revision is one: it can never mean other bytes."""
        revision = self.bucket.partition("@")[2]
        return revision if self.scheme == "hf" and _COMMIT.fullmatch(revision) else None

    def at_commit(self, commit: str) -> "ObjectUri":
        """Raises `ValueError` for what is no commit."""
        if not _COMMIT.fullmatch(commit):
            raise ValueError(f"{commit!r} is no commit")
        return replace(self, bucket=f"{self.bucket.partition('@')[0]}@{commit}")

    def with_key(self, key: str) -> "ObjectUri":
        return replace(self, key=key)
