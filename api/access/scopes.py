"""Which scope a key needs, for every route that needs a key."""

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request

from api.access.authentication import Caller
from nightshift import endpoints
from nightshift.errors import MissingScope
from nightshift.tenants.keys import Scope

# By method and path, as in the OpenAPI document. The secret signs what receivers trust: not for readers.
NEEDED: Final[Mapping[tuple[str, str], Scope]] = {
    **{("POST", endpoint.route): Scope.SUBMIT for endpoint in endpoints.every()},
    ("POST", "/v1/files"): Scope.SUBMIT,
    ("GET", "/v1/files"): Scope.READ,
    ("GET", "/v1/files/{file_id}"): Scope.READ,
    ("DELETE", "/v1/files/{file_id}"): Scope.SUBMIT,
    ("GET", "/v1/files/{file_id}/content"): Scope.READ,
    ("POST", "/v1/uploads"): Scope.SUBMIT,
    ("POST", "/v1/uploads/{upload_id}/parts"): Scope.SUBMIT,
    ("POST", "/v1/uploads/{upload_id}/complete"): Scope.SUBMIT,
    ("POST", "/v1/uploads/{upload_id}/cancel"): Scope.SUBMIT,
    ("POST", "/v1/batches"): Scope.SUBMIT,
    ("GET", "/v1/batches"): Scope.READ,
    ("GET", "/v1/batches/{batch_id}"): Scope.READ,
    ("POST", "/v1/batches/{batch_id}/cancel"): Scope.SUBMIT,
    ("DELETE", "/v1/batches/{batch_id}"): Scope.SUBMIT,
    ("GET", "/v1/batches/{batch_id}/events"): Scope.READ,
    ("GET", "/v1/models"): Scope.READ,
    ("GET", "/v1/models/{model_id}"): Scope.READ,
    ("POST", "/v1/jobs"): Scope.SUBMIT,
    ("GET", "/v1/jobs"): Scope.READ,
    ("GET", "/v1/jobs/{job_id}"): Scope.READ,
    ("PATCH", "/v1/jobs/{job_id}"): Scope.SUBMIT,
    ("POST", "/v1/jobs/{job_id}/pause"): Scope.SUBMIT,
    ("POST", "/v1/jobs/{job_id}/resume"): Scope.SUBMIT,
    ("POST", "/v1/jobs/{job_id}/retry"): Scope.SUBMIT,
    ("POST", "/v1/jobs/{job_id}/cancel"): Scope.SUBMIT,
    ("DELETE", "/v1/jobs/{job_id}"): Scope.SUBMIT,
    ("GET", "/v1/jobs/{job_id}/results"): Scope.READ,
    ("GET", "/v1/jobs/{job_id}/events"): Scope.READ,
    ("GET", "/v1/dead_letters"): Scope.READ,
    ("GET", "/v1/dead_letters/{letter_id}"): Scope.READ,
    ("POST", "/v1/dead_letters/{letter_id}/replay"): Scope.SUBMIT,
    ("POST", "/v1/dead_letters/{letter_id}/discard"): Scope.SUBMIT,
    ("GET", "/v1/deliveries"): Scope.READ,
    ("GET", "/v1/deliveries/{delivery_id}"): Scope.READ,
    ("POST", "/v1/deliveries/{delivery_id}/replay"): Scope.SUBMIT,
    ("GET", "/v1/webhooks/secret"): Scope.SUBMIT,
    ("GET", "/v1/webhook_event_types"): Scope.READ,
    ("POST", "/v1/webhook_endpoints"): Scope.SUBMIT,
    ("GET", "/v1/webhook_endpoints"): Scope.READ,
    ("GET", "/v1/webhook_endpoints/{webhook_endpoint_id}"): Scope.READ,
    ("POST", "/v1/webhook_endpoints/{webhook_endpoint_id}"): Scope.SUBMIT,
    ("DELETE", "/v1/webhook_endpoints/{webhook_endpoint_id}"): Scope.SUBMIT,
    ("POST", "/v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret"): Scope.SUBMIT,
    ("POST", "/v1/webhook_endpoints/{webhook_endpoint_id}/rotate"): Scope.SUBMIT,
    ("POST", "/v1/webhook_endpoints/{webhook_endpoint_id}/test"): Scope.SUBMIT,
    ("POST", "/v1/webhook_endpoints/{webhook_endpoint_id}/replay"): Scope.SUBMIT,
    ("GET", "/v1/workers"): Scope.READ,
    ("GET", "/v1/overview"): Scope.READ,
    ("GET", "/v1/usage"): Scope.READ,
    ("GET", "/v1/limits"): Scope.READ,
    ("GET", "/v1/tenants/{tenant}/usage"): Scope.ADMIN,
    ("GET", "/v1/audit"): Scope.ADMIN,
    ("POST", "/v1/tenants"): Scope.ADMIN,
    ("GET", "/v1/tenants"): Scope.ADMIN,
    ("GET", "/v1/tenants/{tenant}"): Scope.ADMIN,
    ("PATCH", "/v1/tenants/{tenant}"): Scope.ADMIN,
    ("DELETE", "/v1/tenants/{tenant}"): Scope.ADMIN,
    ("POST", "/v1/tenants/{tenant}/keys"): Scope.ADMIN,
    ("GET", "/v1/tenants/{tenant}/keys"): Scope.ADMIN,
    ("GET", "/v1/tenants/{tenant}/keys/{key_id}"): Scope.ADMIN,
    ("POST", "/v1/tenants/{tenant}/keys/{key_id}/rotate"): Scope.ADMIN,
    ("POST", "/v1/tenants/{tenant}/keys/{key_id}/revoke"): Scope.ADMIN,
}


def needed_scope(request: Request) -> Scope:
    """A route that is missing above is an error of ours, and refused."""
    return NEEDED["GET" if request.method == "HEAD" else request.method, request.scope["route"].path_format]


def check_scope(request: Request, caller: Caller) -> None:
    """Raises MissingScope."""
    needed = needed_scope(request)
    if needed not in caller.scopes:
        raise MissingScope(
            f"This API key does not have the scope '{needed}' that {request.method} {request.url.path} "
            f"needs. It has: {', '.join(sorted(caller.scopes)) or 'none'}."
        )
