"""Uploads, checked while they are streamed into the object store, and stored whole or not at all.

Starlette parses the form in any order of parts, with at most 1 MiB of a file in memory and the rest in a
temporary file. The bytes are copied once the last part, which may invalidate the form, is read: streaming
them directly would store files that are then refused.
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import BinaryIO, Final

from starlette.datastructures import FormData, UploadFile

from nightshift.errors import InvalidRequest, RequestTooLarge, StorageUnavailable
from nightshift.jobs.files import RECORDED_WITHIN_S, File, FilePurpose, file_key
from nightshift.jobs.ids import new_id
from nightshift.objectstore import ObjectStore
from nightshift.store import Store

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


def read_form(form: FormData, file_bytes_max: int) -> Upload:
    """The upload in a form. Raises InvalidRequest naming the wrong part, RequestTooLarge."""
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise _missing("file")
    size_bytes = file.size or 0
    if size_bytes == 0:
        raise InvalidRequest("The file is empty.", param="file", code="empty_file")
    if size_bytes > file_bytes_max:
        raise RequestTooLarge(
            f"The file has {size_bytes} bytes; at most {file_bytes_max} are accepted.", param="file"
        )
    purpose = _purpose(form)
    return Upload(purpose, _filename(file), _expires_after_s(form, purpose), file.file)


def keep_upload(store: Store, objects: ObjectStore, upload: Upload, tenant_id: str) -> File:
    """Store the bytes, then the record, so that a listed file can be read. Blocks.

    Raises InvalidRequest, StorageError, DatabaseUnavailable; an invalid file is not stored.
    """
    file = _stored(objects, upload, tenant_id, store.now())
    with store.transaction() as tx:
        if tx.now() > file.created_at + timedelta(seconds=RECORDED_WITHIN_S):  # the machine was suspended
            raise StorageUnavailable("The upload took so long that it may be lost. Send the file again.")
        tx.files.insert(file)
    return file


def _stored(objects: ObjectStore, upload: Upload, tenant_id: str, now: datetime) -> File:
    """Store the bytes under a new id."""
    file_id = new_id("file", "-")
    stored = objects.put(file_key(tenant_id, file_id), _checked(upload), if_absent=True)
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


def _checked(upload: Upload) -> Iterator[bytes]:
    """The file in pieces. A batch file must be UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    is_text = upload.purpose is FilePurpose.BATCH
    try:
        while chunk := upload.content.read(CHUNK_BYTES):
            if is_text:
                decoder.decode(chunk)
            yield chunk
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            "The file is not UTF-8 text, as a batch file must be.", param="file", code="invalid_encoding"
        ) from error


def _purpose(form: FormData) -> FilePurpose:
    given = form.get("purpose")
    if given is None:
        raise _missing("purpose")
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


def _filename(file: UploadFile) -> str:
    """The client's name for the file, made printable; never used as a path."""
    name = "".join(letter if letter.isprintable() else "_" for letter in file.filename or "upload")
    return name[:FILENAME_CHARS_MAX]


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )
