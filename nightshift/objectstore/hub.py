"""Datasets of a Hugging Face hub, `hf://datasets/org/name@revision/path`, to be read only.

The hub is the operator's choice: `HF_ENDPOINT`, or huggingface.co. It sends readers on to places where files
lie; these must be its own or public https addresses. It is asked by the three requests of its HTTP API that
reading takes: its own client follows any redirect, and takes the operator's token unless told otherwise.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from nightshift.objectstore.uris import ObjectUri, is_commit
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
PAGES_MAX: Final = (
    100  # of a listing, of 1,000 names each: it is held whole, because the hub does not order it
)
REQUEST_S: Final = 30.0  # one request, to its last byte
TRIES_MAX: Final = 3  # of a request that breaks off
REDIRECTS_MAX: Final = 5

_ANY_NETWORK: Final = ("0.0.0.0/0", "::/0")
_ANY_PORT: Final = (range(1, 65536),)
_UNDATED: Final = datetime.fromtimestamp(0, UTC)  # a listing with dates costs the hub a look at every file
_INVALID_TOKEN: Final = "Invalid credentials in Authorization header"  # says the hub in X-Error-Message

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class _Answer:
    """`said`: the hub's headers, which have an object's size and tag. `last`: of where it sent us on to."""

    said: Mapping[str, str]
    last: EgressResponse


class Hub:
    """The operator's hub. Thread-safe; keeps no connections."""

    def __init__(self, endpoint: str, token: str = "", token_tenants: Collection[str] = ()) -> None:
        """`token`: sent for the tenants `token_tenants` alone, and to the hub itself alone.

        Raises `ConfigurationError` for an endpoint that is no http or https URL.
        """
        self._endpoint = endpoint.rstrip("/")
        try:
            check_url(self._endpoint, _ANY_NETWORK, _ANY_PORT)
        except InvalidRequest as error:
            raise ConfigurationError("HF_ENDPOINT must be https://HOST", param="HF_ENDPOINT") from error
        self._origin = _origin(self._endpoint)
        self._token = token
        self._token_tenants = token_tenants

    @classmethod
    def of_environment(cls, token_tenants: Collection[str]) -> "Hub":
        """The hub of `HF_ENDPOINT` and `HF_TOKEN`. Raises `ConfigurationError`."""
        endpoint = os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
        return cls(endpoint, os.environ.get("HF_TOKEN", ""), token_tenants)

    def dataset(self, uri: ObjectUri, tenant_id: str) -> "Dataset":
        has_token = self._token and tenant_id in self._token_tenants
        return Dataset(self, uri, {"authorization": f"Bearer {self._token}"} if has_token else {})

    @cached_property
    def _own(self) -> Egress:
        """Calls the hub itself, wherever the operator has it. Certificates take a while to load."""
        limits = EgressConfig(
            _ANY_NETWORK, _ANY_PORT, deadline_s=REQUEST_S, response_bytes_max=ANSWER_BYTES_MAX
        )
        return Egress(limits)

    @cached_property
    def _public(self) -> Egress:
        return Egress(EgressConfig(deadline_s=REQUEST_S, response_bytes_max=ANSWER_BYTES_MAX))

    def ask(self, method: str, path: str, own_headers: dict[str, str], **headers: str) -> _Answer:
        """Sends a request, and once more if it breaks off. A HEAD is not sent on to another place.

        `own_headers`: for the hub alone. Raises `StorageUnavailable`, `StorageDenied`.
        """
        for left in reversed(range(TRIES_MAX)):
            check_time()
            try:
                return self._followed(method, f"{self._endpoint}{path}", own_headers, headers)
            except BlockedUrl as error:
                raise StorageDenied("the hub sends readers on to an address that is not public") from error
            except NoAnswer as error:
                if not left:
                    raise StorageUnavailable(f"the hub does not answer: {error.message}") from error
        raise AssertionError("unreachable")

    def _followed(
        self, method: str, url: str, own_headers: dict[str, str], headers: dict[str, str]
    ) -> _Answer:
        said: dict[str, str] = {}
        for _ in range(REDIRECTS_MAX + 1):
            is_own = _origin(url) == self._origin
            if not is_own and not url.startswith("https://"):
                raise BlockedUrl
            egress = self._own if is_own else self._public
            answer = egress.request(method, url, headers | (own_headers if is_own else {}))
            said |= answer.headers if is_own else {}
            location = answer.headers.get("location") if answer.status in (301, 302, 303, 307, 308) else None
            url = url if location is None else joined(url, location)
            if location is None or (method == "HEAD" and _origin(url) != self._origin):
                return _Answer(said, answer)
        raise NoAnswer(f"it redirects more than {REDIRECTS_MAX} times")


