"""SSRF-safe HTTP client for user-supplied URLs.

A name is resolved once, all its addresses must be public, and the connection goes to a checked address, so
DNS rebinding has no effect. TLS and `Host` use the name. Redirects and environment proxies are ignored.
"""

import ipaddress
import queue
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpcore
import httpx

from nightshift.errors import InvalidRequest, NightshiftError
from nightshift.outbound.addresses import Address, Network, is_allowed, is_metadata_name, literal_address
from nightshift.outbound.http_deadline import BoundedBackend, Clock, Deadline

Resolver = Callable[[str, int], Sequence[str]]  # a host's addresses, as text. Raises OSError.

HOST_CHARS_MAX: Final = 253  # in a name (RFC 1035)

_PORTS: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = (301, 302, 303, 307, 308)
STANDARD_PORTS: Final = (range(80, 81), range(443, 444))
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")  # a part of a name


class BlockedUrl(InvalidRequest):
    """This URL may not be called: it must be http or https, without user or password, and lead to a public
    address on port 80 or 443. The operator allows networks in NIGHTSHIFT_WEBHOOK_ALLOW_CIDRS and ports in
    NIGHTSHIFT_WEBHOOK_PORTS."""

    default_code = "url_not_allowed"


class NoAnswer(NightshiftError):
    """The other side gave no answer that could be read in time."""

    default_code = "no_answer"


@dataclass(frozen=True)
class EgressConfig:
    """The allowed destinations, and time limits."""

    allow_cidrs: tuple[str, ...] = ()  # networks allowed although not public
    ports: tuple[range, ...] = STANDARD_PORTS  # the allowed ones
    deadline_s: float = 15.0  # the whole request, from the DNS look-up to the last byte read
    connect_timeout_s: float = 5.0  # per address, to leave time for the next
    response_bytes_max: int = 64 * 1024  # the rest is cut off

    def __post_init__(self) -> None:
        if not 0 < self.connect_timeout_s <= self.deadline_s:
            raise ValueError(f"connect_timeout_s {self.connect_timeout_s} must lie in (0, deadline_s]")

    @property
    def allowed_networks(self) -> tuple[Network, ...]:
        """Raises ValueError for an invalid network."""
        return tuple(ipaddress.ip_network(cidr, strict=False) for cidr in self.allow_cidrs)


@dataclass(frozen=True)
class EgressResponse:
    """`headers` have lower-case names; `head` is the beginning of the body."""

    status: int
    headers: Mapping[str, str]
    head: bytes

    @property
    def redirect(self) -> str | None:
        """The place, perhaps a relative one, that one is sent on to."""
        return self.headers.get("location") if self.status in _REDIRECTS else None


def check_url(url: str, allow_cidrs: Sequence[str] = (), ports: Sequence[range] = STANDARD_PORTS) -> None:
    """Reject a URL that can never be allowed, without a look-up. Raises BlockedUrl.

    A name's addresses are checked at every call.
    """
    config = EgressConfig(tuple(allow_cidrs), tuple(ports))
    parsed = _parsed(url, config.ports)
    literal = literal_address(parsed.host.decode("ascii"))
    if literal is not None:
        _check_addresses([literal], config.allowed_networks)


