"""Telling one request from another: the digest by which a repeated create is recognised. Pure."""

import hashlib
import json

from nightshift.jobs import JsonObject


def fingerprint(route: str, body: JsonObject) -> str:
    """SHA-256 of what was asked. The order of keys makes no difference, everything else does."""
    canonical = json.dumps([route, body], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
