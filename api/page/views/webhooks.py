"""Receivers of events that the tenant has registered."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from api.page.view import Action, Context, Outcome, PageRequest, View
from api.webhooks import endpoints as webhook_endpoints
from nightshift.outbound.webhook_endpoints import ENDPOINTS_MAX, DisabledReason
from nightshift.store import Transaction

REASONS: Final[Mapping[DisabledReason, str]] = {
    DisabledReason.REQUESTED: "by you",
    DisabledReason.GONE: "it answered 410: it wants no more events",
    DisabledReason.FAILING: "no attempt succeeded for five days",
}


def load(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    return {
        "endpoints": tx.webhook_endpoints.list(request.caller.tenant_id, limit=ENDPOINTS_MAX),
        "reasons": REASONS,
    }


def enable(request: PageRequest) -> Outcome:
    _update(request, is_disabled=False)
    return Outcome(message="The receiver gets events again.")


def disable(request: PageRequest) -> Outcome:
    _update(request, is_disabled=True)
    return Outcome(message="The receiver is disabled. What was owed to it can be replayed later.")


def _update(request: PageRequest, *, is_disabled: bool) -> None:
    change = {"nightshift": {"disabled": is_disabled}}
    webhook_endpoints.update(request.path["endpoint_id"], request.services, request.caller, change)


VIEW: Final = View(
    path="/ui/webhooks",
    title="Webhooks",
    template="webhooks/webhooks.html",
    load=load,
    actions=(
        Action(path="/{endpoint_id}/enable", act=enable),
        Action(path="/{endpoint_id}/disable", act=disable),
    ),
)