class Egress:
    """Calls user-supplied URLs. Thread-safe; keeps no connections."""

    def __init__(
        self,
        config: EgressConfig,
        *,
        resolve: Resolver | None = None,
        clock: Clock = time.monotonic,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: whom it trusts, by default as the system does. Raises ValueError for an invalid network."""
        self._config = config
        self._allowed = config.allowed_networks
        self._resolve = resolve or _system_resolver
        self._clock = clock
        self._tls = tls or ssl.create_default_context()

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> EgressResponse:
        """Sends one request. Raises BlockedUrl and NoAnswer."""
        return self.request("POST", url, headers, body)

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> EgressResponse:
        """Sends one request; a redirect is its answer. Raises BlockedUrl and NoAnswer."""
        target, deadline = _parsed(url, self._config.ports), deadline or self._deadline()
        backend = _GuardedBackend(self._config, self._allowed, self._resolve, deadline)
        sent = {"accept-encoding": "identity", "user-agent": "nightshift", "connection": "close"}
        sent |= {name.lower(): value for name, value in headers.items()}
        try:
            # One pool per request: no connection outlives its address check.
            with httpcore.ConnectionPool(ssl_context=self._tls, network_backend=backend) as pool:
                with pool.stream(method, target, headers=list(sent.items()), content=body) as response:
                    return EgressResponse(response.status, _readable(response.headers), self._head(response))
        except _UNANSWERED as error:
            raise NoAnswer(f"{type(error).__name__}: {error}".rstrip(": ")) from error

    def get(self, url: str, *, redirects_max: int = 0) -> EgressResponse:
        """Fetch what lies at an https URL, each redirect checked as the URL itself is.

        `deadline_s` is for all of them together. Raises BlockedUrl and NoAnswer, also for one redirect too
        many and for one that leads away from https.
        """
        deadline = self._deadline()
        for _ in range(redirects_max + 1):
            if not url.startswith("https:"):
                raise BlockedUrl("The URL, or what it redirects to, is not https.")
            answer = self.request("GET", url, {}, deadline=deadline)
            if (location := answer.redirect) is None:
                return answer
            url = joined(url, location)
        raise NoAnswer(f"it was redirected more than {redirects_max} times")

    def _deadline(self) -> Deadline:
        return Deadline(self._clock() + self._config.deadline_s, self._clock)

    def _head(self, response: httpcore.Response) -> bytes:
        head = bytearray()
        for chunk in response.iter_stream():
            head += chunk
            if len(head) >= self._config.response_bytes_max:
                break
        return bytes(head[: self._config.response_bytes_max])


_UNANSWERED: Final = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)


class _GuardedBackend(httpcore.NetworkBackend):
    """Opens one request's connections, to checked addresses only."""

    def __init__(
        self,
        config: EgressConfig,
        allowed: Sequence[Network],
        resolve: Resolver,
        deadline: Deadline,
    ) -> None:
        self._config = config
        self._allowed = allowed
        self._resolve = resolve
        self._deadline = deadline
        self._sockets = BoundedBackend(deadline)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Resolve the host, require that all addresses are allowed, and connect to the first that answers."""
        addresses = self._addresses_of(host, port)
        _check_addresses(addresses, self._allowed)
        failure: Exception | None = None
        for address in addresses:
            try:
                return self._sockets.connect_tcp(
                    str(address), port, self._config.connect_timeout_s, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure or httpcore.ConnectError(f"{host} has no address")

    def _addresses_of(self, host: str, port: int) -> list[Address]:
        addresses = _with_timeout(lambda: self._resolve(host, port), self._deadline.bounded())
        if isinstance(addresses, OSError):
            raise httpcore.ConnectError(f"{host} cannot be looked up: {addresses}") from addresses
        return [ipaddress.ip_address(text) for text in dict.fromkeys(addresses)]


def _check_addresses(addresses: Sequence[Address], allowed: Sequence[Network]) -> None:
    """Raises BlockedUrl unless all are allowed: the name's owner must not choose which one is used."""
    if not all(is_allowed(address, allowed) for address in addresses):
        # The message goes to the user who supplied the URL, so it does not name the address.
        raise BlockedUrl("The URL leads to an address that is not public.", param="webhook.url")


def _parsed(url: str, ports: Sequence[range]) -> httpcore.URL:
    """The URL's parts, with internationalised names in ASCII. Raises BlockedUrl."""
    try:
        parsed = httpx.URL(url)
        host = parsed.host
    except (httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: invalid IDNA
        raise BlockedUrl(f"{url!r} is not a URL: {error}", param="webhook.url") from error
    if parsed.scheme not in _PORTS or not host or parsed.userinfo:
        raise BlockedUrl(param="webhook.url")
    if not _can_be_looked_up(parsed.raw_host.decode("ascii")):
        raise BlockedUrl(f"{host!r} is no name or address that can be looked up.", param="webhook.url")
    if is_metadata_name(host):
        raise BlockedUrl("The URL leads to an address that is not public.", param="webhook.url")
    port = _PORTS[parsed.scheme] if parsed.port is None else parsed.port
    if not any(port in allowed for allowed in ports):
        raise BlockedUrl(
            f"Port {port} may not be called; the operator allows ports in NIGHTSHIFT_WEBHOOK_PORTS.",
            param="webhook.url",
        )
    return httpcore.URL(
        scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path
    )


def joined(url: str, location: str) -> str:
    """The URL to which one is redirected. Raises BlockedUrl."""
    try:
        return str(httpx.URL(url).join(location))
    except (httpx.InvalidURL, UnicodeError) as error:
        raise BlockedUrl(f"It redirects to what is no URL: {error}") from error


def _can_be_looked_up(host: str) -> bool:
    """Whether the host could be a DNS name, or is an IPv6 address without a zone."""
    if ":" in host:
        return "%" not in host  # a zone names a network interface of this machine
    labels = host.removesuffix(".").split(".")
    return len(host) <= HOST_CHARS_MAX and all(_LABEL.fullmatch(label) for label in labels)


def _system_resolver(host: str, port: int) -> Sequence[str]:
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _with_timeout(look_up: Callable[[], Sequence[str]], timeout_s: float) -> Sequence[str] | OSError:
    """The look-up's answer, or TimeoutError. The system's look-up has no timeout, so it runs on a thread,
    which ends with the resolver's own timeouts.
    """
    answers: queue.SimpleQueue[Sequence[str] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(look_up())
        except (OSError, UnicodeError) as error:  # UnicodeError: a label that DNS cannot hold
            answers.put(error if isinstance(error, OSError) else OSError(str(error)))

    threading.Thread(target=ask, name="look-up", daemon=True).start()
    try:
        return answers.get(timeout=timeout_s)
    except queue.Empty:
        return TimeoutError("no answer from the name servers in time")


def _readable(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
