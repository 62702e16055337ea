"""The files routes: upload, list, describe, download, delete."""

import errno
from typing import Annotated, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from api.authentication import Caller
from api.dependencies import CallerDep, ServicesDep, list_json
from api.openai.adapter import file_json
from api.openai.ranges import Unsatisfiable, parse_range
from api.openai.uploads import keep_upload, read_form
from api.services import Services
from nightshift.endpoints.answers import error_body
from nightshift.errors import InvalidRequest, NotFound, StorageUnavailable
from nightshift.jobs.files import File, FilePurpose
from nightshift.store import Transaction

router = APIRouter(prefix="/v1/files", tags=["OpenAI"])

FILES_LIMIT: Final = 10_000
CONTENT_TYPE: Final = "application/octet-stream"
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
PARTS_MAX: Final = 16  # fields of an upload's form, and files in it: there are four and one


@router.post("", summary="Upload a file")
async def create_file(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise InvalidRequest(
            "An upload must be multipart/form-data.", param="Content-Type", code="invalid_content_type"
        )
    try:
        async with request.form(max_files=PARTS_MAX, max_fields=PARTS_MAX) as form:
            upload = read_form(form, services.settings.api.file_bytes_max)
            file = await services.storage_threads.run(
                lambda: keep_upload(services.store, services.objects, upload, caller.tenant_id)
            )
    except HTTPException as error:  # Starlette's error for an invalid form
        raise InvalidRequest(str(error.detail), param="body", code="invalid_form") from error
    except OSError as error:  # most of a large file is in a temporary one until the form ends
        if error.errno not in NO_ROOM:
            raise
        raise StorageUnavailable("There is no room for uploads on this server's disk just now.") from error
    return JSONResponse(file_json(file))


@router.get("", summary="List files")
def list_files(
    services: ServicesDep,
    caller: CallerDep,
    purpose: FilePurpose | None = None,
    limit: Annotated[int, Query(ge=1, le=FILES_LIMIT)] = FILES_LIMIT,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    with services.store.snapshot() as tx:
        found = tx.files.list(
            caller.tenant_id,
            tx.now(),
            limit=limit + 1,
            after=None if after is None else _get(tx, caller, after, param="after"),
            purpose=purpose,
            newest_first=order == "desc",
        )
    return JSONResponse(list_json([file_json(file) for file in found], limit))


@router.get("/{file_id}", summary="Describe a file")
def get_file(file_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        return JSONResponse(file_json(_get(tx, caller, file_id)))


@router.delete("/{file_id}", summary="Delete a file")
async def delete_file(file_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    file = await run_in_threadpool(_forget, services, caller, file_id)
    if file is not None:
        # Bytes last: a crash in between leaves an unreferenced object for retention to delete.
        await services.storage_threads.run(lambda: services.objects.delete(file.key))
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})


@router.get("/{file_id}/content", summary="Download a file, or a range of it")
async def get_file_content(
    file_id: str,
    services: ServicesDep,
    caller: CallerDep,
    range: Annotated[str | None, Header()] = None,
) -> Response:
    file = await run_in_threadpool(_find, services, caller, file_id)
    storage = services.storage_threads
    try:
        part = parse_range(range, file.size_bytes)
    except Unsatisfiable:
        return _unsatisfiable(file)
    # Before the status is sent, while an error can still be reported.
    if await storage.run(lambda: services.objects.head(file.key)) is None:
        raise _no_such_file(file.id)
    headers = {
        "accept-ranges": "bytes",
        "etag": f'"{file.sha256}"',
        "content-disposition": _attachment(file.filename),
    }
    if part is None:
        headers["content-length"] = str(file.size_bytes)
        content = storage.iterate(services.objects.stream(file.key))
        return StreamingResponse(content, 200, headers, media_type=CONTENT_TYPE)
    headers |= {"content-length": str(part.end - part.start), "content-range": part.content_range}
    content = storage.iterate(services.objects.stream(file.key, part.start, part.end))
    return StreamingResponse(content, 206, headers, media_type=CONTENT_TYPE)


def _find(services: Services, caller: Caller, file_id: str) -> File:
    with services.store.snapshot() as tx:
        return _get(tx, caller, file_id)


def _forget(services: Services, caller: Caller, file_id: str) -> File | None:
    """The file, whose bytes may go. None: an unfinished job reads them; retention deletes them after it."""
    with services.store.transaction() as tx:
        file = tx.files.get_to_delete(caller.tenant_id, file_id, tx.now())
        if file is None:
            raise _no_such_file(file_id)
        if tx.jobs.reading(caller.tenant_id, file_id) is not None:
            tx.files.expire(caller.tenant_id, file_id, tx.now())
            return None
        tx.files.delete(caller.tenant_id, file_id)
    return file


def _get(tx: Transaction, caller: Caller, file_id: str, param: str = "id") -> File:
    file = tx.files.get(caller.tenant_id, file_id, tx.now())
    if file is None:
        raise _no_such_file(file_id, param)
    return file


def _no_such_file(file_id: str, param: str = "id") -> NotFound:
    return NotFound(f"No such File object: {file_id}", param=param)


def _attachment(filename: str) -> str:
    """A Content-Disposition (RFC 6266) under the client's name, and one in ASCII for older clients."""
    plain = "".join(letter if " " <= letter < "\x7f" and letter not in '"\\' else "_" for letter in filename)
    header = f'attachment; filename="{plain}"'
    return header if plain == filename else f"{header}; filename*=UTF-8''{quote(filename, safe='')}"


def _unsatisfiable(file: File) -> Response:
    body = error_body("The range begins beyond the end of the file.", "invalid_request_error", param="Range")
    return JSONResponse(body, 416, {"content-range": f"bytes */{file.size_bytes}"})
