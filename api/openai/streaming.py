"""A streamed answer: deltas as they arrive, then the rest of the recorded answer.

Nothing is sent before the first event, so an early failure gets its own status; the stream begins without
text only after `STREAM_START_S`.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from fastapi.responses import JSONResponse, Response
from sse_starlette import ServerSentEvent

from api.jobs.online import Gone, Waiting, follow, stopping_if_abandoned
from api.openai.chunks import DONE, Chunks, error_line
from api.openai.transcript import MalformedDelta, Piece, Transcript
from api.responses.errors import error_json
from api.responses.sse import comment, event, event_source
from api.services import Services
from nightshift.endpoints.generation import TextEndpoint
from nightshift.errors import NightshiftError
from nightshift.jobs import Answer, JsonObject

STILL_WAITING: Final = None  # begins a stream that has no event to begin with
STREAM_START_S: Final = 10.0  # proxies drop silent connections


class Refused(Exception):
    """The request failed before anything was sent."""

    def __init__(self, outcome: Answer) -> None:
        self.outcome = outcome


@dataclass(frozen=True)
class Wanted:
    """The options of a streamed answer."""

    endpoint: TextEndpoint
    num_choices: int
    usage: bool


async def streamed(services: Services, waiting: Waiting, wanted: Wanted, gone: Gone) -> Response:
    """The answer as server-sent events, or an error with its status if it fails first."""
    lines = _lines_or_error(services, waiting, wanted, gone)
    try:
        first = await anext(lines)
    except Refused as refused:
        return JSONResponse(refused.outcome.body, refused.outcome.status_code)
    return event_source(_joined(first, lines))


async def _joined(
    first: str | None, rest: AsyncGenerator[str | None, None]
) -> AsyncGenerator[ServerSentEvent, None]:
    async with aclosing(rest):
        yield comment("waiting") if first is None else event(first)
        async for line in rest:
            assert line is not None, "only the first may be missing"
            yield event(line)


async def _lines_or_error(
    services: Services, waiting: Waiting, wanted: Wanted, gone: Gone
) -> AsyncGenerator[str | None, None]:
    """`_lines`, with an error after the beginning as the last event."""
    has_begun = False
    try:
        async with aclosing(_lines(services, waiting, wanted, gone)) as lines:
            async for line in lines:
                has_begun = True
                yield line
    except NightshiftError as error:
        if not has_begun:
            raise
        yield error_line(error_json(error))


async def _lines(
    services: Services, waiting: Waiting, wanted: Wanted, gone: Gone
) -> AsyncGenerator[str | None, None]:
    """The stream's `data` lines, the first perhaps STILL_WAITING. Raises Refused before the first one,
    NightshiftError at any time.
    """
    chunks = Chunks.of(wanted.endpoint, waiting.job)
    transcripts = [Transcript() for _ in range(wanted.num_choices)]
    openings = chunks.openings(wanted.num_choices)
    clock = asyncio.get_running_loop().time
    opens_at_s = clock() + STREAM_START_S
    has_begun = False
    async with stopping_if_abandoned(services, waiting):
        async with aclosing(follow(services, waiting, gone)) as entries:
            async for entry in entries:
                if isinstance(entry, Answer):
                    break
                index, new = (0, None) if entry is None else _take_delta(transcripts, entry.data)
                if not has_begun and (new or clock() >= opens_at_s):
                    for line in openings if new or openings else (STILL_WAITING,):
                        yield line
                    has_begun = True
                if new:
                    yield chunks.piece(index, new)
    assert isinstance(entry, Answer), "follow ends with an outcome or an exception"
    if not has_begun:
        if not entry.succeeded:
            raise Refused(entry)
        for line in openings:
            yield line
    for line in _ending(chunks, transcripts, entry, wanted):
        yield line


def _take_delta(transcripts: Sequence[Transcript], delta: JsonObject) -> tuple[int, Piece | None]:
    """A delta's choice and new part. A malformed delta is skipped: the record has its text."""
    index = delta.get("index", 0)
    if not isinstance(index, int) or not 0 <= index < len(transcripts):
        return 0, None
    try:
        return index, transcripts[index].take(delta)
    except MalformedDelta:
        return index, None


def _ending(
    chunks: Chunks, transcripts: Sequence[Transcript], outcome: Answer, wanted: Wanted
) -> Iterator[str]:
    """After the recorded outcome: the missing text, the finish reasons, the token counts."""
    if not outcome.succeeded:
        yield error_line(outcome.body)
        return
    for index, (choice, transcript) in enumerate(zip(outcome.body["choices"], transcripts, strict=True)):
        rest = transcript.rest(chunks.recorded(choice))
        if rest:
            yield chunks.piece(index, rest)
        yield from chunks.calls(index, choice)
        yield chunks.closing(index, choice["finish_reason"])
    if wanted.usage:
        yield chunks.usage(outcome.body["usage"])
    yield DONE
