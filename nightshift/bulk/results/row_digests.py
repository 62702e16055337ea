"""Digests of everything that decides a row's answer: rows with the same digest may share their answer."""

import hashlib
import json
from typing import Final

from nightshift.fleet.models import Model
from nightshift.jobs import JsonObject

DIGEST_BYTES: Final = 16
_encode = json.JSONEncoder(separators=(",", ":")).encode  # made once, for every row
VERSION: Final = 2  # raised when the same request is answered differently by a release


class RowDigests:
    """Digests one tenant's requests to one endpoint of one model."""

    def __init__(self, tenant_id: str, route: str, model: Model) -> None:
        said = [VERSION, tenant_id, route, model.id, model.revision, model.dtype, model.context_length]
        self._head = hashlib.blake2b(json.dumps(said).encode(), digest_size=DIGEST_BYTES)

    def digest_of(self, body: JsonObject) -> bytes:
        """The order of its fields does not matter. Within one it does: a schema's decides about answers."""
        digest = self._head.copy()
        digest.update(_encode({name: body[name] for name in sorted(body)}).encode())
        return digest.digest()
