"""Progress of cutting a bulk job's input into shards. Pure.

Planning goes page by page. The cursor is recorded in the transaction of the page before it, so the next page
begins where that one ended, whichever scheduler cuts it.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final


@dataclass(frozen=True, kw_only=True)
class CutObject:
    """An object of which only the first pieces are cut. The others are cut only of the same bytes."""

    key: str
    etag: str | None
    pieces: int  # pieces that are cut
    piece_bytes: int  # size of every piece, as decided at the first


@dataclass(frozen=True, kw_only=True)
class PlanCursor:
    """The place where the next page of shards begins. All counts are of the pages before it."""

    page: int = 0  # its number: so many are recorded
    after: str | None = None  # the last key that was listed and needs nothing more
    begun: CutObject | None = None  # the object that follows, if a page ended inside it
    listed: int = 0  # objects, those beside a pattern too
    objects: int = 0  # objects of the input, empty ones too
    size_bytes: int = 0  # size of these objects
    shards: int = 0
    extra_shards: int = 0  # beyond each object's first
    sampled_rows: int = 0  # rows of objects that were counted or sampled
    sampled_bytes: int = 0
    blank_bytes: int = 0  # read without finding a row
    table_version: int | None = None  # of the table that is read, as decided at the first page
    commit: str | None = None  # of the dataset that is read, likewise

    @classmethod
    def from_json(cls, page: int, data: dict[str, Any] | None) -> "PlanCursor":
        """A stored cursor. `data`: None before the first page, and once all is cut."""
        known = dict(data or {})
        begun = known.pop("begun", None)
        return cls(page=page, begun=CutObject(**begun) if begun else None, **known)

    def to_json(self) -> dict[str, Any]:
        """Stored form, without the page, which the store compares."""
        data = asdict(self)
        del data["page"]
        for name in ("table_version", "commit"):
            if data[name] is None:  # as an earlier release reads it
                del data[name]
        return data


FIRST_PAGE: Final = PlanCursor()
