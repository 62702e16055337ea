"""Differences between the plans that the server has and those that it would have; pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from nightshift.jobs import JsonObject

OF_THE_SERVER: Final = frozenset(
    {
        *("id", "object", "version", "created_at", "updated_at", "paused_at"),
        *("next_runs", "last_run", "problem", "change"),
    }
)
"""Fields of a schedule that are not its plan's."""


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
    old, new = dict(_flat(before or {})), dict(_flat(after))
    paths = [*new, *(path for path in old if path not in new)]
    fields = {path: (old.get(path), new.get(path)) for path in paths if old.get(path) != new.get(path)}
    return Change(after["name"], Kind(after["change"]), fields)


def deletion_of(schedule: JsonObject) -> Change:
    return Change(schedule["name"], Kind.DELETED, {})


def _flat(plan: JsonObject) -> Iterator[tuple[str, Any]]:
    """The plan's values by path; lists as they are."""
    for name, value in plan.items():
        if name not in OF_THE_SERVER and name != "name":
            yield from _at(name, value)


def _at(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _at(f"{path}.{name}", inner)
    elif value != "":
        yield path, value
