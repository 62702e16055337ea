"""The steps of an upload in parts, one transaction each, and how its parts become a file.

    create ──► add_part … ──► compose ──► complete       a File is on record, its parts are not any more
                         └──► cancel

A file's id derives from the upload and the order of its parts: a completion that is repeated, or runs twice
at once, writes the same bytes to the same place, and another order does not touch them. The first to be
recorded counts.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from nightshift.bulk.rows.text.decoding import checked_pieces
from nightshift.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    StorageError,
    TooManyRequests,
)
from nightshift.jobs.files import (
    COMPOSING_MAX,
    KEPT_FOR,
    PARTS_MAX,
    File,
    Upload,
    UploadPart,
    UploadStatus,
    composed_file_id,
    file_key,
)
from nightshift.lifecycle.admission import admit_stored, check_room
from nightshift.objectstore import ObjectDamaged, ObjectStore
from nightshift.objectstore.objects import Measured
from nightshift.process import failpoints
from nightshift.store import Store, Transaction
from nightshift.tenants.quotas import NO_QUOTAS, Quotas


@dataclass(frozen=True)
class Ended:
    """An upload that has ended, its file, and the parts whose bytes are of no more use."""

    upload: Upload
    file: File | None = None  # None: it was not completed, or the file was deleted since
    parts: Sequence[UploadPart] = ()


def create(tx: Transaction, new: Upload, pending_max: int) -> None:
    """Raises TooManyRequests for a tenant with so many pending ones."""
    tx.holdings.take_turn(new.tenant_id)  # uploads created at once are counted one by one
    if tx.uploads.count_pending(new.tenant_id, new.created_at) >= pending_max:
        raise TooManyRequests(
            f"{pending_max} uploads of yours are pending already. Complete or cancel one first.",
            retry_after_s=60,
        )
    tx.uploads.insert(new)


def check_pending(upload: Upload, now: datetime, action: str) -> None:
    """Raises Conflict."""
    status = upload.status_at(now)
    if status is not UploadStatus.PENDING:
        raise Conflict(f"Cannot {action} an upload with status '{status}'.")


def add_part(tx: Transaction, part: UploadPart, quotas: Quotas = NO_QUOTAS) -> None:
    """Records a part whose bytes are stored. Raises NotFound, Conflict, InvalidRequest; at the end of the
    transaction QuotaExceeded.
    """
    upload = find(tx, part.tenant_id, part.upload_id, to_change=True)
    check_pending(upload, tx.now(), "add parts to")
    held = tx.uploads.held(upload.id)
    if held.parts >= PARTS_MAX:
        raise InvalidRequest(f"An upload has at most {PARTS_MAX} parts.", param="data")
    size_bytes = held.size_bytes + part.size_bytes
    if size_bytes > upload.parts_bytes_max:
        raise InvalidRequest(
            f"With this part, the upload's parts have {size_bytes} bytes together; for a file of "
            f"{upload.size_bytes} bytes at most {upload.parts_bytes_max} are accepted.",
            param="data",
        )
    admit_stored(tx, part.tenant_id, quotas)
    tx.uploads.insert_part(part)


def cancel(tx: Transaction, tenant_id: str, upload_id: str) -> Ended:
    """Cancels a pending upload; a cancelled one stays as it is. Raises NotFound, Conflict."""
    upload = find(tx, tenant_id, upload_id, to_change=True)
    if upload.status is UploadStatus.CANCELLED:
        return Ended(upload)
    check_pending(upload, tx.now(), "cancel")
    parts = tx.uploads.end(tenant_id, upload_id, UploadStatus.CANCELLED)
    return Ended(replace(upload, status=UploadStatus.CANCELLED), parts=parts or ())


def complete(
    store: Store,
    objects: ObjectStore,
    tenant_id: str,
    upload_id: str,
    part_ids: Sequence[str],
    md5: str | None,
    quotas: Quotas = NO_QUOTAS,
) -> Ended:
    """Puts the parts together in this order and records the file. Blocks on the object store.

    `md5`: of the file, hex. Repeatable. Raises NotFound, Conflict, InvalidRequest, QuotaExceeded,
    StorageError.
    """
    with store.snapshot() as tx:
        upload = find(tx, tenant_id, upload_id)
        if (ended := _ended(tx, upload, part_ids)) is not None:
            return ended
        parts = in_order(tx.uploads.parts(tenant_id, upload_id), part_ids)
        check_size(upload, parts)
        # Before the bytes are stored: each order of the parts is another object.
        check_room(tx, tenant_id, quotas, upload.size_bytes - tx.uploads.held(upload_id).size_bytes)
        now = tx.now()
    try:
        file = _composed(objects, upload, parts, md5, now)
    except StorageError:  # the upload may have ended meanwhile, and its bytes be gone
        with store.snapshot() as tx:
            ended = _ended(tx, find(tx, tenant_id, upload_id), part_ids)
        if ended is not None:
            return ended
        raise
    failpoints.hit("api.bytes_stored")
    try:
        with store.transaction() as tx:
            admit_stored(tx, tenant_id, quotas)
            return _record(tx, upload, file, part_ids)
    except Conflict:  # the upload has ended, and never has this file
        objects.delete(file.key)
        raise


def _ended(tx: Transaction, upload: Upload, part_ids: Sequence[str]) -> Ended | None:
    """The result of an earlier completion by the same parts. None: it is pending. Raises Conflict."""
    if upload.status is UploadStatus.COMPLETED:
        return _completed_before(tx, upload, part_ids)
    check_pending(upload, tx.now(), "complete")
    return None


def find(tx: Transaction, tenant_id: str, upload_id: str, *, to_change: bool = False) -> Upload:
    """Raises NotFound."""
    upload = tx.uploads.get(tenant_id, upload_id, to_change=to_change)
    if upload is None:
        raise NotFound(f"No such Upload object: {upload_id}", param="id")
    return upload


def in_order(known: Mapping[str, UploadPart], part_ids: Sequence[str]) -> list[UploadPart]:
    """The upload's parts with these ids. Raises InvalidRequest naming an id that is none, or comes twice.
    Pure.
    """
    seen: set[str] = set()
    for place, part_id in enumerate(part_ids):
        if part_id not in known:
            raise _invalid_part(place, f"this upload has no part {part_id!r}")
        if part_id in seen:
            raise _invalid_part(place, f"{part_id!r} is given twice")
        seen.add(part_id)
    return [known[part_id] for part_id in part_ids]


def check_size(upload: Upload, parts: Sequence[UploadPart]) -> None:
    """Raises InvalidRequest unless the parts have the announced size. Pure."""
    size_bytes = sum(part.size_bytes for part in parts)
    if size_bytes != upload.size_bytes:
        raise InvalidRequest(
            f"The parts have {size_bytes} bytes together, and the upload was created for "
            f"{upload.size_bytes} bytes.",
            param="part_ids",
            code="size_mismatch",
        )


def _composed(
    objects: ObjectStore, upload: Upload, parts: Sequence[UploadPart], md5: str | None, now: datetime
) -> File:
    """Stores the file, whole or not at all."""
    file_id = composed_file_id(upload.id, [part.id for part in parts])
    pieces = checked_pieces(_pieces(objects, parts, md5), upload.purpose, param="part_ids")
    stored = objects.put(file_key(upload.tenant_id, file_id), pieces)
    assert stored.sha256 is not None, "a put says the digest"
    after_s = upload.file_expires_after_s
    return File(
        id=file_id,
        tenant_id=upload.tenant_id,
        purpose=upload.purpose,
        filename=upload.filename,
        size_bytes=stored.size_bytes,
        sha256=stored.sha256,
        created_at=now,
        expires_at=None if after_s is None else now + timedelta(seconds=after_s),
    )


def _pieces(objects: ObjectStore, parts: Sequence[UploadPart], md5: str | None) -> Iterator[bytes]:
    """The bytes of the parts. Raises ObjectDamaged, and InvalidRequest if they have another md5."""
    whole = hashlib.md5(usedforsecurity=False)
    for part in parts:
        measured = Measured(objects.stream(part.key))
        for piece in measured:
            whole.update(piece)
            yield piece
        if measured.sha256 != part.sha256:
            raise ObjectDamaged(f"{part.key} does not have the bytes that were written")
    if md5 is not None and whole.hexdigest() != md5.lower():
        raise InvalidRequest(
            f"The file's md5 is {whole.hexdigest()}, and not the one given.", param="md5", code="md5_mismatch"
        )


def _record(tx: Transaction, upload: Upload, file: File, part_ids: Sequence[str]) -> Ended:
    known = find(tx, upload.tenant_id, upload.id, to_change=True)
    if known.status is UploadStatus.COMPLETED:  # the same request was sent twice
        return _completed_before(tx, known, part_ids)
    if known.status is UploadStatus.PENDING and tx.now() >= upload.expires_at + COMPOSING_MAX:
        raise Conflict(f"Cannot complete an upload with status '{UploadStatus.EXPIRED}'.")
    parts = tx.uploads.end(upload.tenant_id, upload.id, UploadStatus.COMPLETED, file.id)
    if parts is None:
        raise Conflict(f"Cannot complete an upload with status '{known.status}'.")
    tx.files.insert(file)
    return Ended(replace(known, status=UploadStatus.COMPLETED, file_id=file.id), file, parts)


def _completed_before(tx: Transaction, upload: Upload, part_ids: Sequence[str]) -> Ended:
    assert upload.file_id is not None, "a completed upload has a file"
    if upload.file_id != composed_file_id(upload.id, part_ids):
        raise Conflict("This upload was completed before, with other parts or in another order.")
    return Ended(upload, tx.files.get(upload.tenant_id, upload.file_id, tx.now()))


def _invalid_part(place: int, why: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid 'part_ids[{place}]': {why}.", param=f"part_ids[{place}]")


def expire(tx: Transaction, now: datetime, limit: int) -> Sequence[UploadPart]:
    """Ends overdue uploads of all tenants. Returns their parts, whose bytes are of no more use."""
    parts: list[UploadPart] = []
    for upload in tx.uploads.overdue(now - COMPOSING_MAX, limit):
        parts += tx.uploads.end(upload.tenant_id, upload.id, UploadStatus.EXPIRED) or ()
    tx.uploads.forget_ended(now - KEPT_FOR)
    return parts
