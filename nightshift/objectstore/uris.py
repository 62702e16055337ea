"""Locations such as `s3://bucket/docs/*.parquet` or `file:///srv/in/`."""

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, unquote

from nightshift.errors import InvalidRequest
from nightshift.objectstore.objects import checked_path_prefix, checked_prefix

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_DATASET: Final = re.compile(
    r"(datasets/\w[\w.-]{0,95}/\w[\w.-]{0,95})(?:@(refs/(?:pr|convert)/[\w.-]+|[\w.%+-]{1,255}))?(?:/(.*))?",
    re.ASCII | re.DOTALL,
)
_REVISION: Final = re.compile(r"\w[\w.+-]*(?:/\w[\w.+-]*)*", re.ASCII)
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
            return cls(scheme, *_dataset_and_path(text, rest))
        if not separator or scheme not in ("s3", "file"):
            raise InvalidRequest(
                f"{text!r} is not a location: use s3://bucket/key, file:///path or hf://datasets/org/name/path"
            )
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
        """The commit of a dataset, if its revision is one."""
        revision = self.bucket.partition("@")[2]
        return revision if self.scheme == "hf" and is_commit(revision) else None

    def at_commit(self, commit: str) -> "ObjectUri":
        return replace(self, bucket=f"{self.bucket.partition('@')[0]}@{commit}")

    def with_key(self, key: str) -> "ObjectUri":
        return replace(self, key=key)


def is_commit(revision: str) -> bool:
    """Whether a revision of a dataset can never mean other bytes."""
    return _COMMIT.fullmatch(revision) is not None


def _dataset_and_path(text: str, rest: str) -> tuple[str, str]:
    """Raises `InvalidRequest`."""
    match = _DATASET.fullmatch(rest)
    revision = unquote(match[2] or "") if match else ""
    if match is None or (match[2] and not _REVISION.fullmatch(revision)):
        raise InvalidRequest(
            f"{text!r} does not name a dataset: use hf://datasets/org/name/path or "
            "hf://datasets/org/name@revision/path, with a slash in a revision as %2F"
        )
    at = f"@{quote(revision, safe='')}" if revision else ""
    return f"{match[1]}{at}", checked_path_prefix(match[3] or "")
