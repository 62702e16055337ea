"""Entity tags, which say whether an object is still the one it was.

Servers and the proxies before them write one tag in several ways: `"5d41"`, `5d41`, `W/"5d41"`. Tags are held
and compared without what differs, and sent with quotes, as HTTP wants them.
"""

from collections.abc import Mapping
from typing import Any

from nightshift.errors import StorageError


def normalised_etag(text: str) -> str:
    """The tag without space around it, the mark of a weak one, and quotes."""
    return text.strip().removeprefix("W/").strip().strip('"')


def etag_in(answer: Mapping[str, Any], name: str) -> str:
    """The tag in S3's answer, or in an entry of a listing. `name`: of the object.

    Raises StorageError for an answer without one: no change of the object could be noticed.
    """
    etag = normalised_etag(answer.get("ETag") or "")
    if not etag:
        raise StorageError(f"{name}: the server says no ETag, so no change of the object could be noticed")
    return etag


def sent_etag(etag: str) -> str:
    """A tag as the value of If-Match."""
    return f'"{normalised_etag(etag)}"'


def part_etag(answer: Mapping[str, Any], name: str) -> str:
    """The tag of an upload's part in the form in which the server gave it, to be handed back at the end."""
    etag_in(answer, name)
    return str(answer["ETag"]).strip().removeprefix("W/")
