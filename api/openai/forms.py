"""Reads multipart forms.

Starlette parses a form in any order of its parts, with at most 1 MiB of a file in memory and the rest in a
temporary one.
"""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from nightshift.errors import InvalidRequest, RequestTooLarge, StorageUnavailable

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
