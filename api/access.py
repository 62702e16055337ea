"""Decides who calls, and what a key may do: its tenant, its scopes, its rates and what it has in progress.

`api/dependencies.py` applies all of it to every request with a key, so that a new route needs nothing for it.
"""

import time
from collections import Counter, OrderedDict
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from nightshift.broker.rate_limits import RateLimits
from nightshift.errors import MissingScope, NotAuthenticated, TenantDisabled, TooManyRequests
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import Store, Transaction
from nightshift.tenants.keys import ApiKey, Scope, digest, key_id
from nightshift.tenants.quotas import Quotas
from nightshift.tenants.rates import Rate, Taken, duration_text, tokens_asked
from nightshift.tenants.tenant import TenantState

KEY_CACHE_S: Final = 0.9  # a revoked key works for a second at most
KEY_CACHE_MAX: Final = 10_000

_SCHEME: Final = "bearer "


@dataclass(frozen=True)
class Caller:
    key_id: str
    tenant_id: str
    scopes: frozenset[Scope]
    priority_ceiling: PriorityClass
    quotas: Quotas


class Authenticator:
    """Checks keys against the database, and caches valid ones for `KEY_CACHE_S`."""

    def __init__(self, store: Store, default_quotas: Quotas) -> None:
        self._store = store
        self._default_quotas = default_quotas
        self._known: OrderedDict[str, tuple[float, Caller]] = OrderedDict()  # by the key's digest

    async def caller(self, authorization: str | None) -> Caller:
        """The caller named by an Authorization header. Raises NotAuthenticated, TenantDisabled."""
        key = _bearer(authorization)
        key_sha256 = digest(key)
        good_until_s, caller = self._known.get(key_sha256, (0.0, None))
        if caller is None or time.monotonic() >= good_until_s:
            asked_s = time.monotonic()  # what is revoked while it is looked up counts from here
            caller = await run_in_threadpool(self._look_up, key)
            self._remember(key_sha256, caller, asked_s + KEY_CACHE_S)
        return caller

    def tenant_of(self, authorization: str | None) -> str | None:
        """The tenant of a key that was valid a while ago, without a look-up."""
        with suppress(NotAuthenticated):
            known = self._known.get(digest(_bearer(authorization)))
            return None if known is None else known[1].tenant_id
        return None

    def _look_up(self, key: str) -> Caller:
        public_id = key_id(key)
        if public_id is None:
            raise NotAuthenticated
        with self._store.snapshot() as tx:
            stored = tx.keys.find(public_id)
            if stored is None or not stored.admits(key, tx.now()):
                raise NotAuthenticated
            return self.caller_with(tx, stored)

    def caller_with(self, tx: Transaction, key: ApiKey) -> Caller:
        """The caller with this valid key. Raises NotAuthenticated, TenantDisabled."""
        tenant = tx.tenants.find(key.tenant_id)
        ceiling, quotas = PriorityClass.INTERACTIVE, self._default_quotas
        if tenant is not None:  # else nothing is set for the tenant
            if tenant.state is TenantState.DELETED:
                raise NotAuthenticated
            if tenant.state is TenantState.DISABLED:
                raise TenantDisabled
            ceiling, quotas = tenant.priority_ceiling, tenant.quotas.over(quotas)
        return Caller(key.id, key.tenant_id, key.scopes, ceiling, quotas)

    def _remember(self, key_sha256: str, caller: Caller, good_until_s: float) -> None:
        self._known[key_sha256] = (good_until_s, caller)
        self._known.move_to_end(key_sha256)
        while len(self._known) > KEY_CACHE_MAX:
            self._known.popitem(last=False)


def _bearer(authorization: str | None) -> str:
    if authorization is None:
        raise NotAuthenticated("No API key was given: send it as 'Authorization: Bearer ns_live_…'.")
    if not authorization[: len(_SCHEME)].lower() == _SCHEME:
        raise NotAuthenticated("The Authorization header must be 'Bearer' and an API key.")
    return authorization[len(_SCHEME) :].strip()


ADMIN_PATHS: Final = ("/v1/tenants", "/v1/audit")
SECRET_PATH: Final = "/v1/webhooks/secret"  # it signs what receivers trust: not for readers


def scope_of(method: str, path: str) -> Scope:
    """The scope that a route needs: to read, to change something of the tenant's, or to administer."""
    if path.startswith(ADMIN_PATHS):
        return Scope.ADMIN
    return Scope.READ if method in ("GET", "HEAD") and path != SECRET_PATH else Scope.SUBMIT


def check_scope(request: Request, caller: Caller) -> None:
    """Raises MissingScope."""
    needed = scope_of(request.method, request.scope["route"].path_format)
    if needed not in caller.scopes:
        raise MissingScope(
            f"This API key does not have the scope '{needed}' that {request.method} {request.url.path} "
            f"needs. It has: {', '.join(sorted(caller.scopes)) or 'none'}."
        )


