"""Runs online requests under their leases: tokens to the stream as they come, the answer to the database.

No thread per request: the engine's thread puts what it has into one outbox, and one publisher sends it on in
batches.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from nightshift import lifecycle
from nightshift.errors import DatabaseUnavailable, InvalidRequest
from nightshift.jobs import Answer, OnlineClaim, StopReason
from nightshift.logprobs import num_tokens
from nightshift.recovery import ONLINE_ROW
from nightshift.schemas import parse_request
from nightshift.store import Store, Transaction
from nightshift.streams import StreamWriter
from workers.heartbeat import Heartbeat
from workers.inference import Identity, Progress, body_chars, breakdown, refusal
from workers.model_server import Busy, Inference, ModelServer
from workers.models import Models
from workers.one_by_one import OneByOne
from workers.publisher import Publisher, Text
from workers.suspicion import Isolation

log = logging.getLogger(__name__)

# Making tokens of a long text takes a while; whoever claims for everybody must not wait for it.
PREPARED_ASIDE_CHARS = 20_000
PREPARING_MAX = 2


@dataclass
class _Told:
    """How much of a choice has been told so far."""

    characters: int = 0
    tokens: int = 0


@dataclass(eq=False)
class _Running:
    """A request in the engine. It is the holder of its lease."""

    claim: OnlineClaim
    runner: "OnlineRunner"
    told: dict[int, "_Told"] = field(default_factory=dict)  # by choice; the engine's thread alone counts
    tokens: int = 0  # generated; likewise
    is_inside: bool = False  # it counts as being in an engine
    cancelled_in: ModelServer | None = None  # which may still have it

    @property
    def inference_id(self) -> str:
        return f"{self.claim.lease.shard_id}@{self.claim.lease.term}"

    def lease_lost(self) -> None:
        self.runner.drop(self)

    def stop_requested(self, reason: StopReason) -> None:
        self.runner.stop_one(self)


class OnlineRunner:
    """All online requests of this worker."""

    def __init__(
        self,
        store: Store,
        models: Models,
        streams: StreamWriter,
        heartbeat: Heartbeat,
        on_end: Callable[[], None] = lambda: None,
        isolation: Isolation | None = None,
    ) -> None:
        """`on_end` is called, from any thread, whenever a request has left the engine."""
        self._isolation = isolation or Isolation()
        self._suspects = OneByOne(self._isolation, self._begin_alone, self._hand_back)
        self._on_end = on_end
        self._store = store
        self._models = models
        self._heartbeat = heartbeat
        self._lock = threading.Condition()
        self._running: dict[str, tuple[_Running, ModelServer]] = {}  # by inference id
        self._publisher = Publisher(store, streams, heartbeat)
        self._preparing = ThreadPoolExecutor(PREPARING_MAX, thread_name_prefix="prepare")

    @property
    def count(self) -> int:
        """Requests claimed and not ended."""
        return len(self._running) + len(self._suspects)

    def start(self) -> None:
        self._publisher.start()
        self._suspects.start()

    @property
    def is_alive(self) -> bool:
        """Whether the threads run that publish answers and let suspected requests in."""
        return self._publisher.is_alive and self._suspects.is_alive

    def run(self, claim: OnlineClaim, claimed_at_s: float) -> None:
        """Take a claimed request in. It ends with an answer, an error answer, or back in the queue."""
        running = _Running(claim, self)
        self._heartbeat.hold(claim.lease, running, claimed_at_s, lambda: running.tokens)
        if claim.job.stop_reason is not None:
            self._end(running, None)
        elif claim.runs_alone:
            self._suspects.put(running)
        elif body_chars(claim.body) > PREPARED_ASIDE_CHARS:
            self._preparing.submit(self._begin, running)
        else:
            self._begin(running)

    def _begin(self, running: _Running) -> None:
        try:
            self._enter(running)
            self._submit(running)
        except InvalidRequest as error:
            self._end(running, refusal(error))
        except Busy:
            self._hand_back(running)
        except Exception as error:  # what nobody foresaw ends this request, which would be held for ever
            log.exception("request broke", extra={"action": "request_broke", "job": running.claim.job.id})
            self._end(running, breakdown(f"{type(error).__name__}: {error}"))

    def _begin_alone(self, running: _Running) -> None:
        """Workers died with this request, and nothing else is in this one: write that down, then begin."""
        running.is_inside = True
        try:
            with self._store.transaction() as tx:
                may_begin = tx.dead_rows.journal(running.claim.lease, [ONLINE_ROW])
        except DatabaseUnavailable as error:
            log.info("request waits", extra={"action": "request_waits", "reason": error.message})
            may_begin = False
        except Exception as error:  # as in `_begin`
            log.exception("request broke", extra={"action": "request_broke", "job": running.claim.job.id})
            self._end(running, breakdown(f"{type(error).__name__}: {error}"))
            return
        if may_begin:
            self._begin(running)
        else:
            self._hand_back(running)

    def stop_one(self, running: _Running) -> None:
        """The request's job was told to stop."""
        if self._suspects.withdraw(running) or self._take_out(running):
            self._end(running, None)

    def drop(self, running: _Running) -> None:
        """The lease is lost: forget the request and say nothing."""
        self._suspects.withdraw(running)
        self._take_out(running)
        self._leave(running)

    def drain(self, wait_s: float) -> None:
        """Let what can still finish do so, hand the rest back, and stop."""
        self._preparing.shutdown(wait=True)
        self._suspects.stop()
        with self._lock:
            self._lock.wait_for(lambda: not self._running, timeout=wait_s)
            left = [running for running, _ in self._running.values()]
        for running in left:
            if self._take_out(running):
                self._hand_back(running)
        self._publisher.stop()

    def _submit(self, running: _Running) -> None:
        claim = running.claim
        identity = Identity(claim.job.id, int(claim.job.created_at.timestamp()))
        inference = Inference(
            id=running.inference_id,
            request=parse_request(claim.job.spec.endpoint, claim.body),
            identity=identity,
            priority=claim.job.priority,
            listener=lambda progress: self._hear(running, progress),
        )
        server = self._models.get(inference.request.model)
        with self._lock:
            self._running[running.inference_id] = (running, server)
        try:
            self._models.submit(inference)
        except Exception:
            self._forget(running)
            raise

    def _hear(self, running: _Running, progress: Progress) -> None:
        """On the engine's thread: note it and return."""
        running.tokens += len(progress.token_ids)
        if progress.text or progress.logprobs is not None:
            self._tell(running, progress)
        answer = breakdown(progress.failed) if progress.failed is not None else progress.answer
        if answer is not None and self._forget(running):
            self._end(running, answer)

    def _tell(self, running: _Running, progress: Progress) -> None:
        told = running.told.setdefault(progress.choice, _Told())
        shard_id, logprobs = running.claim.lease.shard_id, progress.logprobs
        self._publisher.say(
            Text(shard_id, progress.choice, told.characters, progress.text, told.tokens, logprobs)
        )
        told.characters += len(progress.text)
        told.tokens += num_tokens(logprobs) if logprobs is not None else 0

    def _take_out(self, running: _Running) -> bool:
        """Forget a request and free its place in the engine. False: it has ended already."""
        found = self._pop(running)
        if found is not None:
            running.cancelled_in = found[1]
            found[1].cancel(running.inference_id)
        return found is not None

    def _forget(self, running: _Running) -> bool:
        """Forget a request that has left the engine. False: it was forgotten before."""
        return self._pop(running) is not None

    def _pop(self, running: _Running) -> tuple[_Running, ModelServer] | None:
        with self._lock:
            found = self._running.pop(running.inference_id, None)
            self._lock.notify_all()
        if found is not None:
            self._on_end()
        return found

    def _enter(self, running: _Running) -> None:
        """Raises Busy while some other request or row has the worker to itself."""
        if not running.is_inside and not self._isolation.enter(running):
            raise Busy
        running.is_inside = True

    def _leave(self, running: _Running) -> None:
        """Not before the database knows, nor before the engine has let go of it: who is written down as
        running alone must have been.
        """
        if running.cancelled_in is None:
            self._have_left(running)
        else:
            running.cancelled_in.let_go(lambda: self._have_left(running))

    def _have_left(self, running: _Running) -> None:
        if running.is_inside:
            running.is_inside = False
            self._isolation.leave(running)
        self._isolation.give_up(running)

    # -- the end ----------------------------------------------------------------------------------------

    def _end(self, running: _Running, answer: Answer | None) -> None:
        """Without an answer, its job was told to stop."""
        self._publisher.end(running.claim, answer, lambda: self._leave(running))

    def _hand_back(self, running: _Running) -> None:
        self._heartbeat.release(running.claim.lease)

        def hand_back(tx: Transaction) -> None:
            if tx.leases.hand_back(running.claim.lease):
                lifecycle.count_redone(tx, running.claim.job.id, running.tokens)

        try:
            self._store.run(hand_back)
        except DatabaseUnavailable as error:
            log.warning("hand back failed", extra={"action": "hand_back_failed", "reason": error.message})
        except Exception:  # its lease runs out; what it holds of this worker would not
            log.exception("hand back failed", extra={"action": "hand_back_failed"})
        self._leave(running)
