"""Differences between the plans that the server has and those that it would have; pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from nightshift.jobs import JsonObject

OF_THE_SERVER: Final = frozenset(
    (
        *("id", "object", "name", "version", "created_at", "updated_at", "paused_at"),
        *("next_runs", "last_run", "problem", "change"),
    )
)
"""Fields of a schedule that are not its plan's, and its name."""


class Kind(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    DELETED = "deleted"


@dataclass(frozen=True)
class Change:
    """`fields`: by their paths, such as `job.template.model`, the values before and after; None for none."""

    name: str
    kind: Kind
    fields: Mapping[str, tuple[Any, Any]]

    @property
    def as_json(self) -> JsonObject:
        fields = {path: {"before": before, "after": after} for path, (before, after) in self.fields.items()}
        return {"name": self.name, "change": self.kind, "fields": fields}


def change_of(before: JsonObject | None, after: JsonObject) -> Change:
    """`after`: the server's answer to a plan. `before`: the schedule that it has; None for none."""
    old, new = dict(_values(before or {})), dict(_values(after))
    fields = {path: (old.get(path), new.get(path)) for path in new | old if old.get(path) != new.get(path)}
    return Change(after["name"], Kind(after["change"]), fields)


def _values(plan: JsonObject, path: str = "") -> Iterator[tuple[str, Any]]:
    """The plan's values by path; lists as they are."""
    for name, value in plan.items():
        if not path and name in OF_THE_SERVER:
            continue
        if isinstance(value, dict):
            yield from _values(value, f"{path}{name}.")
        elif value != "":
            yield f"{path}{name}", value
