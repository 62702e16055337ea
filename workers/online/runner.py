"""Runs online requests under their leases: tokens to the stream as they come, the answer to the database.

A request is in hand from its claim until it has an answer, is stopped, goes back, or its lease is lost,
whatever it does meanwhile: it waits to have the worker to itself, it waits to become tokens, it becomes them,
or it is in the engine. Whoever takes it out of hand decides how it ends; nobody does so twice.

No thread per request: the engine's thread puts what it has into one outbox, and one publisher sends it on in
batches.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from nightshift.broker.token_streams import StreamWriter
from nightshift.endpoints.logprobs import num_tokens
from nightshift.endpoints.requests import parse_request
from nightshift.errors import DatabaseUnavailable, InvalidRequest
from nightshift.jobs import Answer, OnlineClaim, StopReason
from nightshift.lifecycle import transitions
from nightshift.lifecycle.recovery import ONLINE_ROW
from nightshift.store import Store, Transaction
from workers.health.heartbeat import Heartbeat
from workers.online.one_by_one import OneByOne
from workers.online.publisher import Publisher, Text
from workers.serving.inference import Identity, Progress, body_chars, breakdown, refusal
from workers.serving.model_server import Busy, Inference, ModelServer
from workers.serving.models import Models
from workers.shard.suspicion import Isolation

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
class _InHand:
    """A request that was claimed and has not ended. It is the holder of its lease."""

    claim: OnlineClaim
    runner: "OnlineRunner"
    told: dict[int, "_Told"] = field(default_factory=dict)  # by choice; the engine's thread alone counts
    tokens: int = 0  # generated; likewise
    is_inside: bool = False  # it counts as being in an engine
    is_beginning: bool = False  # a thread makes tokens of it, and gives them to the engine
    is_cancelled: bool = False  # it was taken out of hand; the engine may have it all the same
    has_ended: bool = False  # and is to leave the engine
    server: ModelServer | None = None  # whose engine has it, or is about to

    @property
    def waits(self) -> bool:
        """Nothing of it has begun."""
        return not self.is_beginning and self.server is None

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
        """`on_end` is called, from any thread, whenever a request is in hand no more."""
        self._isolation = isolation or Isolation()
        self._suspects = OneByOne(self._isolation, self._begin, self._is_in_hand)
        self._on_end = on_end
        self._store = store
        self._models = models
        self._heartbeat = heartbeat
        self._lock = threading.Condition()
        self._in_hand: dict[str, _InHand] = {}  # by inference id
        self._publisher = Publisher(store, streams, heartbeat)
        self._preparing = ThreadPoolExecutor(PREPARING_MAX, thread_name_prefix="prepare")

    @property
    def count(self) -> int:
        """Requests in hand."""
        return len(self._in_hand)

    def start(self) -> None:
        self._publisher.start()
        self._suspects.start()

    @property
    def is_alive(self) -> bool:
        """Whether the threads run that publish answers and let suspected requests in."""
        return self._publisher.is_alive and self._suspects.is_alive

    def run(self, claim: OnlineClaim, claimed_at_s: float) -> None:
        """Take a claimed request in. It ends with an answer, an error answer, or back in the queue."""
        held = _InHand(claim, self)
        with self._lock:
            self._in_hand[held.inference_id] = held
        self._heartbeat.hold(claim.lease, held, claimed_at_s, lambda: held.tokens)
        if claim.job.stop_reason is not None:
            self.stop_one(held)
        elif claim.runs_alone:
            self._suspects.put(held)
        elif body_chars(claim.body) > PREPARED_ASIDE_CHARS:
            self._prepare(held)
        else:
            self._begin(held)

    def _prepare(self, held: _InHand) -> None:
        """Begin it aside. Raises RuntimeError when there is no thread for that; it has gone back then."""
        try:
            self._preparing.submit(self._begin, held)
        except RuntimeError:
            self._give_back([held])
            raise

    def stop_one(self, held: _InHand) -> None:
        """The request's job was told to stop."""
        if self._take_out(held):
            self._end(held, None)

    def drop(self, held: _InHand) -> None:
        """The lease is lost: forget the request and say nothing."""
        self._take_out(held)
        self._leave(held)

    def drain(self, wait_s: float) -> None:
        """Hand back what has not begun, let what can still finish do so, hand the rest back, and stop."""
        self._preparing.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            waiting = [held for held in self._in_hand.values() if held.waits]
        self._give_back(waiting)
        self._suspects.stop()
        with self._lock:
            self._lock.wait_for(lambda: not self._in_hand, timeout=wait_s)
            left = list(self._in_hand.values())
        self._give_back(left)
        self._publisher.stop()

    # -- the beginning ----------------------------------------------------------------------------------

    def _begin(self, held: _InHand) -> bool:
        """Give a request to the engine, on the thread of whoever had it wait. False: it is not in hand any
        more, and nothing was done.
        """
        with self._lock:
            if not self._is_in_hand(held):
                return False
            held.is_beginning = True
        try:
            self._enter(held)
            self._submit(held)
        except InvalidRequest as error:
            self._answer(held, refusal(error))
        except Busy:
            if self._forget(held):
                self._hand_back(held)
        except Exception as error:  # what nobody foresaw ends this request, which would be held for ever
            log.exception("request broke", extra={"action": "request_broke", "job": held.claim.job.id})
            self._answer(held, breakdown(f"{type(error).__name__}: {error}"))
        finally:
            self._has_begun(held)
        return True

    def _has_begun(self, held: _InHand) -> None:
        """Whoever took it out of hand meanwhile could not take it out of the engine yet."""
        with self._lock:
            held.is_beginning = False
            is_cancelled, has_ended = held.is_cancelled, held.has_ended
        if is_cancelled and held.server is not None:
            held.server.cancel(held.inference_id)
        if has_ended:
            self._leave(held)

    def _enter(self, held: _InHand) -> None:
        """Raises Busy while some other request or row has the worker to itself."""
        if held.claim.runs_alone:
            held.is_inside = True  # its turn has come, and nothing else is there
            self._write_down(held)
        elif self._isolation.enter(held):
            held.is_inside = True
        else:
            raise Busy

    def _write_down(self, held: _InHand) -> None:
        """Workers died with this request: who finds this one dead is to know. Raises Busy if it cannot be
        written.
        """
        try:
            with self._store.transaction() as tx:
                is_written = tx.dead_letters.journal(held.claim.lease, [ONLINE_ROW])
        except DatabaseUnavailable as error:
            log.info("request waits", extra={"action": "request_waits", "reason": error.message})
            raise Busy from error
        if not is_written:
            raise Busy  # the lease is lost

    def _submit(self, held: _InHand) -> None:
        claim = held.claim
        inference = Inference(
            id=held.inference_id,
            request=parse_request(claim.job.spec.endpoint, claim.body),
            identity=Identity(claim.job.id, int(claim.job.created_at.timestamp())),
            priority=claim.job.priority,
            listener=lambda progress: self._hear(held, progress),
        )
        held.server = self._models.get(inference.request.model)
        self._models.submit(inference)

    # -- what the engine says ---------------------------------------------------------------------------

    def _hear(self, held: _InHand, progress: Progress) -> None:
        """On the engine's thread: note it and return."""
        held.tokens += len(progress.token_ids)
        if progress.text or progress.logprobs is not None:
            self._tell(held, progress)
        answer = breakdown(progress.failed) if progress.failed is not None else progress.answer
        if answer is not None:
            self._answer(held, answer)

    def _tell(self, held: _InHand, progress: Progress) -> None:
        told = held.told.setdefault(progress.choice, _Told())
        shard_id, logprobs = held.claim.lease.shard_id, progress.logprobs
        self._publisher.say(
            Text(shard_id, progress.choice, told.characters, progress.text, told.tokens, logprobs)
        )
        told.characters += len(progress.text)
        told.tokens += num_tokens(logprobs) if logprobs is not None else 0

    # -- the end ----------------------------------------------------------------------------------------

    def _is_in_hand(self, held: _InHand) -> bool:
        return held.inference_id in self._in_hand

    def _forget(self, held: _InHand, *, is_cancelled: bool = False) -> bool:
        """Take a request out of hand. False: somebody else has done so, and sees to its end."""
        with self._lock:
            was_in_hand = self._in_hand.pop(held.inference_id, None) is not None
            held.is_cancelled |= was_in_hand and is_cancelled
            self._lock.notify_all()
        if was_in_hand:
            self._on_end()
        return was_in_hand

    def _take_out(self, held: _InHand) -> bool:
        """Forget a request and free its place in the engine. False: somebody else has forgotten it."""
        was_in_hand = self._forget(held, is_cancelled=True)
        if was_in_hand and held.server is not None:
            held.server.cancel(held.inference_id)
        return was_in_hand

    def _answer(self, held: _InHand, answer: Answer) -> None:
        if self._forget(held):
            self._end(held, answer)

    def _end(self, held: _InHand, answer: Answer | None) -> None:
        """Without an answer, its job was told to stop."""
        self._publisher.end(held.claim, answer, lambda: self._leave(held))

    def _give_back(self, requests: Sequence[_InHand]) -> None:
        for held in requests:
            if self._take_out(held):
                self._hand_back(held)

    def _hand_back(self, held: _InHand) -> None:
        self._heartbeat.release(held.claim.lease)

        def hand_back(tx: Transaction) -> None:
            if tx.leases.hand_back(held.claim.lease):
                transitions.count_redone(tx, held.claim.job.id, held.tokens)

        try:
            self._store.run(hand_back)
        except DatabaseUnavailable as error:
            log.warning("hand back failed", extra={"action": "hand_back_failed", "reason": error.message})
        except Exception:  # its lease runs out; what it holds of this worker would not
            log.exception("hand back failed", extra={"action": "hand_back_failed"})
        self._leave(held)

    def _leave(self, held: _InHand) -> None:
        """Not before the database knows, nor before the engine has let go of it: who is written down as
        running alone must have been.
        """
        with self._lock:
            held.has_ended = True
            if held.is_beginning:
                return  # it may yet come into the engine; whoever begins it has it leave
        if held.is_cancelled and held.server is not None:
            held.server.after_cancelled(lambda: self._have_left(held))
        else:
            self._have_left(held)

    def _have_left(self, held: _InHand) -> None:
        if held.is_inside:
            held.is_inside = False
            self._isolation.leave(held)
        self._isolation.give_up(held)
