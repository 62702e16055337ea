"""A streamed answer: deltas as they arrive, then the rest of the recorded answer.

Nothing is sent before the first event, so an early failure gets its own status; the stream begins without
text only after `STREAM_START_S`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi.responses import Response
from sse_starlette import ServerSentEvent
from starlette.concurrency import run_in_threadpool

from api.jobs.online import Gone, Waiting, follow, stopping_if_abandoned
from api.openai.transcript import MalformedDelta, Transcript
from api.responses.errors import error_json
from api.responses.streams import PIECE_BYTES, comment, event, event_source, in_pieces, recorded
from api.services.services import Services
from nightshift.endpoints.texts.generation import GenerationRequest, TextEndpoint
from nightshift.endpoints.texts.streams import AnswerEvents, AnswerHead, CallPiece, Piece, StreamEvent
from nightshift.errors import NightshiftError
from nightshift.jobs import Job, JsonObject, RecordedAnswer

STILL_WAITING: Final = None  # begins a stream that has no event to begin with
STREAM_START_S: Final = 10.0  # proxies drop silent connections


class Refused(Exception):
    """The request failed before anything was sent."""

    def __init__(self, outcome: RecordedAnswer) -> None:
        self.outcome = outcome


@dataclass(frozen=True)
class Wanted:
    """The answer to be streamed."""

    endpoint: TextEndpoint
    request: GenerationRequest
    also: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the recorded answer that the API knows, and not the worker."""
    outlives_client: bool = False
    """Whether it is made to its end without its client, who is told of it at once."""

    def head(self, job: Job) -> AnswerHead:
        created_s = int(job.created_at.timestamp())
        return AnswerHead(self.endpoint.answer_id(job.id), created_s, job.priority)

    def events(self, job: Job) -> AnswerEvents:
        return self.endpoint.events(self.request, self.head(job))

    def kept(self, services: Services, waiting: Waiting) -> AbstractAsyncContextManager[None]:
        """Stops what the client no longer waits for, where that is to be."""
        return nullcontext() if self.outlives_client else stopping_if_abandoned(services, waiting)


Pick = Callable[[StreamEvent], StreamEvent | None]
"""An event as it is sent; None: it is not."""


async def streamed(
    services: Services, waiting: Waiting, wanted: Wanted, gone: Gone, pick: Pick | None = None
) -> Response:
    """The answer as server-sent events, or an error with its status if it fails first."""
    events = _events_or_error(services, waiting, wanted, gone)
    if pick is not None:
        return event_source(_joined(STILL_WAITING, _picked(events, pick)))
    try:
        first = await anext(events)
    except Refused as refused:
        return await recorded(refused.outcome)
    return event_source(_joined(first, events))


async def _picked(
    events: AsyncGenerator[StreamEvent | None, None], pick: Pick
) -> AsyncGenerator[StreamEvent | None, None]:
    async with aclosing(events):
        async for part in events:
            if part is not None and (sent := pick(part)) is not None:
                yield sent


async def _joined(
    first: StreamEvent | None, rest: AsyncGenerator[StreamEvent | None, None]
) -> AsyncGenerator[ServerSentEvent | bytes, None]:
    async with aclosing(rest):
        yield comment("waiting") if first is None else event(first.data, type=first.type)
        async for part in rest:
            assert part is not None, "only the first may be missing"
            if len(part.data) <= PIECE_BYTES:
                yield event(part.data, type=part.type)
                continue
            encoded = await run_in_threadpool(event(part.data, type=part.type).encode)
            async for piece in in_pieces(encoded):
                yield piece


async def _events_or_error(
    services: Services, waiting: Waiting, wanted: Wanted, gone: Gone
) -> AsyncGenerator[StreamEvent | None, None]:
    """`_events`, with an error after the beginning as the last event."""
    events = wanted.events(waiting.job)
    has_begun = False
    try:
        async with aclosing(_events(services, waiting, wanted, events, gone)) as built:
            async for part in built:
                has_begun = True
                yield part
    except NightshiftError as error:
        if not has_begun:
            raise
        for ending in events.interrupted(error_json(error)):
            yield ending


async def _events(
    services: Services, waiting: Waiting, wanted: Wanted, events: AnswerEvents, gone: Gone
) -> AsyncGenerator[StreamEvent | None, None]:
    """The stream's events, the first perhaps STILL_WAITING. Raises Refused before the first one,
    NightshiftError at any time.
    """
    transcripts = [Transcript() for _ in range(wanted.request.num_choices)]
    opening = events.opening()
    clock = asyncio.get_running_loop().time
    opens_at_s = clock() + STREAM_START_S
    has_begun = wanted.outlives_client
    for early in opening if has_begun else ():
        yield early
    async with wanted.kept(services, waiting):
        async with aclosing(follow(services, waiting, gone)) as entries:
            async for entry in entries:
                if isinstance(entry, RecordedAnswer):
                    break
                choice, new = (0, None) if entry is None else _take_delta(transcripts, events, entry.data)
                if not has_begun and (new or clock() >= opens_at_s):
                    for part in opening if new or opening else (STILL_WAITING,):
                        yield part
                    has_begun = True
                if new:
                    for part in _shown(events, choice, new):
                        yield part
    assert isinstance(entry, RecordedAnswer), "follow ends with an outcome or an exception"
    if not has_begun:
        if not entry.succeeded:
            raise Refused(entry)
        for part in opening:
            yield part
    ending = _ending(wanted, events, transcripts, entry)
    if entry.is_large:
        while (late := await run_in_threadpool(next, ending, None)) is not None:
            yield late
    for part in ending:
        yield part


def _shown(events: AnswerEvents, choice: int, new: str | Piece | CallPiece) -> Sequence[StreamEvent]:
    if isinstance(new, str):
        return events.reasoning(choice, new)
    return events.call_piece(choice, new) if isinstance(new, CallPiece) else events.piece(choice, new)


def _take_delta(
    transcripts: Sequence[Transcript], events: AnswerEvents, delta: JsonObject
) -> tuple[int, str | Piece | CallPiece | None]:
    """A delta's choice and new part; text of a thought is a `str`. A malformed delta is skipped: the record
    has its text.
    """
    index = delta.get("index", 0)
    if not isinstance(index, int) or not 0 <= index < len(transcripts):
        return 0, None
    try:
        if "call" in delta:
            return index, transcripts[index].take_call(delta) if events.has_live_calls else None
        if "thought" in delta:
            return index, transcripts[index].take_thought(delta)
        return index, transcripts[index].take(delta)
    except MalformedDelta:
        return index, None


def _ending(
    wanted: Wanted, events: AnswerEvents, transcripts: Sequence[Transcript], outcome: RecordedAnswer
) -> Iterator[StreamEvent]:
    """The events after the recorded outcome: those that are missing of each choice, and the end."""
    body, endpoint = outcome.body, wanted.endpoint
    if not outcome.succeeded:
        yield from events.failed(body)
        return
    body |= wanted.also
    wholes, calls, thoughts = endpoint.pieces(body), endpoint.calls(body), endpoint.reasoning(body)
    for choice, (whole, transcript) in enumerate(zip(wholes, transcripts, strict=True)):
        thought = transcript.rest_of_thought(thoughts[choice])
        if thought:
            yield from events.reasoning(choice, thought)
        rest = transcript.rest(whole)
        if rest:
            yield from events.piece(choice, rest)
        for part in transcript.rest_of_calls(calls[choice]):
            yield from events.call_piece(choice, part)
        yield from events.closing(choice, body)
    yield from events.ending(body)
