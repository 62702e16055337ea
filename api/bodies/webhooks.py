"""The bodies and answers of /v1/webhook_endpoints, in OpenAI's shapes; what is ours is in `nightshift`."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from api.bodies import FIELDS_MAX, EpochTime, ListEnvelope, OpenAiBody, OwnBody, Record
from api.bodies.jobs import Uri
from api.responses.times import EPOCH_MAX_S
from nightshift.endpoints.requests import at_most
from nightshift.jobs import JsonObject
from nightshift.outbound.webhook_endpoints import DisabledReason, WebhookEndpoint
from nightshift.outbound.webhook_events import EVENT_TYPES, WILDCARDS


def _known(event_type: str) -> str:
    if event_type not in EVENT_TYPES:
        raise ValueError(f"unknown event type {event_type!r}; known are {', '.join(sorted(EVENT_TYPES))}")
    return event_type


def _known_or_wildcard(event_type: str) -> str:
    return event_type if event_type in WILDCARDS else _known(event_type)


def _each_once(event_types: list[str]) -> list[str]:
    return list(dict.fromkeys(event_types))


Name = Annotated[str, Field(min_length=1, max_length=256)]
EventTypeName = Annotated[str, AfterValidator(_known)]
EventTypes = Annotated[
    list[Annotated[str, AfterValidator(_known_or_wildcard)]],
    Field(min_length=1),
    AfterValidator(_each_once),
    at_most(FIELDS_MAX),
]
EpochSeconds = Annotated[int, Field(ge=0, le=EPOCH_MAX_S)]


class WebhookEndpointCreate(OpenAiBody):
    """POST /v1/webhook_endpoints."""

    name: Name
    url: Uri
    event_types: EventTypes


class WebhookEndpointOptions(OwnBody):
    disabled: bool | None = None


class WebhookEndpointUpdate(OpenAiBody):
    """POST /v1/webhook_endpoints/{webhook_endpoint_id}. What is absent stays."""

    name: Name | None = None
    url: Uri | None = None
    event_types: EventTypes | None = None
    nightshift: WebhookEndpointOptions | None = None


class WebhookEndpointRotate(OpenAiBody):
    """POST /v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret."""

    keep_old_secret_active_for_24_hours: bool = False


class WebhookEndpointTest(OpenAiBody):
    """POST /v1/webhook_endpoints/{webhook_endpoint_id}/test."""

    event_type: EventTypeName


class WebhookEndpointReplay(OwnBody):
    """POST /v1/webhook_endpoints/{webhook_endpoint_id}/replay: events from `since` until before `until`."""

    since: EpochSeconds
    until: EpochSeconds | None = None


class WebhookEndpointState(Record):
    """The fields that OpenAI's object does not have."""

    status: Annotated[
        Literal["enabled", "disabled"], BeforeValidator(lambda is_on: "enabled" if is_on else "disabled")
    ] = Field(validation_alias="is_enabled")
    disabled_at: EpochTime | None
    disabled_reason: DisabledReason | None
    failing_since: EpochTime | None
    previous_secret_expires_at: EpochTime | None = Field(validation_alias="previous_secret_until")


class WebhookEndpointObject(Record):
    """A webhook endpoint without its secret."""

    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    created_at: EpochTime
    updated_at: EpochTime
    name: str
    url: str
    event_types: list[str]
    signing_secret_hint: str = Field(validation_alias="secret_hint")
    nightshift: WebhookEndpointState

    @model_validator(mode="before")
    @classmethod
    def _with_state(cls, endpoint: WebhookEndpoint) -> JsonObject:
        return vars(endpoint) | {"nightshift": endpoint}


class WebhookEndpointWithSecretObject(WebhookEndpointObject):
    """A webhook endpoint and its new secret, shown this once."""

    signing_secret: str


class WebhookEndpointPage(ListEnvelope):
    data: list[WebhookEndpointObject]


class DeletedWebhookEndpoint(BaseModel):
    id: str
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    deleted: Literal[True] = True


class WebhookEndpointTestResult(BaseModel):
    """`success`: the receiver answered; `status_code` says what."""

    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: str
    status_code: int
    success: Literal[True] = True


class WebhookEndpointReplayResult(BaseModel):
    """`has_more`: call again for the other dead letters of this window."""

    object: Literal["webhook_endpoint.replay"] = "webhook_endpoint.replay"
    webhook_endpoint_id: str
    replayed: int
    has_more: bool


class WebhookEventTypeList(BaseModel):
    object: Literal["list"] = "list"
    data: list[str]
