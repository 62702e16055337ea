"""A job's events, live and resumable without gap or duplicate.

The database numbers recorded events 1, 2, 3 …; an online job's deltas arrive over a stream and are counted.
An event's id is its position in both, `{recorded}-{deltas}`, where a client that sends it continues.
"""

import json
import logging
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Annotated, Final

from fastapi import APIRouter, Header
from fastapi.responses import Response
from sse_starlette import ServerSentEvent
from starlette.concurrency import run_in_threadpool

from api.dependencies import CallerDep, ServicesDep, get_job
from api.jobs.online import StreamItem, poll_or_deltas
from api.responses.streams import event, event_source
from api.responses.times import seconds
from api.services.services import Services
from nightshift.broker.token_streams import Delta
from nightshift.errors import DatabaseUnavailable, InvalidRequest
from nightshift.jobs import Job, JobKind, JobState, JsonObject
from nightshift.store.jobs.events import Event

log = logging.getLogger(__name__)

EVENTS_READ: Final = 500  # at a time from the database
POLL_S: Final = 0.5  # progress is sent at most twice a second

DELTA: Final = "job.delta"
PROGRESS: Final = "job.progress"
TERMINAL: Final = frozenset(f"job.{state}" for state in JobState if state.is_terminal)

_PLACE: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


@dataclass(frozen=True)
class Place:
    """A reader's position: the last recorded event's number, and the deltas received."""

    recorded: int = 0
    deltas: int = 0

    @classmethod
    def parse(cls, last_event_id: str | None) -> "Place":
        """Reads the `Last-Event-ID` header. Raises InvalidRequest."""
        if not last_event_id:
            return cls()
        match = _PLACE.fullmatch(last_event_id)
        if match is None:
            raise _no_id_of_this_stream()
        return cls(int(match[1]), int(match[2]))

    def check(self, last_seq: int) -> None:
        """Raises InvalidRequest for a position beyond the job's newest event."""
        if self.recorded > last_seq:
            raise _no_id_of_this_stream()

    def __str__(self) -> str:
        return f"{self.recorded}-{self.deltas}"


def _no_id_of_this_stream() -> InvalidRequest:
    return InvalidRequest("Last-Event-ID is not an id of this stream.", param="Last-Event-ID")


@dataclass(frozen=True)
class _Recorded:
    """Recorded events after a position."""

    events: Sequence[Event]
    job_has_ended: bool


async def follow_job(
    services: Services, job: Job, shard_id: str | None, place: Place
) -> AsyncGenerator[ServerSentEvent, None]:
    """A job's events after `place`, up to and including the terminal one."""
    deltas_read = 0
    ending: Event | None = None  # sent after the last delta
    async with aclosing(_items(services, shard_id)) as items:
        async for item in items:
            if isinstance(item, Delta):
                deltas_read += 1
                if deltas_read > place.deltas:
                    place = replace(place, deltas=deltas_read)
                    yield event(json.dumps(item.data), id=str(place), type=DELTA)
                continue
            if ending is not None:
                break
            recorded = await run_in_threadpool(_recorded_after, services, job, place)
            if recorded.job_has_ended and not recorded.events:
                return
            for passed in _without_overtaken(recorded.events):
                if passed.type in TERMINAL:
                    ending = passed
                    break
                place = replace(place, recorded=passed.seq)
                yield _sse_event(job, passed, place)
            if ending is not None and shard_id is None:
                break
    assert ending is not None, "the items never end by themselves"
    yield _sse_event(job, ending, replace(place, recorded=ending.seq))


async def _items(services: Services, shard_id: str | None) -> AsyncGenerator[StreamItem, None]:
    """`poll_or_deltas`, after a first read of the database."""
    yield None
    async with aclosing(poll_or_deltas(services.streams, shard_id, POLL_S)) as items:
        async for item in items:
            yield item


def _recorded_after(services: Services, job: Job, place: Place) -> _Recorded:
    try:
        with services.store.snapshot() as tx:
            # Job first: one read as ended has all its events committed.
            current = tx.jobs.get(job.tenant_id, job.id)
            has_ended = current is None or current.state.is_terminal  # None: deleted meanwhile
            return _Recorded(tx.events.after(job.tenant_id, job.id, place.recorded, EVENTS_READ), has_ended)
    except DatabaseUnavailable:
        log.warning("following without the database", extra={"action": "events_unknown", "job": job.id})
        return _Recorded((), job_has_ended=False)


def _without_overtaken(events: Sequence[Event]) -> list[Event]:
    """The events but for progress that a later one of them replaces."""
    newest = max((event.seq for event in events if event.type == PROGRESS), default=0)
    return [event for event in events if event.type != PROGRESS or event.seq == newest]


def _sse_event(job: Job, recorded: Event, place: Place) -> ServerSentEvent:
    data: JsonObject = {"id": job.id, "type": recorded.type, "created_at": seconds(recorded.created_at)}
    return event(json.dumps(data | recorded.data), id=str(place), type=recorded.type)


router = APIRouter(prefix="/v1/jobs", tags=["Jobs"])


@router.get("/{job_id}/events", summary="Follow a job; resumes after Last-Event-ID")
def follow_events(
    job_id: str,
    services: ServicesDep,
    caller: CallerDep,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    place = Place.parse(last_event_id)
    with services.store.snapshot() as tx:
        job = get_job(tx, caller, job_id)
        place.check(tx.events.last_seq(job.id))
        shards = tx.shards.of_job(job.id, limit=1) if job.kind is JobKind.ONLINE else ()
    return event_source(follow_job(services, job, shards[0].id if shards else None, place))
