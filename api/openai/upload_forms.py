"""Uploads, checked while they are streamed into the object store, and stored whole or not at all.

The bytes are copied once the last part of the form, which may invalidate it, is read: streaming them directly
would store files that are then refused.
"""

import errno
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import BinaryIO, Final

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from api.middleware.request_bodies import larger_files
from nightshift.bulk.rows.text.decoding import checked_pieces
from nightshift.errors import InvalidRequest, QuotaExceeded, RequestTooLarge, StorageUnavailable
from nightshift.jobs.files import RECORDED_WITHIN_S, File, FilePurpose, file_key
from nightshift.jobs.ids import new_id
from nightshift.lifecycle.admission import admit_stored
from nightshift.objectstore import ObjectStore
from nightshift.process import failpoints
from nightshift.process.settings import ApiSettings
from nightshift.store import Store
from nightshift.tenants.quotas import Quotas

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
FIELDS_MAX: Final = 16  # and files: a form of ours has at most four and one


@asynccontextmanager
async def reading_form(request: Request) -> AsyncIterator[FormData]:
    """The form; its files last as long as the block. Raises InvalidRequest, StorageUnavailable."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise InvalidRequest(
            "An upload must be multipart/form-data.", param="Content-Type", code="invalid_content_type"
        )
    try:
        async with request.form(max_files=FIELDS_MAX, max_fields=FIELDS_MAX) as form:
            yield form
    except HTTPException as error:  # Starlette's error for an invalid form
        raise InvalidRequest(str(error.detail), param="body", code="invalid_form") from error
    except OSError as error:  # most of a large file is in a temporary one until the form ends
        if error.errno not in NO_ROOM:
            raise
        raise StorageUnavailable("There is no room for uploads on this server's disk just now.") from error


def file_in(form: FormData, name: str, bytes_max: int, advice: str) -> UploadFile:
    """The form's file of this name. `advice`: for a larger one. Raises InvalidRequest, RequestTooLarge."""
    file = form.get(name)
    if not isinstance(file, UploadFile):
        raise missing(name)
    size_bytes = file.size or 0
    if size_bytes == 0:
        raise InvalidRequest("The file is empty.", param=name, code="empty_file")
    if size_bytes > bytes_max:
        raise RequestTooLarge(
            f"The file has {size_bytes} bytes; at most {bytes_max} are accepted here. {advice}", param=name
        )
    return file


def missing(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


CHUNK_BYTES: Final = 1024 * 1024
FILENAME_CHARS_MAX: Final = 255

EXPIRES_AFTER_S: Final = range(3600, 2_592_000 + 1)
BATCH_EXPIRES_AFTER_S: Final = 30 * 86400  # of a batch file, unless the upload sets it
ANCHOR: Final = "created_at"

PURPOSES: Final = tuple(purpose for purpose in FilePurpose if purpose is not FilePurpose.BATCH_OUTPUT)

_SECONDS: Final = re.compile(r"[0-9]{1,7}")  # the digits of the longest expiry


@dataclass(frozen=True)
class Upload:
    """A complete form."""

    purpose: FilePurpose
    filename: str
    expires_after_s: int | None
    content: BinaryIO


def read_form(form: FormData, settings: ApiSettings) -> Upload:
    """The upload in a form. Raises InvalidRequest naming the wrong part, RequestTooLarge."""
    file = file_in(form, "file", settings.file_bytes_max, larger_files(settings))
    purpose = _purpose(form)
    return Upload(
        purpose, printable_name(file.filename or "upload"), _expires_after_s(form, purpose), file.file
    )


def keep_upload(store: Store, objects: ObjectStore, upload: Upload, tenant_id: str, quotas: Quotas) -> File:
    """Stores the bytes, then the record, so that a listed file can be read. Blocks.

    Raises InvalidRequest, QuotaExceeded, StorageError, DatabaseUnavailable; an invalid file is not stored.
    """
    file = _stored(objects, upload, tenant_id, store.now())
    failpoints.hit("api.bytes_stored")
    try:
        _record(store, file, quotas)
    except QuotaExceeded:
        objects.delete(file.key)
        raise
    return file


def _record(store: Store, file: File, quotas: Quotas) -> None:
    with store.transaction() as tx:
        if tx.now() > file.created_at + timedelta(seconds=RECORDED_WITHIN_S):  # the machine was suspended
            raise StorageUnavailable("The upload took so long that it may be lost. Send the file again.")
        admit_stored(tx, file.tenant_id, quotas)
        tx.files.insert(file)


def _stored(objects: ObjectStore, upload: Upload, tenant_id: str, now: datetime) -> File:
    """Stores the bytes under a new id."""
    file_id = new_id("file", "-")
    pieces = checked_pieces(pieces_of_file(upload.content), upload.purpose, param="file")
    stored = objects.put(file_key(tenant_id, file_id), pieces, if_absent=True)
    assert stored.sha256 is not None, "a put says the digest"
    expires_after_s = upload.expires_after_s
    return File(
        id=file_id,
        tenant_id=tenant_id,
        purpose=upload.purpose,
        filename=upload.filename,
        size_bytes=stored.size_bytes,
        sha256=stored.sha256,
        created_at=now,
        expires_at=None if expires_after_s is None else now + timedelta(seconds=expires_after_s),
    )


def pieces_of_file(file: BinaryIO) -> Iterator[bytes]:
    """A form's file in pieces."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _purpose(form: FormData) -> FilePurpose:
    given = form.get("purpose")
    if given is None:
        raise missing("purpose")
    if given not in PURPOSES:
        raise InvalidRequest(
            f"Invalid 'purpose': use one of {', '.join(PURPOSES)}.", param="purpose", code="invalid_value"
        )
    return FilePurpose(str(given))


def _expires_after_s(form: FormData, purpose: FilePurpose) -> int | None:
    anchor, after = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and after is None:
        return BATCH_EXPIRES_AFTER_S if purpose is FilePurpose.BATCH else None
    if anchor != ANCHOR:
        raise InvalidRequest(f"Invalid 'expires_after.anchor': use '{ANCHOR}'.", param="expires_after.anchor")
    if not isinstance(after, str) or not _SECONDS.fullmatch(after) or int(after) not in EXPIRES_AFTER_S:
        raise InvalidRequest(
            f"Invalid 'expires_after.seconds': use {EXPIRES_AFTER_S[0]} to {EXPIRES_AFTER_S[-1]}.",
            param="expires_after.seconds",
        )
    return int(after)


def printable_name(filename: str) -> str:
    """The client's name for a file, made printable; never used as a path."""
    name = "".join(letter if letter.isprintable() else "_" for letter in filename)
    return name[:FILENAME_CHARS_MAX]
