"""A tenant: the owner of jobs, files and keys."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from nightshift.jobs.priorities import PriorityClass
from nightshift.tenants.quotas import NO_QUOTAS, Quotas


class TenantState(StrEnum):
    ACTIVE = "active"
    DISABLED = "disabled"  # its keys are refused; its jobs go on
    DELETED = "deleted"  # for good; its name is not given again


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """`id` is the name under which its keys, places and usage are found."""

    id: str
    description: str
    created_at: datetime
    priority_ceiling: PriorityClass = PriorityClass.INTERACTIVE  # better classes are taken for this one
    quotas: Quotas = NO_QUOTAS
    disabled_at: datetime | None = None
    deleted_at: datetime | None = None

    @property
    def state(self) -> TenantState:
        if self.deleted_at is not None:
            return TenantState.DELETED
        return TenantState.ACTIVE if self.disabled_at is None else TenantState.DISABLED
