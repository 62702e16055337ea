"""One request, one answer: accepting an online job and waiting for what is recorded of it.

    accept ──► doorbell ──► stream of deltas ─ ─ ─ ─ ─ ─ ┐ a convenience: may be late, cut off or away
                 └────────► the database, every moment ──┴─► the recorded outcome: the only one that counts

Whoever stops waiting (a client that hangs up, a deadline) stops the job, so that its slot becomes free.
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
from api.services import Services
from nightshift.broker.token_streams import BrokenStream, Delta, StreamReader
from nightshift.errors import DatabaseUnavailable, NightshiftError
from nightshift.jobs import Answer, Job, JobState, JsonObject, NewJob, StopReason, Usage
from nightshift.lifecycle import transitions
from nightshift.lifecycle.transitions import Submitted
from nightshift.processes import failpoints
from nightshift.store import Transaction

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # while deltas flow: between looks at the clock and at the client
POLL_S: Final = 0.2  # between looks into the database when no stream says that there is something to see

Moment = Delta | None  # a piece of an answer; or nothing new here: time to look into the database
Gone = Callable[[], Awaitable[bool]]  # whether the client has hung up


@dataclass(frozen=True)
class Waiting:
    """An accepted request whose answer somebody waits for."""

    tenant_id: str
    job: Job
    shard_id: str

    @classmethod
    def on(cls, submitted: Submitted) -> "Waiting":
        assert submitted.shard_id is not None, "only an online job is waited for like this"
        return cls(submitted.job.tenant_id, submitted.job, submitted.shard_id)


def accept(services: Services, new: NewJob, body: JsonObject) -> Waiting:
    """Record an online request and ring for it. Raises UnknownModel, TooManyRequests, DatabaseUnavailable.

    When it returns, the request will be run, whatever happens to Redis.
    """

    def submit(tx: Transaction) -> Submitted:
        submitted = services.submitter.submit_online(tx, new, body, tx.now())
        failpoints.hit("api.before_commit")
        return submitted

    submitted = services.store.run(submit)
    failpoints.hit("api.committed")
    services.doorbell.ring(submitted.rings)
    return Waiting.on(submitted)


async def answer(services: Services, waiting: Waiting, gone: Gone) -> Answer:
    """Wait for the recorded outcome. Raises WaitedTooLong, ClientDisconnect; then the job is stopped."""
    async with stopping_if_abandoned(services, waiting):
        async with aclosing(follow(services, waiting, gone)) as entries:
            async for entry in entries:
                if isinstance(entry, Answer):
                    return entry
    raise AssertionError("follow ends with an outcome or an exception")


async def follow(
    services: Services, waiting: Waiting, gone: Gone
) -> AsyncGenerator[Delta | Answer | None, None]:
    """Deltas as they come and, as the last one, the recorded outcome. None every now and then in between.

    Raises WaitedTooLong and ClientDisconnect.
    """
    clock = asyncio.get_running_loop().time
    waits_until_s = clock() + services.settings.api.online_wait_s
    looks_at_s = clock() + LOOK_S
    async with aclosing(moments(services.streams, waiting.shard_id)) as coming:
        async for moment in coming:
            if moment is None:
                outcome = await run_in_threadpool(_outcome, services, waiting)
                if outcome is not None:
                    yield outcome
                    return
            yield moment
            if moment is None or clock() >= looks_at_s:
                looks_at_s = clock() + LOOK_S
                if await gone():
                    raise ClientDisconnect
                if clock() >= waits_until_s:
                    raise WaitedTooLong


async def until_ended(services: Services, job: Job, shard_id: str | None, wait_s: float, gone: Gone) -> None:
    """Hold until the job has ended, the time is up or the client has gone. The job goes on either way."""
    clock = asyncio.get_running_loop().time
    waits_until_s = clock() + wait_s
    async with aclosing(moments(services.streams, shard_id)) as coming:
        async for moment in coming:
            if moment is None and (await run_in_threadpool(_has_ended, services, job) or await gone()):
                return
            if clock() >= waits_until_s:
                return


async def moments(
    streams: StreamReader, shard_id: str | None, poll_s: float = POLL_S
) -> AsyncGenerator[Moment, None]:
    """Deltas of a shard as they arrive, and None at least once a second. Never ends.

    Without a shard, without Redis, and once the stream has ended or makes no sense, None comes at regular
    intervals.
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


async def _entries(streams: StreamReader, shard_id: str) -> AsyncGenerator[Moment, None]:
    async for entry in streams.read(shard_id):
        yield entry if isinstance(entry, Delta) else None


@asynccontextmanager
async def stopping_if_abandoned(services: Services, waiting: Waiting) -> AsyncIterator[None]:
    """If the block is left by an exception (cancellation included), nobody waits any more: stop the job."""
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True):
            await run_in_threadpool(stop, services, waiting.job)
        raise


def stop(services: Services, job: Job) -> None:
    """Free a job's slot. One that has ended meanwhile stays as it is."""
    try:
        stopped = services.store.run(
            lambda tx: transitions.request_stop(tx, job, StopReason.CANCELLED, tx.now())
        )
    except DatabaseUnavailable:
        # Its completion window is not much longer than the wait was; the scheduler ends it then.
        log.warning("an abandoned request was not stopped", extra={"action": "stop_failed", "job": job.id})
        return
    if stopped:
        services.doorbell.hint()


def _has_ended(services: Services, job: Job) -> bool:
    try:
        with services.store.snapshot() as tx:
            return tx.jobs.fetch(job.id).state.is_terminal
    except DatabaseUnavailable:
        log.warning("waiting without the database", extra={"action": "outcome_unknown"})
        return False


def _outcome(services: Services, waiting: Waiting) -> Answer | None:
    """What is recorded; None while the job goes on, or the database cannot be asked."""
    try:
        with services.store.snapshot() as tx:
            # In this order: a job seen as ended has its answer, if it has one, in sight.
            job = tx.jobs.get(waiting.tenant_id, waiting.job.id)
            recorded = tx.shards.online_result(waiting.tenant_id, waiting.job.id)
    except DatabaseUnavailable:
        log.warning("waiting without the database", extra={"action": "outcome_unknown"})
        return None
    if recorded is not None:
        return recorded
    if job is not None and job.state.is_terminal:
        return _ended_without_answer(job)
    return None


def _ended_without_answer(job: Job) -> Answer:
    """A job that was stopped or given up, in the shape of an answer."""
    why: NightshiftError
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
