"""GET /v1/webhooks/secret: what signs the events of a tenant's jobs."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from api.dependencies import CallerDep, ServicesDep
from nightshift.outbound.webhooks import new_secret

router = APIRouter(prefix="/v1/webhooks", tags=["Webhooks"])


@router.get("/secret", summary="The secret that signs your webhooks; made at the first call")
def get_secret(services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.transaction() as tx:
        encrypted = tx.keys.webhook_secret(caller.tenant_id)
        if encrypted is None:
            tx.keys.keep_webhook_secret(caller.tenant_id, services.vault.encrypt(new_secret()), tx.now())
            encrypted = tx.keys.webhook_secret(caller.tenant_id)
    assert encrypted is not None, "it was kept, by us or by whoever came first"
    return JSONResponse(
        {"object": "webhook_secret", "secret": services.vault.decrypt(encrypted)},
        headers={"cache-control": "no-store"},
    )
