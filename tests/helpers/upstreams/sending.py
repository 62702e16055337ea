"""Answers as they go over the line, well or as a behaviour has them."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from aiohttp import web

from tests.helpers.upstreams.batching import Sequence
from tests.helpers.upstreams.behaviours import AS_IT_IS, Behaviour
from tests.helpers.upstreams.bodies import Generation, Json

PADDING: Final = b" " * 65536


class Cut(Exception):
    """The connection is to be closed, in the middle of an answer."""


async def send(
    request: web.BaseRequest, behaviour: Behaviour, body: bytes, released: asyncio.Event
) -> web.StreamResponse:
    """An answer of known length. Raises Cut."""
    if behaviour.holds_at is not None:
        await released.wait()
    if behaviour.cuts_at == 0:
        raise Cut
    headers = {"content-type": "application/json", **behaviour.headers}
    if behaviour.cuts_at is None and not behaviour.padding_bytes:
        return web.Response(body=body, status=behaviour.status, headers=headers)
    response = web.StreamResponse(status=behaviour.status, headers=headers)
    response.content_length = len(body) + behaviour.padding_bytes
    await response.prepare(request)
    if behaviour.cuts_at is not None:
        await response.write(body[: behaviour.cuts_at])
        raise Cut
    await response.write(body)
    for start in range(0, behaviour.padding_bytes, len(PADDING)):
        await response.write(PADDING[: behaviour.padding_bytes - start])
    return response


async def stream(
    request: web.BaseRequest, behaviour: Behaviour, events: AsyncIterator[bytes], released: asyncio.Event
) -> web.StreamResponse:
    """Server-sent events. Raises Cut."""
    if behaviour.cuts_at == 0:
        raise Cut
    headers = {"content-type": "text/event-stream; charset=utf-8", **behaviour.headers}
    response = web.StreamResponse(status=behaviour.status, headers=headers)
    await response.prepare(request)
    number = 0
    async for event in events:
        if number == behaviour.holds_at:
            await released.wait()
        if number == behaviour.cuts_at:
            raise Cut
        is_replaced = number == behaviour.event_at and behaviour.event is not None
        await response.write(as_bytes(behaviour.event) if is_replaced else b"data: " + event + b"\n\n")
        number += 1
    await response.write_eof()
    return response


async def events(
    generation: Generation, behaviour: Behaviour, id: str, sequence: Sequence
) -> AsyncIterator[bytes]:
    """The events of a stream, each as its token is made."""
    if (opening := generation.opening(id)) is not None:
        await sequence.reaches(min(1, sequence.total))
        yield json_bytes(opening)
    for at in range(max(1, sequence.total)):
        await sequence.reaches(min(at + 1, sequence.total))
        for choice in generation.choices:
            if at < max(1, len(choice.answer.token_ids)):
                yield json_bytes(changed(generation.event(id, choice, at), behaviour))
    if behaviour.usage is not None and (closing := generation.closing(id)) is not None:
        yield json_bytes(changed(closing, behaviour))
    if behaviour.has_done:
        yield b"[DONE]"


def changed(answer: Json, behaviour: Behaviour) -> Json:
    """An answer or event with the counts and the finish reason of a behaviour."""
    if behaviour.usage != AS_IT_IS and "usage" in answer:
        answer["usage"] = behaviour.usage
    if behaviour.finish_reason != AS_IT_IS:
        for choice in answer.get("choices", ()):
            choice["finish_reason"] = choice["finish_reason"] and behaviour.finish_reason
    return answer


def close(request: web.BaseRequest) -> web.Response:
    """Closes the connection once what was written is sent."""
    if request.transport is not None:
        request.transport.close()
    return web.Response()


def answer_json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    headers = {"content-type": "application/json", **(headers or {})}
    return web.Response(body=json_bytes(body), status=status, headers=headers)


def as_bytes(text: str) -> bytes:
    """Bytes that a behaviour has on the line, which may be no UTF-8 (PEP 383)."""
    return text.encode(errors="surrogateescape")


def json_bytes(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
