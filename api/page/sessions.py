"""Who is signed in: an API key once, a cookie from then on.

The cookie is a random token, of which the database has the SHA-256. A session ends after some time without a
click, some time after it began, and with its key: revoked, expired, rotated and past its overlap, or of a
tenant that is disabled.
"""

import hashlib
import hmac
import logging
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

from api.access import Authenticator, Caller
from nightshift.errors import NotAuthenticated, TenantDisabled, TooManyRequests
from nightshift.process.settings import ApiSettings
from nightshift.store import Store, Transaction
from nightshift.store.tenants.page_sessions import PageSession
from nightshift.tenants.keys import ApiKey, key_id

log = logging.getLogger(__name__)

TOKEN_BYTES: Final = 32
TOKEN_CHARS_MAX: Final = 64
PER_KEY_MAX: Final = 32  # the oldest ends when there is one more
DELETED_MAX: Final = 100  # ended sessions, with each sign-in
USED_EVERY: Final = timedelta(minutes=1)  # a click within this time of the last one is not recorded


@dataclass(frozen=True)
class SignedIn:
    """`csrf_token`: what forms send beside the cookie, which another site's form does not know."""

    caller: Caller
    key: ApiKey
    token_sha256: str
    csrf_token: str


class Sessions:
    def __init__(self, store: Store, authenticator: Authenticator, settings: ApiSettings) -> None:
        self._store = store
        self._authenticator = authenticator
        self._idle = timedelta(seconds=settings.page_idle_s)
        self._longest = timedelta(seconds=settings.page_session_s)

    def begin(self, key: str) -> str:
        """Signs in with a key. Returns the token for the cookie. Raises NotAuthenticated, TenantDisabled."""
        public_id = key_id(key)
        if public_id is None:
            raise NotAuthenticated
        token = secrets.token_urlsafe(TOKEN_BYTES)

        def insert(tx: Transaction) -> None:
            now, api_key = tx.now(), tx.keys.find(public_id)
            if api_key is None or not api_key.admits(key, now):
                raise NotAuthenticated
            self._authenticator.caller_with(tx, api_key)
            tx.page_sessions.delete_ended(now - self._idle, now - self._longest, DELETED_MAX)
            for old in tx.page_sessions.of_key(public_id)[PER_KEY_MAX - 1 :]:
                tx.page_sessions.delete(old.token_sha256)
            tx.page_sessions.insert(PageSession(_digest(token), public_id, now, now))

        self._store.run(insert)
        log.info("signed in to the page", extra={"action": "page_signed_in", "key": public_id})
        return token

    def find(self, token: str | None, *, is_click: bool) -> SignedIn | None:
        """The session that is signed in with this token. `is_click`: a person asks, rather than an open
        page.
        """
        if not token or len(token) > TOKEN_CHARS_MAX:
            return None
        with self._store.snapshot() as tx:
            now = tx.now()
            session = tx.page_sessions.find(_digest(token))
            if session is None or self._has_ended(session, now):
                return None
            key = tx.keys.find(session.key_id)
            if key is None or not key.is_valid(now):
                return None
            try:
                caller = self._authenticator.caller_with(tx, key)
            except (NotAuthenticated, TenantDisabled):
                return None
        if is_click and now - session.used_at >= USED_EVERY:
            self._store.run(lambda tx: tx.page_sessions.mark_used(session.token_sha256, now), durable=False)
        return SignedIn(caller, key, session.token_sha256, csrf_token(token))

    def end(self, token: str) -> None:
        self._store.run(lambda tx: tx.page_sessions.delete(_digest(token)))

    def _has_ended(self, session: PageSession, now: datetime) -> bool:
        return now - session.used_at >= self._idle or now - session.created_at >= self._longest


def csrf_token(token: str) -> str:
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


OF_ADDRESS: Final = RateLimitItemPerMinute(10)
OF_ALL: Final = RateLimitItemPerMinute(300)
FIRST: Final = RateLimitItemPerMinute(1)
RETRY_AFTER_S: Final = 60
ONE_HOST_BITS: Final = 64  # an IPv6 host has all addresses of such a network


class Attempts:
    """Counts failed sign-ins of this process; for one event loop."""

    def __init__(self) -> None:
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    async def check(self, address: str) -> None:
        """Raises TooManyRequests."""
        host, test = _host(address), self._limiter.test
        may_try = await test(OF_ADDRESS, host) and (await test(OF_ALL) or await test(FIRST, host))
        if not may_try:
            raise TooManyRequests("Too many keys were refused. Wait a minute.", retry_after_s=RETRY_AFTER_S)

    async def failed(self, address: str) -> None:
        host = _host(address)
        for limit in (OF_ADDRESS, FIRST):
            await self._limiter.hit(limit, host)
        await self._limiter.hit(OF_ALL)


def _host(address: str) -> str:
    try:
        parsed = ip_address(address)
    except ValueError:  # a unix socket has none
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed.packed, ONE_HOST_BITS), strict=False))
