"""Authenticates API keys."""

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from starlette.concurrency import run_in_threadpool

from nightshift.errors import NotAuthenticated
from nightshift.store import Store
from nightshift.tenants.keys import digest, key_id

KEY_CACHE_S: Final = 5.0  # the longest a revoked key still works
KEY_CACHE_MAX: Final = 10_000

_SCHEME: Final = "bearer "


@dataclass(frozen=True)
class Caller:
    key_id: str
    tenant_id: str


class Authenticator:
    """Checks keys against the database, and caches valid ones for `KEY_CACHE_S`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[str, tuple[float, Caller]] = OrderedDict()  # by the key's digest

    async def caller(self, authorization: str | None) -> Caller:
        """The caller named by an Authorization header. Raises NotAuthenticated."""
        key = _bearer(authorization)
        key_sha256 = digest(key)
        good_until_s, caller = self._known.get(key_sha256, (0.0, None))
        if caller is None or time.monotonic() >= good_until_s:
            caller = await run_in_threadpool(self._look_up, key)
            self._remember(key_sha256, caller)
        return caller

    def _look_up(self, key: str) -> Caller:
        public_id = key_id(key)
        if public_id is None:
            raise NotAuthenticated
        with self._store.snapshot() as tx:
            found = tx.keys.find(public_id)
            if found is None or not found.admits(key, tx.now()):
                raise NotAuthenticated
        return Caller(found.id, found.tenant_id)

    def _remember(self, key_sha256: str, caller: Caller) -> None:
        self._known[key_sha256] = (time.monotonic() + KEY_CACHE_S, caller)
        self._known.move_to_end(key_sha256)
        while len(self._known) > KEY_CACHE_MAX:
            self._known.popitem(last=False)


def _bearer(authorization: str | None) -> str:
    if authorization is None:
        raise NotAuthenticated("No API key was given: send it as 'Authorization: Bearer ns_live_…'.")
    if not authorization[: len(_SCHEME)].lower() == _SCHEME:
        raise NotAuthenticated("The Authorization header must be 'Bearer' and an API key.")
    return authorization[len(_SCHEME) :].strip()
