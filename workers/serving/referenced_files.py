"""The bytes of what a request refers to: a data URI, an uploaded file, an object, an https URL."""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from nightshift.endpoints.encoders.images import shown
from nightshift.errors import (
    InvalidRequest,
    NightshiftError,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from nightshift.objectstore.objects import ObjectChanged
from nightshift.objectstore.sources import Sources, is_file_id
from nightshift.objectstore.verdicts import IMAGE, as_fault, storage_verdict
from nightshift.outbound.safe_http import BlockedUrl, Egress, EgressConfig
from nightshift.process.settings import ImageSettings

IMAGE_BYTES_MAX: Final = 20 * 1024 * 1024
REDIRECTS_MAX: Final = 3
CONNECT_S: Final = 5.0  # per address

_DATA_URI: Final = re.compile(r"data:([^,;]{0,100})((?:;[^,;]{0,100}){0,4}),")
_OBJECTS: Final = ("s3://", "file://", "hf://")


def egress_of(settings: ImageSettings) -> Egress:
    """One byte more than an image may have is read, so that a longer one is noticed."""
    return Egress(
        EgressConfig(
            settings.image_allow_cidrs,
            settings.port_ranges,
            deadline_s=settings.image_fetch_s,
            connect_timeout_s=min(CONNECT_S, settings.image_fetch_s),
            response_bytes_max=IMAGE_BYTES_MAX + 1,
        )
    )


class ReferencedFiles:
    """Reads what tenants refer to. Thread-safe."""

    def __init__(self, sources: Sources, egress: Egress) -> None:
        self._sources = sources
        self._egress = egress

    def read(self, reference: str, tenant_id: str, size_bytes_max: int, *, etag: str | None = None) -> bytes:
        """`etag`: of an object as it was planned; None: as it is now.

        Raises InvalidRequest, and StorageError or NoAnswer where a retry may help.
        """
        if reference.startswith("data:"):
            return _limited([_of_data_uri(reference, size_bytes_max)], reference, size_bytes_max)
        if reference.startswith("https://"):
            return self._fetched(reference, size_bytes_max)
        if is_file_id(reference) or reference.startswith(_OBJECTS):
            return self._stored(reference, tenant_id, size_bytes_max, etag)
        raise _refused(
            reference,
            "is no reference to an image: use a data URI, a file id, or a URI with s3, file, hf or https",
        )

    def _stored(self, reference: str, tenant_id: str, size_bytes_max: int, etag: str | None) -> bytes:
        """Reads an object in one request to the store."""
        try:
            source = self._sources.open(reference, tenant_id)
            chunks = source.store.stream(source.key, 0, size_bytes_max + 1, if_match=etag)
            return _limited(chunks, reference, size_bytes_max)
        except ObjectNotFound as error:
            problem = "does not exist" if etag is None else "was deleted after the input was planned"
            raise _refused(reference, problem, "object_not_found") from error
        except ObjectChanged as error:
            problem = "was replaced after the input was planned"
            raise _refused(reference, problem, "input_changed") from error
        except StorageError as error:
            is_ours = is_file_id(reference)
            if storage_verdict(error, in_our_store=is_ours) == "fail":
                raise _refused(reference, f"cannot be read: {error.message}") from error
            if is_ours:  # a location's own error names it, ours does not
                raise StorageUnavailable(as_fault(error, IMAGE, in_our_store=True).message) from error
            raise

    def _fetched(self, url: str, size_bytes_max: int) -> bytes:
        try:
            answer = self._egress.get(url, redirects_max=REDIRECTS_MAX)
        except BlockedUrl as error:
            message = f"may not be fetched: {_without_settings(error)}"
            raise _refused(url, message, "url_not_allowed") from error
        if answer.status != 200:
            raise _refused(url, f"was answered with the status {answer.status}", "image_not_fetched")
        return _limited([answer.head], url, size_bytes_max)


def _of_data_uri(reference: str, size_bytes_max: int) -> bytes:
    head = _DATA_URI.match(reference)
    if head is None:
        raise _refused(reference, "is malformed: it is data:image/png;base64,…")
    if len(reference) > 2 * size_bytes_max:
        raise _too_large(reference, size_bytes_max)
    data = reference[head.end() :]
    if not head[2].lower().endswith(";base64"):
        try:
            return unquote_to_bytes(data)
        except UnicodeEncodeError as error:
            raise _refused(reference, "holds a character that UTF-8 cannot") from error
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refused(reference, f"is not base64: {error}") from error


def _limited(chunks: Iterable[bytes], reference: str, size_bytes_max: int) -> bytes:
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > size_bytes_max:
            raise _too_large(reference, size_bytes_max)
    return bytes(data)


def _too_large(reference: str, size_bytes_max: int) -> InvalidRequest:
    return _refused(reference, f"has more than {size_bytes_max} bytes", "image_too_large")


def _refused(reference: str, problem: str, code: str = "invalid_image") -> InvalidRequest:
    return InvalidRequest(f"{shown(reference)} {problem}.", code=code)


def _without_settings(error: NightshiftError) -> str:
    """The guard's default message names the settings of webhooks."""
    is_default = "NIGHTSHIFT_WEBHOOK" in error.message
    message = error.message.rstrip(".")
    return "it leads to no public address, or to another port than 443" if is_default else message
