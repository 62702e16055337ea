"""Accepts an online job and waits for its recorded outcome.

    accept ──► ring ──► stream of deltas ─ ─ ─ ─ ─ ┐ best effort: may be late, cut off or away
                └─────► the database, polled ──────┴─► the recorded outcome: the only one that counts

When the client disconnects or its deadline passes, the job is stopped, which frees its slot.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio
import redis
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from api.responses.errors import RequestEnded, WaitedTooLong, error_json
from api.services.services import Services
from nightshift.broker.token_streams import BrokenStream, Delta, StreamReader
from nightshift.errors import DatabaseUnavailable, NightshiftError, NotFound
from nightshift.jobs import Answer, Job, JobState, RecordedAnswer, StopReason, Usage
from nightshift.lifecycle import transitions
from nightshift.lifecycle.transitions import Submitted

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # between checks of the clock and the client while deltas arrive
POLL_S: Final = 0.2  # between reads of the database without a stream

StreamItem = Delta | None  # None: read the database
Gone = Callable[[], Awaitable[bool]]  # whether the client has disconnected


@dataclass(frozen=True)
class Waiting:
    """An accepted request and its waiting client."""

    tenant_id: str
    job: Job
    shard_id: str

    @classmethod
    def on(cls, submitted: Submitted) -> "Waiting":
        assert submitted.shard_id is not None, "only an online job is waited for like this"
        return cls(submitted.job.tenant_id, submitted.job, submitted.shard_id)


async def answer(services: Services, waiting: Waiting, gone: Gone) -> RecordedAnswer:
    """Waits for the recorded outcome. Raises WaitedTooLong or ClientDisconnect after stopping the job."""
    async with stopping_if_abandoned(services, waiting):
        async with aclosing(follow(services, waiting, gone)) as entries:
            async for entry in entries:
                if isinstance(entry, RecordedAnswer):
                    return entry
    raise AssertionError("follow ends with an outcome or an exception")


async def follow(
    services: Services, waiting: Waiting, gone: Gone
) -> AsyncGenerator[Delta | RecordedAnswer | None, None]:
    """Deltas as they arrive, None in between, and last the recorded outcome.

    Raises WaitedTooLong and ClientDisconnect.
    """
    clock = asyncio.get_running_loop().time
    waits_until_s = clock() + services.settings.api.online_wait_s
    looks_at_s = clock() + LOOK_S
    async with aclosing(poll_or_deltas(services.streams, waiting.shard_id)) as items:
        async for item in items:
            if item is None:
                outcome = await run_in_threadpool(outcome_of, services, waiting)
                if outcome is not None:
                    yield outcome
                    return
            yield item
            if item is None or clock() >= looks_at_s:
                looks_at_s = clock() + LOOK_S
                if await gone():
                    raise ClientDisconnect
                if clock() >= waits_until_s:
                    raise WaitedTooLong


async def until_ended(services: Services, job: Job, shard_id: str | None, wait_s: float, gone: Gone) -> None:
    """Waits until the job has ended, the time is up or the client has disconnected. The job goes on."""
    clock = asyncio.get_running_loop().time
    waits_until_s = clock() + wait_s
    async with aclosing(poll_or_deltas(services.streams, shard_id)) as items:
        async for item in items:
            if item is None and (await run_in_threadpool(_has_ended, services, job) or await gone()):
                return
            if clock() >= waits_until_s:
                return


async def poll_or_deltas(
    streams: StreamReader, shard_id: str | None, poll_s: float = POLL_S
) -> AsyncGenerator[StreamItem, None]:
    """A shard's deltas, and None at least once a second, without end.

    Without a shard or Redis, or after the stream's end or break, None comes every `poll_s`.
    """
    if shard_id is not None:
        try:
            async with aclosing(_entries(streams, shard_id)) as entries:
                async for entry in entries:
                    yield entry
        except (redis.RedisError, BrokenStream) as error:
            log.warning("stream lost", extra={"action": "stream_lost", "reason": str(error)})
    while True:
        await asyncio.sleep(poll_s)
        yield None


async def _entries(streams: StreamReader, shard_id: str) -> AsyncGenerator[StreamItem, None]:
    async for entry in streams.read(shard_id):
        yield entry if isinstance(entry, Delta) else None


@asynccontextmanager
async def stopping_if_abandoned(services: Services, waiting: Waiting) -> AsyncIterator[None]:
    """Stops the job if the block raises or is cancelled."""
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True):
            await run_in_threadpool(stop, services, waiting.job)
        raise


def stop(services: Services, job: Job) -> None:
    """Stops an unfinished job, which frees its slot."""
    try:
        stopped = services.store.run(
            lambda tx: transitions.request_stop(tx, job, StopReason.CANCELLED, tx.now())
        )
    except DatabaseUnavailable:
        # The scheduler stops it at the end of its completion window, soon after this wait.
        log.warning("an abandoned request was not stopped", extra={"action": "stop_failed", "job": job.id})
        return
    if stopped:
        services.ring_sender.hint()


def _has_ended(services: Services, job: Job) -> bool:
    try:
        with services.store.snapshot() as tx:
            current = tx.jobs.get(job.tenant_id, job.id)
            return current is None or current.state.is_terminal  # None: deleted meanwhile
    except DatabaseUnavailable:
        log.warning("waiting without the database", extra={"action": "outcome_unknown"})
        return False


def outcome_of(services: Services, waiting: Waiting) -> RecordedAnswer | None:
    """The recorded outcome; None if the job goes on or the database is away."""
    try:
        with services.store.snapshot() as tx:
            # Job first: one read as ended has its answer, if any, committed.
            job = tx.jobs.get(waiting.tenant_id, waiting.job.id)
            recorded = tx.shards.online_result(waiting.tenant_id, waiting.job.id)
    except DatabaseUnavailable:
        log.warning("waiting without the database", extra={"action": "outcome_unknown"})
        return None
    if recorded is not None or (job is not None and not job.state.is_terminal):
        return recorded
    return RecordedAnswer.from_answer(ended_without_answer(job))


def ended_without_answer(job: Job | None) -> Answer:
    """The answer for a deleted, stopped or failed job."""
    why: NightshiftError
    if job is None:
        return Answer(404, error_json(NotFound("The request was deleted.")), Usage())
    if job.state is JobState.CANCELLED:
        return Answer(409, error_json(RequestEnded()), Usage())
    if job.state is JobState.EXPIRED:
        why = WaitedTooLong("The request was not run within its completion window.", code="request_expired")
        return Answer(504, error_json(why), Usage())
    first = job.errors[0] if job.errors else None
    why = NightshiftError(
        first.message if first else "The request failed.", code=first.code if first else None
    )
    return Answer(500, error_json(why), Usage())
