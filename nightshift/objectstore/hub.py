"""Datasets of a Hugging Face hub, `hf://datasets/org/name@revision/path`, to be read only.

The hub is the operator's choice: `HF_ENDPOINT`, or huggingface.co. It sends readers on to places where files
lie; these must be its own or public https addresses. It is asked by the three requests of its HTTP API that
reading takes: its own client follows any redirect, and takes the operator's token unless told otherwise.
"""

import json
import os
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from nightshift.errors import (
    ConfigurationError,
    CredentialsRefused,
    InvalidRequest,
    ObjectNotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from nightshift.objectstore.objects import (
    MIB,
    READ_BYTES_MAX,
    STREAM_CHUNK_BYTES,
    ObjectChanged,
    ObjectInfo,
    checked_path,
    checked_path_prefix,
    pieces_of,
    read_whole,
)
from nightshift.objectstore.time_limits import check_time
from nightshift.objectstore.uris import ObjectUri
from nightshift.outbound.safe_http import (
    BlockedUrl,
    Egress,
    EgressConfig,
    EgressResponse,
    NoAnswer,
    check_url,
    joined,
)

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
BLOCK_BYTES: Final = 4 * MIB  # read by one request; a stream holds one block, and no connection
ANSWER_BYTES_MAX: Final = 8 * MIB  # such as a page of a listing
PAGES_MAX: Final = 10  # of a listing, of 1,000 names each: it comes in no order, so each turn reads it whole
REQUEST_S: Final = 30.0  # one request, to its last byte
TRIES_MAX: Final = 3  # of a request that breaks off
REDIRECTS_MAX: Final = 5

_ANY_NETWORK: Final = ("0.0.0.0/0", "::/0")
_ANY_PORT: Final = (range(1, 65536),)
_UNDATED: Final = datetime.fromtimestamp(0, UTC)  # a listing with dates costs the hub a look at every file
_NO_RIGHT: Final = "NIGHTSHIFT_HF_TOKEN_TENANTS does not give this tenant the service's token"

Headers = Mapping[str, str]  # names in lower case
Parsed = TypeVar("Parsed")


class Hub:
    """The operator's hub. Thread-safe; keeps no connections."""

    def __init__(self, endpoint: str, token: str = "", token_tenants: Collection[str] = ()) -> None:
        """`token`: sent for the tenants `token_tenants` alone, and to the hub itself alone.

        Raises `ConfigurationError` for an endpoint that is no http(s) URL, and for a text that is no token.
        """
        if not (token.isascii() and token.isprintable()):  # a library's error would quote it
            raise ConfigurationError("HF_TOKEN has characters that no token has", param="HF_TOKEN")
        try:
            check_url(endpoint, _ANY_NETWORK, _ANY_PORT)
        except InvalidRequest as error:
            raise ConfigurationError("HF_ENDPOINT must be https://HOST", param="HF_ENDPOINT") from error
        self._endpoint = str(httpx.URL(endpoint)).rstrip("/")
        self._token = token
        self._token_tenants = token_tenants

    @classmethod
    def of_environment(cls, token_tenants: Collection[str]) -> "Hub":
        """The hub of `HF_ENDPOINT` and `HF_TOKEN`. Raises `ConfigurationError`."""
        endpoint = os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
        return cls(endpoint, os.environ.get("HF_TOKEN", "").strip(), token_tenants)

    def dataset(self, uri: ObjectUri, tenant_id: str) -> "Dataset":
        has_token = self._token and tenant_id in self._token_tenants
        return Dataset(self, uri, {"authorization": f"Bearer {self._token}"} if has_token else {})

    @cached_property
    def _egresses(self) -> tuple[Egress, Egress]:
        """One to the hub itself, wherever the operator has it, and one to the public."""
        limits: dict[str, Any] = {"deadline_s": REQUEST_S, "response_bytes_max": ANSWER_BYTES_MAX}
        tls = ssl.create_default_context()  # which takes a while
        own = EgressConfig(_ANY_NETWORK, _ANY_PORT, **limits)
        return Egress(own, tls=tls), Egress(EgressConfig(**limits), tls=tls)

    def ask(
        self, method: str, path: str, own_headers: Headers, headers: Headers, tries: int = TRIES_MAX
    ) -> EgressResponse:
        """The answer of where the hub sends us on to, with what it says itself. A HEAD stops at the size.

        `own_headers`: for the hub alone. Raises `StorageUnavailable`, `StorageDenied`.
        """
        check_time()
        try:
            return self._followed(method, f"{self._endpoint}{path}", own_headers, headers)
        except BlockedUrl as error:
            raise StorageDenied("the hub sends readers on to an address that is not public") from error
        except NoAnswer as error:
            if tries > 1:
                return self.ask(method, path, own_headers, headers, tries - 1)
            raise StorageUnavailable(f"the hub does not answer: {error.message}") from error

    def _followed(self, method: str, url: str, own_headers: Headers, headers: Headers) -> EgressResponse:
        own, public = self._egresses
        said: Headers = {}
        for _ in range(REDIRECTS_MAX + 1):
            is_own = url.startswith(f"{self._endpoint}/")
            if not is_own and not url.startswith("https://"):
                raise BlockedUrl
            answer = (own if is_own else public).request(
                method, url, {**headers, **own_headers} if is_own else headers
            )
            said = {**said, **answer.headers}
            if answer.redirect is None or (method == "HEAD" and "x-linked-size" in said):
                return replace(answer, headers=said)
            url = joined(url, answer.redirect)
        raise NoAnswer(f"it redirects more than {REDIRECTS_MAX} times")


class Dataset:
    """An `ObjectReader` of the files of a dataset at a revision."""

    def __init__(self, hub: Hub, uri: ObjectUri, own_headers: Headers) -> None:
        self._hub = hub
        self._uri = uri
        self._repository, _, revision = uri.bucket.partition("@")
        self._revision = revision or "main"
        self._own_headers = own_headers

    def pinned(self) -> ObjectUri:
        """The location at the commit that the revision names now. Raises `ObjectNotFound`."""
        path = f"/api/{self._repository}/revision/{self._revision}?expand=sha"
        if (answer := self._asked("GET", path)) is None:
            raise ObjectNotFound(f"{self._named('')}: the hub has no such revision")
        return _parsed(answer, lambda said: self._uri.at_commit(said["sha"]))

    def head(self, key: str) -> ObjectInfo | None:
        if (answer := self._asked("HEAD", self._file(key))) is None:
            return None
        size_bytes = answer.headers.get("x-linked-size") or answer.headers.get("content-length", "")
        if (etag := _etag_in(answer.headers)) is None or not size_bytes.isdecimal():
            raise StorageError(f"{self._named(key)}: the hub says no size or no ETag")
        return ObjectInfo(key=key, size_bytes=int(size_bytes), etag=etag, modified_at=_UNDATED)

    def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
        return read_whole(self, key, self._named(key), size_bytes_max)

    def stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        chunk_bytes: int = STREAM_CHUNK_BYTES,
        *,
        if_match: str | None = None,
    ) -> Iterator[bytes]:
        while end is None or start < end:
            block_end = start + BLOCK_BYTES if end is None else min(end, start + BLOCK_BYTES)
            block, total_bytes, if_match = self._block(key, start, block_end, if_match)
            yield from pieces_of(block, chunk_bytes)
            start += len(block)
            if start >= total_bytes:
                return

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        folder = checked_path_prefix(prefix).rpartition("/")[0]
        by_key = {key: info for page in self._pages(folder) for key, info in page.items()}
        begin, after = prefix.encode(), (start_after or "").encode()
        yield from (by_key[key] for key in sorted(by_key) if key > after and key.startswith(begin))

    def _pages(self, folder: str) -> Iterator[Mapping[bytes, ObjectInfo]]:
        """The files below a folder, by their keys; none if there is no such folder."""
        path = f"/api/{self._repository}/tree/{self._revision}/{quote(folder, safe='')}".rstrip("/")
        query = "recursive=true"
        for _ in range(PAGES_MAX):
            if (answer := self._asked("GET", f"{path}?{query}")) is None:
                return
            yield _parsed(answer, lambda entries: dict(filter(None, map(_info_of, entries))))
            if not (query := _next_query(answer)):
                return
        raise InvalidRequest(
            f"{self._named(folder)} has more than {PAGES_MAX} pages of files: name one of its folders",
            code="too_many_objects",
        )

    def _block(self, key: str, start: int, end: int, etag: str | None) -> tuple[bytes, int, str | None]:
        """The bytes [start, end) as far as the object has them, its size, and its tag. Raises `ObjectChanged`
        for another tag than `etag`, except at a commit, where no object changes.
        """
        if (answer := self._asked("GET", self._file(key), range=f"bytes={start}-{end - 1}")) is None:
            raise ObjectNotFound(f"no such object: {self._named(key)}")
        now = _etag_in(answer.headers)
        if self._uri.commit is None and etag not in (None, now):
            raise ObjectChanged(f"{self._named(key)} is not the object it was when it was first looked at")
        if answer.status == 416:
            return b"", start, now
        if answer.status == 200 and len(answer.head) < ANSWER_BYTES_MAX:  # all of a small file
            return answer.head[start:end], min(end, len(answer.head)), now
        sent, _, total = answer.headers.get("content-range", "").partition("/")
        block_end = min(end, int(total) if total.isdecimal() else 0)
        if sent != f"bytes {start}-{block_end - 1}" or len(answer.head) != block_end - start:
            raise StorageError(f"{self._named(key)}: the hub does not serve ranges of files")
        return answer.head, int(total), now

    def _asked(self, method: str, path: str, **headers: str) -> EgressResponse | None:
        """The answer; None for a file, folder or revision that is not there. Raises `StorageError`."""
        try:
            answer = self._hub.ask(method, path, self._own_headers, headers)
        except StorageError as error:
            raise type(error)(f"{self._named('')}: {error.message}") from error
        if answer.status < 400 or answer.status == 416:
            return answer
        if answer.status in (404, 410) and answer.headers.get("x-error-code") != "RepoNotFound":
            return None
        kind, problem = _refusal(answer)
        raise kind(f"{self._named('')}: {problem}")

    def _file(self, key: str) -> str:
        return f"/{self._repository}/resolve/{self._revision}/{quote(checked_path(key))}"

    def _named(self, key: str) -> str:
        """The object's URI, for messages."""
        return str(self._uri.with_key(key))