class Dataset:
    """An `ObjectReader` of the files of a dataset at a revision."""

    def __init__(self, hub: Hub, uri: ObjectUri, own_headers: dict[str, str]) -> None:
        self._hub = hub
        self._uri = uri
        self._repository, _, revision = uri.bucket.partition("@")
        self._revision = revision or "main"
        self._own_headers = own_headers

    def commit(self) -> str:
        """The commit that the revision names now. Raises `ObjectNotFound`."""
        answer = self._asked("GET", f"/api/{self._repository}/revision/{self._revision}?expand=sha")
        if answer is None:
            raise ObjectNotFound(f"{self._named('')}: the hub has no such revision")
        commit = _parsed(answer.last, lambda said: str(said["sha"]))
        if not is_commit(commit):
            raise StorageUnavailable(f"{self._named('')}: the hub says no commit")
        return commit

    def head(self, key: str) -> ObjectInfo | None:
        answer = self._asked("HEAD", self._file(key))
        if answer is None:
            return None
        size_bytes = answer.said.get("x-linked-size") or answer.said.get("content-length") or ""
        etag = _etag_in(answer.said)
        if not size_bytes.isdecimal() or etag is None:
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
        etag = if_match
        while end is None or start < end:
            block_end = start + BLOCK_BYTES if end is None else min(end, start + BLOCK_BYTES)
            block, total_bytes, etag = self._block(key, start, block_end, etag)
            yield from pieces_of(block, chunk_bytes)
            start += len(block)
            if start >= total_bytes:
                return

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        folder = checked_path_prefix(prefix).rpartition("/")[0]
        after = b"" if start_after is None else start_after.encode()
        infos = (info for page in self._pages(folder) for info in page if info.key.startswith(prefix))
        by_key = {info.key.encode(): info for info in infos}
        yield from (by_key[key] for key in sorted(by_key) if key > after)

    def _pages(self, folder: str) -> Iterator[Sequence[ObjectInfo]]:
        """The files below a folder; none if there is no such folder."""
        path = f"/api/{self._repository}/tree/{self._revision}/{quote(folder, safe='')}".rstrip("/")
        query = "recursive=true"
        for _ in range(PAGES_MAX):
            answer = self._asked("GET", f"{path}?{query}")
            if answer is None:
                return
            yield _parsed(answer.last, lambda entries: [*filter(None, map(_info_of, entries))])
            if not (query := _next_query(answer.last)):
                return
        raise InvalidRequest(
            f"{self._named(folder)} has more than {PAGES_MAX} pages of files: name one of its folders",
            code="too_many_objects",
        )

    def _block(self, key: str, start: int, end: int, etag: str | None) -> tuple[bytes, int, str | None]:
        """The bytes [start, end) as far as the object has them, its size, and its tag. Raises `ObjectChanged`
        for another tag than `etag`, except at a commit, where no object changes.
        """
        answer = self._asked("GET", self._file(key), range=f"bytes={start}-{end - 1}")
        if answer is None:
            raise ObjectNotFound(f"no such object: {self._named(key)}")
        now = _etag_in(answer.said)
        if not is_commit(self._revision) and etag not in (None, now):
            raise ObjectChanged(f"{self._named(key)} is not the object it was when it was first looked at")
        status, headers, body = answer.last.status, answer.last.headers, answer.last.head
        if status == 416:
            return b"", start, now
        if status == 200 and len(body) < ANSWER_BYTES_MAX:  # all of a small file
            return body[start:end], min(end, len(body)), now
        first, _, total = headers.get("content-range", "").removeprefix("bytes ").partition("/")
        if status != 206 or not total.isdecimal() or first.partition("-")[0] != str(start):
            raise StorageError(f"{self._named(key)}: the hub does not serve ranges of files")
        if len(body) != min(end, int(total)) - start:
            raise StorageUnavailable(f"{self._named(key)}: the hub sent another range")
        return body, int(total), now

    def _asked(self, method: str, path: str, **headers: str) -> _Answer | None:
        """The answer; None for a file, folder or revision that is not there. Raises `StorageError`."""
        try:
            answer = self._hub.ask(method, path, self._own_headers, **headers)
        except StorageError as error:
            raise type(error)(f"{self._named('')}: {error.message}") from error
        status, said = answer.last.status, answer.last.headers.get("x-error-code", "")
        if status < 400 or status == 416:
            return answer
        if status in (404, 410) and said != "RepoNotFound":
            return None
        raise self._refusal(answer.last, said)

    def _refusal(self, answer: EgressResponse, said: str) -> StorageError:
        name = self._named("")
        if said == "GatedRepo":
            return StorageDenied(
                f"{name} is gated: the account of the service's token must accept its terms, and "
                "NIGHTSHIFT_HF_TOKEN_TENANTS must name this tenant"
            )
        if answer.headers.get("x-error-message") == _INVALID_TOKEN:
            return CredentialsRefused(f"{name}: the hub does not accept the service's HF_TOKEN")
        if said == "RepoNotFound" or answer.status == 401:
            return ObjectNotFound(
                f"{name}: the hub has no such dataset, or it is private and NIGHTSHIFT_HF_TOKEN_TENANTS does "
                "not let this tenant read it"
            )
        if answer.status == 403:
            return StorageDenied(f"{name}: the hub refuses to show it")
        kind = StorageUnavailable if answer.status >= 500 or answer.status in (408, 429) else StorageError
        return kind(f"{name}: the hub answers with the status {answer.status}")

    def _file(self, key: str) -> str:
        return f"/{self._repository}/resolve/{self._revision}/{quote(checked_path(key))}"

    def _named(self, key: str) -> str:
        """The object's URI, for messages."""
        return str(self._uri.with_key(key))


def _origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx.URL(url)
    return parsed.scheme, parsed.host, parsed.port


def _etag_in(headers: Mapping[str, str]) -> str | None:
    """The tag of the stored object: that of a link to it is another."""
    etag = headers.get("x-linked-etag") or headers.get("etag") or ""
    return etag.strip().removeprefix("W/").strip('"') or None


def _info_of(entry: Any) -> ObjectInfo | None:
    """An entry of a listing; None for a folder."""
    if entry["type"] != "file":
        return None
    etag = (entry.get("lfs") or entry)["oid"]
    return ObjectInfo(key=entry["path"], size_bytes=entry["size"], etag=etag, modified_at=_UNDATED)


def _parsed(answer: EgressResponse, parse: Callable[[Any], Parsed]) -> Parsed:
    try:
        return parse(json.loads(answer.head))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StorageUnavailable("the hub's answer cannot be read") from error


def _next_query(answer: EgressResponse) -> str:
    """The query of a listing's next page (RFC 8288), if any. Its host may be another than a mirror's."""
    links = httpx.Response(200, headers={"link": answer.headers.get("link", "")}).links
    return urlsplit(links.get("next", {}).get("url", "")).query
