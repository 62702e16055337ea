"""The bodies and answers of /v1/tenants."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, Field

from api.bodies import EpochTime, ListEnvelope, OwnBody, Record
from nightshift.endpoints.requests import at_most
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.tenants import OVERLAP_MAX_S, OVERLAP_S
from nightshift.process.settings import YEARS
from nightshift.tenants.keys import DEFAULT_SCOPES, Scope
from nightshift.tenants.quotas import QUOTA_MAX

Description = Annotated[str, Field(max_length=512)]
Scopes = Annotated[list[Scope], Field(min_length=1), at_most(len(Scope))]
Quota = Annotated[int, Field(strict=True, ge=1, le=QUOTA_MAX)]
_EVERYDAY: Final = sorted(DEFAULT_SCOPES)


class QuotasBody(OwnBody):
    """Null: the service's default, which may be unlimited. What is absent stays."""

    requests_per_minute: Quota | None = None
    tokens_per_minute: Quota | None = None
    concurrent_requests: Quota | None = None
    open_streams: Quota | None = None
    uploads_in_flight: Quota | None = None
    queued_rows: Quota | None = None
    queued_tokens: Quota | None = None
    stored_files: Quota | None = None
    stored_bytes: Quota | None = None

    @property
    def given(self) -> dict[str, int | None]:
        return self.model_dump(exclude_unset=True)


class TenantCreate(OwnBody):
    """POST /v1/tenants."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$")]
    description: Description = ""
    priority_ceiling: PriorityClass = PriorityClass.INTERACTIVE
    quotas: QuotasBody = QuotasBody()


class TenantUpdate(OwnBody):
    """PATCH /v1/tenants/{tenant}. What is absent stays."""

    description: Description | None = None
    disabled: bool | None = None
    priority_ceiling: PriorityClass | None = None
    quotas: QuotasBody = QuotasBody()


class KeyCreate(OwnBody):
    """POST /v1/tenants/{tenant}/keys."""

    name: Annotated[str, Field(max_length=128)] = ""
    scopes: Scopes = _EVERYDAY
    expires_after_s: Annotated[int, Field(ge=1, le=YEARS)] | None = None


class KeyRotate(OwnBody):
    """POST /v1/tenants/{tenant}/keys/{key_id}/rotate."""

    overlap_s: Annotated[int, Field(ge=0, le=OVERLAP_MAX_S)] = OVERLAP_S


class QuotasObject(Record):
    """Null: the service's default."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    open_streams: int | None
    uploads_in_flight: int | None
    queued_rows: int | None
    queued_tokens: int | None
    stored_files: int | None
    stored_bytes: int | None


class TenantObject(Record):
    id: str
    object: Literal["tenant"] = "tenant"
    name: str = Field(validation_alias="id")
    description: str
    status: str = Field(validation_alias="state")
    priority_ceiling: PriorityClass
    quotas: QuotasObject
    created_at: EpochTime
    disabled_at: EpochTime | None


class KeyObject(Record):
    """A key without the key."""

    id: str
    object: Literal["api_key"] = "api_key"
    tenant: str = Field(validation_alias="tenant_id")
    name: str
    scopes: Annotated[list[Scope], BeforeValidator(sorted)]
    last4: str
    created_at: EpochTime
    expires_at: EpochTime | None
    revoked_at: EpochTime | None
    replaced_by: str | None


class CreatedKeyObject(KeyObject):
    """A new key, shown this once."""

    key: str


class DeletedTenant(BaseModel):
    id: str
    object: Literal["tenant"] = "tenant"
    deleted: Literal[True] = True


class TenantPage(ListEnvelope):
    data: list[TenantObject]


class KeyPage(ListEnvelope):
    data: list[KeyObject]
