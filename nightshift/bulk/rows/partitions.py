"""Columns that an object's folders name, as Hive writes them: `…/date=2026-11-20/lang=en/a.parquet`. Pure."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


@lru_cache(maxsize=256)
def partition_columns(uri: str) -> Mapping[str, str | None]:
    """By name, texts or null. The innermost folder counts where one is named twice."""
    scheme, separator, path = uri.partition("://")
    if not separator:
        return MappingProxyType({})  # a file id
    found: dict[str, str | None] = {}
    for folder in path.split("/")[1:-1]:  # not the bucket, not the object
        # In a file: URI the key is quoted once more.
        name, equals, value = (unquote(folder) if scheme == "file" else folder).partition("=")
        if name and equals:
            found[unquote(name)] = None if value == HIVE_NULL else unquote(value)
    return MappingProxyType(found)
