"""The files routes: upload, list, describe, download, delete."""

from typing import Annotated, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from api.access import Caller
from api.bodies.files import FileObject, file_json
from api.bodies.objects import DeletedFile, FilePage
from api.dependencies import CallerDep, ServicesDep, list_json
from api.openai import partial_output
from api.openai.ranges import Unsatisfiable, parse_range, ranged, unsatisfiable
from api.openai.upload_forms import keep_upload, read_form, reading_form
from api.services.services import Services
from nightshift.errors import InvalidRequest, NotFound, ObjectNotFound
from nightshift.jobs.files import File, FilePurpose
from nightshift.lifecycle.admission import check_room
from nightshift.process import failpoints
from nightshift.store import Transaction

router = APIRouter(prefix="/v1/files", tags=["OpenAI"])

FILES_LIMIT: Final = 10_000


@router.post("", summary="Upload a file", response_model=FileObject)
async def create_file(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    await run_in_threadpool(_check_room, services, caller)  # before the body is read
    async with reading_form(request) as form:
        upload = read_form(form, services.settings.api)
        file = await services.storage_threads.for_tenant(caller.tenant_id).run(
            lambda: keep_upload(services.store, services.objects, upload, caller.tenant_id, caller.quotas)
        )
    return JSONResponse(file_json(file))


@router.get("", summary="List files", response_model=FilePage)
def list_files(
    services: ServicesDep,
    caller: CallerDep,
    purpose: FilePurpose | None = None,
    limit: Annotated[int, Query(ge=1, le=FILES_LIMIT)] = FILES_LIMIT,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    with services.store.snapshot() as tx:
        files = tx.files.list(
            caller.tenant_id,
            tx.now(),
            limit=limit + 1,
            after=None if after is None else _get(tx, caller, after, param="after"),
            purpose=purpose,
            newest_first=order == "desc",
        )
    return JSONResponse(list_json([file_json(file) for file in files], limit))


@router.get("/{file_id}", summary="Describe a file", response_model=FileObject)
async def get_file(file_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    partial = await partial_output.find(services, caller, file_id)
    if partial is not None:
        return JSONResponse(await partial_output.described(partial))
    return JSONResponse(file_json(await run_in_threadpool(_find, services, caller, file_id)))


@router.delete("/{file_id}", summary="Delete a file", response_model=DeletedFile)
async def delete_file(file_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    file = await run_in_threadpool(_forget, services, caller, file_id)
    if file is not None:
        failpoints.hit("api.file_forgotten")
        # Bytes last: a crash in between leaves an unreferenced object for retention to delete.
        await services.storage_threads.for_tenant(caller.tenant_id).run(
            lambda: services.objects.delete(file.key)
        )
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})


@router.get("/{file_id}/content", summary="Download a file, or a range of it")
async def get_file_content(
    file_id: str,
    services: ServicesDep,
    caller: CallerDep,
    range: Annotated[str | None, Header()] = None,
    after_line: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    partial = await partial_output.find(services, caller, file_id)
    if partial is not None:
        return await partial_output.content(partial, range, after_line)
    if after_line is not None:
        raise InvalidRequest(
            "Invalid 'after_line': it is for the partial output of a batch. Of a file, read a Range.",
            param="after_line",
        )
    file = await run_in_threadpool(_find, services, caller, file_id)
    storage = services.storage_threads.for_tenant(caller.tenant_id)
    try:
        part = parse_range(range, file.size_bytes)
    except Unsatisfiable:
        return unsatisfiable(file.size_bytes)
    start, end = (0, None) if part is None else (part.start, part.end)
    try:
        # Before the status is sent: what is open stays readable when the file is deleted.
        content = await storage.begun(services.objects.stream(file.key, start, end))
    except ObjectNotFound as error:
        raise _no_such_file(file.id) from error
    headers = {"etag": f'"{file.sha256}"', "content-disposition": _attachment(file.filename)}
    length = file.size_bytes if part is None else part.end - part.start
    return ranged(content, length, part, headers)


def _check_room(services: Services, caller: Caller) -> None:
    with services.store.snapshot() as tx:
        check_room(tx, caller.tenant_id, caller.quotas, size_bytes=1)


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
