"""The digest by which a repeated create is recognised."""

import hashlib
import json

from nightshift.jobs import JsonObject


def fingerprint(route: str, body: JsonObject) -> str:
    """SHA-256 of the route and the body; the order of keys makes no difference."""
    canonical = json.dumps([route, body], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
