"""The objects that a location stands for.

Below a folder, an object is no data if its name, or that of a folder between, begins with `_` or `.`, or if
its name is known to lie beside data; some are known so only in a folder that the library `datasets` wrote.
Every other object is read, or its job fails by the object's name.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from nightshift.errors import InvalidRequest, LocationNotAllowed
from nightshift.objectstore.objects import ObjectInfo, ObjectReader, checked_key
from nightshift.objectstore.uris import ObjectUri

NAME_CHARS_SHOWN: Final = 150  # at each end of a long name: a message has 640 bytes
DELTA_LOG: Final = "_delta_log/"  # the folder in that of a Delta table which says which files have its rows
REPEATED_MAX: Final = 2_000  # of the last keys, which a store may list again: two pages of S3

# `_SUCCESS`, `.crc`, and all that this service writes without rows. `.` and `..` are no names.
_HIDDEN: Final = r"_|\.(?!\.?(?:/|\Z))"
# As Hugging Face's hub and the library `datasets` write them.
_BESIDE_DATA: Final = r"README(?:\.md|\.txt)?|LICENSE(?:\.md|\.txt)?|dataset_infos?\.json|dataset_dict\.json"
DATASET_NAME: Final = "dataset_info.json"
# Anyone may give these names to data. `cache-….arrow` has the rows of a dataset's other files once more.
_BESIDE_A_DATASET: Final = re.compile(r"(?:.*/)?(?:state\.json|cache-[^/]*\.arrow)", re.DOTALL)
_NAME: Final = rf"(?!{_HIDDEN})[^/]+"

DATA_BELOW: Final = rf"(?:{_NAME}/)*(?!(?:{_BESIDE_DATA})\Z){_NAME}"  # a pattern of what follows the folder

_DATA_BELOW: Final = re.compile(DATA_BELOW, re.DOTALL)


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object that was listed to find those of a location."""

    info: ObjectInfo
    is_match: bool  # False: it lies beside them


def objects_listed(
    store: ObjectReader, uri: ObjectUri, after: str | None, before_each: Callable[[], None]
) -> Iterator[ListedObject]:
    if not uri.is_pattern and not uri.is_prefix:
        info = store.head(checked_key(uri.key)) if after is None else None
        if info is not None:
            yield ListedObject(info, is_match=True)
        return
    if after is None and uri.is_prefix:  # its log may be listed behind its files
        for info in islice(store.list(f"{uri.fixed_part}{DELTA_LOG}"), 1):
            _refuse_table(uri, info.key)
    order, wanted = _KeyOrder(after), _Wanted(uri)
    for info in store.list(uri.fixed_part, after):
        before_each()
        _refuse_table(uri, info.key)
        if order.is_next(info.key):
            is_match = wanted.has(info) and not (uri.is_prefix and _lies_beside_a_dataset(store, info.key))
            if is_match:
                _check_readable(uri, info)
            yield ListedObject(info, is_match=is_match)


def _refuse_table(uri: ObjectUri, key: str) -> None:
    """Raises `InvalidRequest` for a folder with a Delta table: files of earlier versions lie there, too."""
    begin = len(uri.key)
    if uri.is_prefix and not uri.is_pattern and (at := f"/{key[begin:]}".find(f"/{DELTA_LOG}")) >= 0:
        raise InvalidRequest(
            f"{uri.with_key(key[: begin + at])} is a Delta table, whose folder also has rows that it lost: "
            "name this folder and say 'input_format' (--input-format delta). A pattern reads all its files.",
            code="unreadable_input",
        )


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
        """Whether the key is listed for the first time: some stores repeat one between two pages while
        another client writes.
        """
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


def is_data(path_below: str) -> bool:
    """Whether an object at this path below a folder is data."""
    return _DATA_BELOW.fullmatch(path_below) is not None


def is_beside_a_dataset(key: str) -> bool:
    """Whether the object is no data if DATASET_NAME lies in its folder."""
    return _BESIDE_A_DATASET.fullmatch(key) is not None
