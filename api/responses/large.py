"""Answers that are sent as they are stored: in pieces, between which the event loop does other work."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from nightshift.jobs import RecordedAnswer

PIECE_BYTES: Final = 256 * 1024  # sent at a time
JSON_TYPE: Final = "application/json"


async def recorded(answer: RecordedAnswer) -> Response:
    """An answer with its status."""
    encode = answer.text.encode
    return whole(await run_in_threadpool(encode) if answer.is_large else encode(), answer.status_code)


def whole(content: bytes, status_code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON that is there already."""
    headers = {**(headers or {}), "content-length": str(len(content))}
    if len(content) <= PIECE_BYTES:
        return Response(content, status_code, headers, media_type=JSON_TYPE)
    return StreamingResponse(in_pieces(content), status_code, headers, media_type=JSON_TYPE)


async def in_pieces(content: bytes) -> AsyncIterator[bytes]:
    """A client that reads quickly keeps no piece waiting, so that sending alone would not let others run."""
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]
        await asyncio.sleep(0)