def _refusal(answer: EgressResponse) -> tuple[type[StorageError], str]:
    """The hub's refusal as an error, and in words."""
    status = answer.status
    if answer.headers.get("x-error-message") == "Invalid credentials in Authorization header":
        return CredentialsRefused, "the hub does not accept the service's HF_TOKEN"
    if status in (401, 404):
        return ObjectNotFound, f"the hub has no such dataset, or it is private and {_NO_RIGHT}"
    if status == 403:
        return (
            StorageDenied,
            f"the dataset is gated, and {_NO_RIGHT}, or its account has not accepted the terms",
        )
    kind = StorageUnavailable if status >= 500 or status in (408, 429) else StorageError
    return kind, f"the hub answers with the status {status}"


def _etag_in(headers: Headers) -> str | None:
    """The tag of the stored object: that of a link to it is another."""
    etag = headers.get("x-linked-etag") or headers.get("etag") or ""
    return etag.strip().removeprefix("W/").strip('"') or None


def _info_of(entry: Any) -> tuple[bytes, ObjectInfo] | None:
    """An entry of a listing, by its key; None for a folder."""
    if entry["type"] != "file":
        return None
    key, size_bytes, etag = entry["path"], int(entry["size"]), str((entry.get("lfs") or entry)["oid"])
    return key.encode(), ObjectInfo(key=key, size_bytes=size_bytes, etag=etag, modified_at=_UNDATED)


def _parsed(answer: EgressResponse, parse: Callable[[Any], Parsed]) -> Parsed:
    try:
        return parse(json.loads(answer.head))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StorageUnavailable("the hub's answer cannot be read") from error


def _next_query(answer: EgressResponse) -> str:
    """The query of a listing's next page (RFC 8288), if any. Its host may be another than a mirror's."""
    links = httpx.Response(200, headers={"link": answer.headers.get("link", "")}).links
    return urlsplit(links.get("next", {}).get("url", "")).query