# -- quotas --


async def take_rates(
    rate_limits: RateLimits, caller: Caller, body: JsonObject, size_bytes: int, headers: dict[str, str]
) -> None:
    """Counts a request, and describes the tenant's rates in the headers of its answer.

    A request that is refused is not counted. Raises TooManyRequests.
    """
    rates = _rates(caller.quotas, body, size_bytes)
    if not rates:
        return
    outcomes = await rate_limits.take(caller.tenant_id, rates)
    for outcome in outcomes:
        name, limit = outcome.rate.name, outcome.rate.limit
        headers[f"x-ratelimit-limit-{name}"] = str(limit)
        headers[f"x-ratelimit-remaining-{name}"] = str(outcome.remaining)
        headers[f"x-ratelimit-reset-{name}"] = duration_text(outcome.window.empty_in_s(limit))
    if refused := [outcome for outcome in outcomes if not outcome.is_taken]:
        raise _refusal(max(refused, key=lambda outcome: outcome.retry_in_s))


def _rates(quotas: Quotas, body: JsonObject, size_bytes: int) -> list[Rate]:
    """The rates that are limited, with what this request takes of each."""
    rates = []
    if quotas.requests_per_minute is not None:
        rates.append(Rate("requests", quotas.requests_per_minute, 1))
    if quotas.tokens_per_minute is not None:
        online_body = body.get("body")  # of a request in POST /v1/jobs
        tokens = tokens_asked(online_body if isinstance(online_body, dict) else body, size_bytes)
        if tokens is not None:
            rates.append(Rate("tokens", quotas.tokens_per_minute, tokens))
    return rates


def _refusal(refused: Taken) -> TooManyRequests:
    rate, used = refused.rate, refused.window.used
    quota = f"{rate.name} per minute: the limit is {rate.limit}"
    if not rate.can_fit:
        return TooManyRequests(
            f"Request too large for {quota}, and this one may cost {rate.cost}. Send less text, allow a "
            "shorter answer, or send a batch, whose rows do not count.",
            retry_helps=False,
        )
    return TooManyRequests(
        f"Rate limit reached for {quota}, used are {used}, and this request needs {rate.cost}. "
        f"Try again in {duration_text(refused.retry_in_s)}, or ask an administrator for more.",
        retry_after_s=refused.retry_in_s,
    )


REQUESTS: Final = "concurrent_requests"
STREAMS: Final = "open_streams"
UPLOADS: Final = "uploads_in_flight"
FOLLOWED: Final = "followed_jobs"

FOLLOWED_MAX: Final = 100  # event streams of a tenant: each reads the database twice a second

RETRY_AFTER_S: Final = 1

_IN_WORDS: Final = {
    REQUESTS: "Requests being answered",
    STREAMS: "Streams open",
    UPLOADS: "Uploads under way",
    FOLLOWED: "Streams of events open",
}


class Slots:
    """Counts what is in progress in this process, by tenant and quota, for one event loop."""

    def __init__(self) -> None:
        self._held: Counter[tuple[str, str]] = Counter()

    def hold(self, caller: Caller, names: tuple[str, ...], until: ExitStack) -> None:
        """Counts one of each quota until the stack is closed. Raises TooManyRequests at a limit."""
        for name in names:
            limit: int | None = FOLLOWED_MAX if name == FOLLOWED else getattr(caller.quotas, name)
            if limit is not None and self.held(caller.tenant_id, name) >= limit:
                advice = "" if name == FOLLOWED else ", or ask an administrator for more"
                raise TooManyRequests(
                    f"{_IN_WORDS[name]} for you already: {limit}, which is your limit. "
                    f"Wait for one to end{advice}.",
                    retry_after_s=RETRY_AFTER_S,
                )
        keys = [(caller.tenant_id, name) for name in names]
        self._held.update(keys)
        until.callback(self._release, keys)

    def held(self, tenant_id: str, name: str) -> int:
        return self._held[tenant_id, name]

    def _release(self, keys: list[tuple[str, str]]) -> None:
        self._held.subtract(keys)
        self._held += Counter()  # drops the zeros


def slots_of_request(request: Request) -> tuple[str, ...]:
    """The quotas of which this request takes one before its body is read."""
    content_type = request.headers.get("content-type", "").lower()
    if request.method == "POST" and content_type.startswith("multipart/form-data"):
        return REQUESTS, UPLOADS
    if request.method == "GET" and request.scope["route"].path_format.endswith("/events"):
        return REQUESTS, STREAMS, FOLLOWED
    return (REQUESTS,)
