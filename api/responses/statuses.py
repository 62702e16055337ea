"""Which statuses each route answers with. Pure.

500 is declared only where an answer of the model's may be one; elsewhere it would be an error of ours.
"""

from collections.abc import Set
from typing import Final

from nightshift import endpoints

NEEDS_KEY: Final = frozenset({400, 401, 403, 429, 503})  # 429: a quota; 503: the database is away
NEEDS_JSON: Final = frozenset({408, 413})
NEEDS_OBJECT: Final = frozenset({404})
ASKS_MODEL: Final = frozenset({404, 409, 500, 504})
SUBMITS: Final = frozenset({404, 422})  # an unknown model; an idempotency key used for another request
CHANGES: Final = frozenset({409})

_WITHOUT_KEY: Final = {
    "/healthz": frozenset({200}),
    "/readyz": frozenset({200, 503}),
    "/metrics": frozenset({200}),
}
_INFERENCE: Final = frozenset(endpoint.route for endpoint in endpoints.every())
_SUBMITS: Final = frozenset({"/v1/jobs", "/v1/batches"})
_NEVER_CONFLICT: Final = frozenset({"/v1/files", "/v1/files/{file_id}", "/v1/uploads"})
_FURTHER: Final = {
    ("get", "/v1/files/{file_id}/content"): frozenset({206, 416}),
    ("post", "/v1/files"): frozenset({408, 413}),
    ("post", "/v1/uploads/{upload_id}/parts"): frozenset({408, 413}),
    ("post", "/v1/jobs/{job_id}/retry"): frozenset({422}),
    # 200: `Prefer: wait`, and it has ended; 409: another job writes to the output
    ("post", "/v1/jobs"): frozenset({200, 409}),
}


def statuses(method: str, path: str, *, succeeds: Set[int], has_json: bool, has_after: bool) -> Set[int]:
    """All of a route's. `succeeds`: what it says of itself; `has_after`: it is paged by an object's id."""
    if path in _WITHOUT_KEY:
        return _WITHOUT_KEY[path]
    found = succeeds | NEEDS_KEY | _FURTHER.get((method, path), frozenset())
    if has_json:
        found |= NEEDS_JSON
    if "{" in path or has_after:
        found |= NEEDS_OBJECT
    if method == "post" and path in _INFERENCE:
        found |= ASKS_MODEL
    if method == "post" and path in _SUBMITS:
        found |= SUBMITS
    if method != "get" and path not in _INFERENCE | _SUBMITS | _NEVER_CONFLICT:
        found |= CHANGES
    return found
