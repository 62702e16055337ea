"""The uploads routes: create, add parts in any order and at once, complete, cancel."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from api.access import Caller
from api.bodies import parsed
from api.bodies.files import PartObject, UploadComplete, UploadCreate, UploadObject, file_json
from api.dependencies import BodyDep, CallerDep, ServicesDep
from api.middleware.request_bodies import MORE_PARTS
from api.openai.upload_forms import (
    BATCH_EXPIRES_AFTER_S,
    file_in,
    pieces_of_file,
    printable_name,
    reading_form,
)
from api.services.services import Services
from nightshift.errors import InvalidRequest, NightshiftError, StorageError
from nightshift.jobs import JsonObject
from nightshift.jobs.files import (
    LIFETIME,
    PART_BYTES_MAX,
    File,
    FilePurpose,
    Upload,
    UploadPart,
    UploadStatus,
)
from nightshift.jobs.ids import new_id
from nightshift.lifecycle import uploads
from nightshift.lifecycle.admission import check_room
from nightshift.lifecycle.uploads import Ended
from nightshift.process import failpoints

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/uploads", tags=["OpenAI"])

_ANSWERS_UPLOAD: Final[dict[int | str, dict[str, Any]]] = {200: {"model": UploadObject}}


@router.post("", summary="Begin the upload of a large file in parts", responses=_ANSWERS_UPLOAD)
def create_upload(services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
    fields = parsed(UploadCreate, body)
    limits = services.settings.api
    if fields.bytes > limits.upload_bytes_max:
        raise InvalidRequest(
            f"Invalid 'bytes': at most {limits.upload_bytes_max} are accepted, but got {fields.bytes}.",
            param="bytes",
            code="above_max_value",
        )
    with services.store.transaction() as tx:
        now = tx.now()
        new = Upload(
            id=new_id("upload"),
            tenant_id=caller.tenant_id,
            purpose=fields.file_purpose,
            filename=printable_name(fields.filename),
            size_bytes=fields.bytes,
            created_at=now,
            expires_at=now + LIFETIME,
            file_expires_after_s=_expires_after_s(fields),
            status=UploadStatus.PENDING,
        )
        check_room(tx, caller.tenant_id, caller.quotas, fields.bytes)
        uploads.create(tx, new, limits.uploads_pending_max)
    return JSONResponse(_upload_json(new))


@router.post("/{upload_id}/parts", summary="Add a part to an upload", responses={200: {"model": PartObject}})
async def create_part(upload_id: str, request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    await run_in_threadpool(_check_pending, services, caller.tenant_id, upload_id)
    async with reading_form(request) as form:
        data = file_in(form, "data", PART_BYTES_MAX, MORE_PARTS)
        part = await services.storage_threads.for_tenant(caller.tenant_id).run(
            lambda: _keep_part(services, caller, upload_id, data)
        )
    return JSONResponse(PartObject.shown(part, object="upload.part"))


@router.post("/{upload_id}/complete", summary="Make a file of an upload's parts", responses=_ANSWERS_UPLOAD)
async def complete_upload(
    upload_id: str, services: ServicesDep, caller: CallerDep, body: BodyDep
) -> Response:
    fields = await run_in_threadpool(parsed, UploadComplete, body)
    ended = await services.storage_threads.for_tenant(caller.tenant_id).run(
        lambda: uploads.complete(
            services.store,
            services.objects,
            caller.tenant_id,
            upload_id,
            fields.part_ids,
            fields.md5,
            caller.quotas,
        )
    )
    return _ended(services, ended)


@router.post("/{upload_id}/cancel", summary="Cancel an upload", responses=_ANSWERS_UPLOAD)
async def cancel_upload(upload_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    ended = await run_in_threadpool(
        lambda: services.store.run(lambda tx: uploads.cancel(tx, caller.tenant_id, upload_id))
    )
    return _ended(services, ended)


def _expires_after_s(fields: UploadCreate) -> int | None:
    """Reads `expires_after` as POST /v1/files does."""
    if fields.expires_after is not None:
        return fields.expires_after.seconds
    return BATCH_EXPIRES_AFTER_S if fields.file_purpose is FilePurpose.BATCH else None


def _check_pending(services: Services, tenant_id: str, upload_id: str) -> None:
    """Checks the upload before the body is read. Raises NotFound, Conflict."""
    with services.store.snapshot() as tx:
        uploads.check_pending(uploads.find(tx, tenant_id, upload_id), tx.now(), "add parts to")


def _keep_part(services: Services, caller: Caller, upload_id: str, data: UploadFile) -> UploadPart:
    """Stores the bytes, then the record, so that a part on record can be read. Blocks."""
    part = UploadPart(
        id=new_id("part"),
        upload_id=upload_id,
        tenant_id=caller.tenant_id,
        size_bytes=data.size or 0,
        sha256="",  # known once the bytes are stored
        created_at=services.store.now(),
    )
    stored = services.objects.put(part.key, pieces_of_file(data.file))
    assert stored.sha256 is not None, "a put says the digest"
    part = replace(part, sha256=stored.sha256)
    failpoints.hit("api.bytes_stored")
    try:
        services.store.run(lambda tx: uploads.add_part(tx, part, caller.quotas))
    except NightshiftError:
        services.objects.delete(part.key)
        raise
    return part


def _ended(services: Services, ended: Ended) -> Response:
    """The upload; the bytes of its parts are deleted afterwards."""
    forgetting = (
        BackgroundTask(_forget, services, ended.upload.tenant_id, ended.parts) if ended.parts else None
    )
    return JSONResponse(_upload_json(ended.upload, ended.file), background=forgetting)


async def _forget(services: Services, tenant_id: str, parts: Sequence[UploadPart]) -> None:
    """Deletes the bytes of parts. Retention deletes what a crash leaves, since it has no record."""
    failpoints.hit("api.parts_forgotten")
    for part in parts:
        try:
            await services.storage_threads.for_tenant(tenant_id).run(
                partial(services.objects.delete, part.key)
            )
        except StorageError as error:
            log.warning("parts are left behind: %s", error, extra={"action": "parts_left", "key": part.key})
            return


def _upload_json(upload: Upload, file: File | None = None) -> JsonObject:
    shown = None if file is None else file_json(file)
    return UploadObject.shown(upload, object="upload", file=shown)
