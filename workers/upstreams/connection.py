"""HTTP to one upstream: whole answers and streams, within limits of time and size. On the loop's thread.

Redirects are not followed: a key would go with them. Answers are asked for uncompressed, so that a small one
cannot become a large one.
"""

import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver

from nightshift.endpoints.answers import ANSWER_TOO_LARGE
from nightshift.errors import ConfigurationError
from nightshift.jobs import JsonObject
from nightshift.process.upstreams import SETTING, Upstream
from workers.upstreams.faults import (
    BrokenOff,
    RowRefused,
    TimedOut,
    Unavailable,
    check_success,
    failure,
    parsed,
)

CONNECT_S: Final = 10.0
READ_BYTES: Final = 256 * 1024
FAILURE_BYTES_MAX: Final = 64 * 1024  # of an answer that is no success
FAULTS: Final = (
    (aiohttp.ClientConnectorCertificateError, Unavailable, "has a certificate that does not hold"),
    (aiohttp.ClientSSLError, Unavailable, "cannot be reached by TLS"),
    ((aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError), Unavailable, "cannot be reached"),
    (aiohttp.ClientResponseError, Unavailable, "does not answer in HTTP/1.1"),
    (TimeoutError, TimedOut, "has not answered in time"),
    (Exception, BrokenOff, "broke the connection off"),
)
"""The meaning of an exception: the first that it is one of."""
DATA: Final = b"data:"
DONE: Final = b"[DONE]"


@dataclass(frozen=True)
class Answer:
    """A success."""

    data: bytes


class Connection:
    """One upstream's connections, kept alive between requests."""

    def __init__(
        self,
        upstream: Upstream,
        key: str | None,
        answer_bytes_max: int,
        resolver: AbstractResolver | None = None,
    ) -> None:
        """`resolver`: None for the system's.

        Raises ConfigurationError for certificates that cannot be read.
        """
        self._resolver = resolver
        self._root = upstream.url.rsplit("/", 1)[0]  # routes of ours have its last part, mostly `/v1`
        self._base = upstream.url
        self._bytes_max = answer_bytes_max
        self._timeout_s = upstream.timeout_s
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._tls = _tls(upstream)
        self.on_headers: Callable[[Mapping[str, str]], None] = lambda headers: None  # of every answer
        self._session: aiohttp.ClientSession | None = None

    async def post(self, route: str, body: JsonObject) -> Answer:
        """Raises an UpstreamFault, RowFailed or RowRefused."""
        async with self._answered("POST", self._url(route), body) as response:
            return Answer(await self._read(response, self._bytes_max))

    async def get(self, path: str, *, at_root: bool = False, timeout_s: float | None = None) -> JsonObject:
        """A JSON object. `at_root`: the path is beside `/v1`. Raises as `post`."""
        url = (self._root if at_root else self._base) + path
        async with self._answered("GET", url, None, timeout_s) as response:
            body = parsed(await self._read(response, self._bytes_max))
        if body is None:
            raise Unavailable("answers what is no JSON")
        return body if isinstance(body, dict) else {"data": body}

    async def stream(self, route: str, body: JsonObject) -> AsyncGenerator[JsonObject, None]:
        """The chunks of a stream of server-sent events, to `[DONE]` or its end. Raises as `post`."""
        async with self._answered("POST", self._url(route), body) as response:
            pieces: list[bytes] = []  # of a line that has not ended: joined once, however long it is
            total = 0
            async for piece in response.content.iter_any():
                total += len(piece)
                if total > self._bytes_max:
                    raise _too_large(self._bytes_max)
                pieces.append(piece)
                if b"\n" not in piece:
                    continue
                *lines, rest = b"".join(pieces).split(b"\n")
                pieces = [rest]
                for line in lines:
                    if not line.startswith(DATA):
                        continue
                    data = line[len(DATA) :].strip()
                    if data == DONE:
                        return
                    yield _chunk(data)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _url(self, route: str) -> str:
        """`/v1/chat/completions` is `/chat/completions` below the upstream's base, `/classify` beside it."""
        below = route.removeprefix("/v1")
        return (self._root if below == route else self._base) + below

    @asynccontextmanager
    async def _answered(
        self, method: str, url: str, body: JsonObject | None, timeout_s: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        timeout = aiohttp.ClientTimeout(total=timeout_s or self._timeout_s, sock_connect=CONNECT_S)
        try:
            response = await self._send(method, url, data, timeout)
            async with response:
                self.on_headers(response.headers)
                if response.status != 200:
                    said = await self._read(response, FAILURE_BYTES_MAX, cut=True)
                    raise failure(response.status, response.headers, parsed(said))
                yield response
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise next(fault(said) for kinds, fault, said in FAULTS if isinstance(error, kinds)) from error

    async def _send(
        self, method: str, url: str, data: bytes | None, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Sends once more where a kept connection had been closed before the request reached it."""
        session = self._opened()
        try:
            return await session.request(method, url, data=data, timeout=timeout, allow_redirects=False)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await session.request(method, url, data=data, timeout=timeout, allow_redirects=False)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._tls, resolver=self._resolver)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=READ_BYTES,
            )
        return self._session

    async def _read(self, response: aiohttp.ClientResponse, bytes_max: int, *, cut: bool = False) -> bytes:
        """The body; where it is longer, its beginning with `cut`. Raises RowRefused without."""
        data = bytearray()  # appended to in place
        while len(data) <= bytes_max and (more := await response.content.read(bytes_max + 1 - len(data))):
            data += more
        if len(data) > bytes_max and not cut:
            raise _too_large(bytes_max)
        return bytes(data)


def _too_large(bytes_max: int) -> RowRefused:
    return RowRefused(400, f"The upstream's answer has more than {bytes_max} bytes.", code=ANSWER_TOO_LARGE)


def _chunk(data: bytes) -> JsonObject:
    chunk = parsed(data)
    if not isinstance(chunk, dict):
        raise BrokenOff("streams what is no JSON object")
    check_success(chunk)
    return chunk


def _tls(upstream: Upstream) -> ssl.SSLContext | bool:
    if upstream.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=upstream.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"The upstream {upstream.name!r}: ca_file {upstream.ca_file} cannot be read: {error}.",
            param=SETTING,
        ) from error
