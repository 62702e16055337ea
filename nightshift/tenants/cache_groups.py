"""Tenants that share the prefix cache: none, unless the operator names groups of them.

What a cache holds shows in counters (`cached_tokens`) and in time. A tenant that shares it with another could
try out what the other has asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

SEPARATOR: Final = "+"  # no tenant's name has it, so a group's name is no tenant's


@dataclass(frozen=True)
class CacheGroups:
    """Groups of tenants, as `search+ads`."""

    _group_of: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, groups: Sequence[str]) -> "CacheGroups":
        """Raises ValueError."""
        group_of: dict[str, str] = {}
        for group in groups:
            names = group.split(SEPARATOR)
            if len(names) < 2 or not all(names):
                raise ValueError(f"{group!r} is no group of tenants: it should be two or more names, as a+b")
            for name in names:
                if name in group_of:
                    raise ValueError(f"the tenant {name!r} is named twice")
                group_of[name] = group
        return cls(group_of)

    def salt_of(self, tenant_id: str) -> str:
        """The name under which what a tenant puts into a cache is found again."""
        return self._group_of.get(tenant_id, tenant_id)


NO_GROUPS: Final = CacheGroups()
