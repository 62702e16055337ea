"""GET /v1/webhooks/secret: the secret that signs a tenant's webhooks."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from api.bodies.objects import WebhookSecretObject
from api.dependencies import CallerDep, ServicesDep
from nightshift.lifecycle.webhooks.tenant_secrets import kept_webhook_secret
from nightshift.tenants.audit import Actor

router = APIRouter(prefix="/v1/webhooks", tags=["Webhooks"])


@router.get(
    "/secret",
    summary="The secret that signs your webhooks; made at the first call",
    response_model=WebhookSecretObject,
)
def get_secret(services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.transaction() as tx:
        encrypted = kept_webhook_secret(tx, services.vault, caller.tenant_id, Actor.of_key(caller.key_id))
    return JSONResponse(
        {"object": "webhook_secret", "secret": services.vault.decrypt(encrypted)},
        headers={"cache-control": "no-store"},
    )
