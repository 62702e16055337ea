"""Runs online requests under their leases: tokens to the stream as they come, the answer to the database.

A request is open from its claim until it is answered, stopped, handed back or its lease is lost. Of several
threads that end it, the first to close it decides how.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from nightshift import endpoints
from nightshift.broker.token_streams import StreamWriter
from nightshift.endpoints.results import Identity, Origin, Result
from nightshift.errors import DatabaseUnavailable, InvalidRequest
from nightshift.jobs import Answer, OnlineClaim
from nightshift.lifecycle import transitions
from nightshift.lifecycle.recovery import ONLINE_ROW
from nightshift.process.tracing.spans import is_on
from nightshift.store import Store, Transaction
from nightshift.tenants.turns import TurnThreads
from workers.leases.heartbeat import Heartbeat
from workers.leases.isolation import Isolation, SuspectQueue
from workers.online.publisher import DATABASE_RETRY_S, Publisher
from workers.online.request import OnlineRequest
from workers.online.times import OnlineTimes
from workers.serving.inference import Progress, breakdown, refusal
from workers.serving.model_server import Busy, Inference
from workers.serving.models import Models
from workers.traces import OnlineTrace

log = logging.getLogger(__name__)

# The thread that claims must not wait for a long text's tokens, or for many choices to be built.
PREPARING_MAX: Final = 2  # of one tenant; another one is left a thread


class OnlineRunner:
    def __init__(
        self,
        store: Store,
        models: Models,
        streams: StreamWriter,
        heartbeat: Heartbeat,
        on_end: Callable[[], None] = lambda: None,
        isolation: Isolation | None = None,
        retry_s: float = DATABASE_RETRY_S,
    ) -> None:
        """`on_end` is called, from any thread, when a request is closed."""
        self._isolation = isolation or Isolation()
        self._suspects = SuspectQueue(self._isolation, self._begin, self._is_open)
        self._on_end = on_end
        self._store = store
        self._models = models
        self._heartbeat = heartbeat
        self._lock = threading.Condition()
        self._open: dict[str, OnlineRequest] = {}  # by inference id
        self._num_of_tenant: Counter[str] = Counter()  # open ones
        self.times = OnlineTimes()
        self._publisher = Publisher(store, streams, heartbeat, retry_s)
        self._preparing = TurnThreads("prepare", PREPARING_MAX + 1)

    @property
    def count(self) -> int:
        return len(self._open)

    def count_of(self, model_id: str) -> int:
        """The number of open requests for this model."""
        with self._lock:
            return sum(request.claim.job.model == model_id for request in self._open.values())

    def counts_by_tenant(self) -> dict[str, int]:
        """The numbers of open requests of each tenant that has any."""
        with self._lock:
            return dict(self._num_of_tenant)

    def start(self) -> None:
        self._publisher.start()

    @property
    def is_alive(self) -> bool:
        return self._publisher.is_alive and self._suspects.is_alive

    def run(self, claim: OnlineClaim, claimed_at_s: float) -> None:
        """Takes a claimed request. It ends with an answer, an error answer, or back in the queue."""
        request = OnlineRequest(claim, self._drop, self._stop, submitted_s=claimed_at_s - claim.waited_s)
        if is_on():
            request.trace = OnlineTrace(claim, claimed_at_s)
        with self._lock:
            self._open[request.inference_id] = request
            self._num_of_tenant[claim.job.tenant_id] += 1
        self._heartbeat.hold(claim.lease, request, claimed_at_s, lambda: request.tokens)
        if claim.job.stop_reason is not None:
            self._stop(request)
        elif claim.runs_alone:
            self._suspects.put(request, claim.job.tenant_id)
        else:
            self._prepare(request)

    def drain(self, wait_s: float) -> None:
        """Hands back what has not begun, waits `wait_s` for the rest, hands back what is left, and stops."""
        self._preparing.stop()
        with self._lock:
            waiting = [request for request in self._open.values() if request.waits]
        self._hand_back_all(waiting)
        self._suspects.stop()
        with self._lock:
            self._lock.wait_for(lambda: not self._open, timeout=wait_s)
            left = list(self._open.values())
        self._hand_back_all(left)
        self._publisher.stop()

    # -- the beginning

    def _prepare(self, request: OnlineRequest) -> None:
        """Begins it on another thread, in its tenant's turn. Without one it is handed back, which raises
        RuntimeError where one could not be started.
        """
        will_run = False
        try:
            job = request.claim.job
            begin = partial(self._begin, request)
            will_run = self._preparing.run(job.tenant_id, begin, rank=(job.priority.rank,))
        finally:
            if not will_run:
                self._hand_back_all([request])

    def _begin(self, request: OnlineRequest) -> bool:
        """Submits it to the engine. False: it was closed already."""
        with self._lock:
            if not self._is_open(request):
                return False
            request.is_beginning = True
        try:
            self._enter(request)
            self._submit(request)
        except InvalidRequest as error:
            self._answer(request, refusal(error))
        except Busy:
            if self._close(request):
                self._hand_back(request)
        except Exception as error:  # else the request would stay open
            log.exception("request broke", extra={"action": "request_broke", "job": request.claim.job.id})
            self._answer(request, breakdown(f"{type(error).__name__}: {error}"))
        finally:
            self._has_begun(request)
        return True

    def _has_begun(self, request: OnlineRequest) -> None:
        """Applies a cancel or an end that came while the engine did not know the request yet."""
        with self._lock:
            request.is_beginning = False
            is_cancelled, has_ended = request.is_cancelled, request.has_ended
        if is_cancelled and request.server is not None:
            request.server.cancel(request.inference_id)
        if has_ended:
            self._leave(request)

    def _enter(self, request: OnlineRequest) -> None:
        """Raises Busy while another request or row has the worker to itself."""
        if request.claim.runs_alone:
            request.is_inside = True  # `SuspectQueue` has entered it, alone
            self._journal(request)
        elif self._isolation.enter(request):
            request.is_inside = True
        else:
            raise Busy

    def _journal(self, request: OnlineRequest) -> None:
        """Records that a suspected request runs, to attribute a crash to it. Raises Busy if that fails."""
        try:
            with self._store.transaction() as tx:
                is_recorded = tx.dead_letters.journal(request.claim.lease, [ONLINE_ROW])
        except DatabaseUnavailable as error:
            log.info("request waits", extra={"action": "request_waits", "reason": error.message})
            raise Busy from error
        if not is_recorded:
            raise Busy  # the lease is lost

    def _submit(self, request: OnlineRequest) -> None:
        claim = request.claim
        endpoint = endpoints.get(claim.job.spec.endpoint)
        inference = Inference(
            id=request.inference_id,
            endpoint=endpoint,
            request=endpoint.parse(claim.body),
            identity=_identity(claim),
            priority=claim.job.priority,
            listener=lambda progress: self._on_progress(request, progress),
            tenant_id=claim.job.tenant_id,
            body=claim.body,
        )
        request.streams = inference.request.streams
        request.server = self._models.get(inference.request.model)
        self._models.submit(inference)

    def _on_progress(self, request: OnlineRequest, progress: Progress) -> None:
        """Called on the engine's thread: it must return at once."""
        if progress.token_ids and not request.tokens:
            self.times.first_token(request.claim, request.submitted_s)
        request.tokens += len(progress.token_ids)
        tenant_id = request.claim.job.tenant_id
        if progress.reasoning:
            self._publisher.put(tenant_id, request.next_thought(progress))
        if progress.text or (request.streams and progress.logprobs is not None):
            self._publisher.put(tenant_id, request.next_text(progress))
        for part in progress.calls:
            self._publisher.put(tenant_id, request.next_call(progress.choice, part))
        if progress.result is not None or progress.failed is not None:
            if request.trace is not None:
                request.trace.ended_in_engine(progress.times)
            self._answer(request, progress.last_result)

    # -- the end

    def _is_open(self, request: OnlineRequest) -> bool:
        return request.inference_id in self._open

    def _close(self, request: OnlineRequest, *, is_cancelled: bool = False) -> bool:
        """Closes a request. True for one caller, which decides how it ends."""
        with self._lock:
            was_open = self._open.pop(request.inference_id, None) is not None
            if was_open:
                self._leave_place(request.claim.job.tenant_id)
            request.is_cancelled |= was_open and is_cancelled
            self._lock.notify_all()
        if was_open:
            self._on_end()
        return was_open

    def _leave_place(self, tenant_id: str) -> None:
        self._num_of_tenant[tenant_id] -= 1
        if not self._num_of_tenant[tenant_id]:
            del self._num_of_tenant[tenant_id]

    def _cancel(self, request: OnlineRequest) -> bool:
        """Closes it and takes it out of the engine. False: it was closed already."""
        was_open = self._close(request, is_cancelled=True)
        if was_open and request.server is not None:
            request.server.cancel(request.inference_id)
        return was_open

    def _answer(self, request: OnlineRequest, result: Result) -> None:
        if self._close(request):
            self.times.answered(request.claim, request.submitted_s)
            self._publish_end(request, _answer(request.claim, result))

    def _stop(self, request: OnlineRequest) -> None:
        """Stops a request whose job was told to stop."""
        if self._cancel(request):
            self._publish_end(request, None)

    def _drop(self, request: OnlineRequest) -> None:
        """Drops a request whose lease is lost: nothing is recorded."""
        self._cancel(request)
        if request.trace is not None:
            request.trace.given_up("lost")
        self._leave(request)

    def _publish_end(self, request: OnlineRequest, answer: Answer | None) -> None:
        trace = request.trace
        settled = partial(self._leave, request)
        if trace is None:
            self._publisher.end(request.claim, answer, settled)
        else:
            self._publisher.end(request.claim, answer, settled, partial(trace.told, answer))

    def _hand_back_all(self, requests: Sequence[OnlineRequest]) -> None:
        for request in requests:
            if self._cancel(request):
                self._hand_back(request)

    def _hand_back(self, request: OnlineRequest) -> None:
        self._heartbeat.release(request.claim.lease)
        if request.trace is not None:
            request.trace.given_up("handed back")

        def hand_back(tx: Transaction) -> None:
            if tx.leases.hand_back(request.claim.lease):
                transitions.count_redone(tx, request.claim.job.id, request.tokens)

        try:
            self._store.run(hand_back)
        except DatabaseUnavailable as error:
            log.warning("hand back failed", extra={"action": "hand_back_failed", "reason": error.message})
        except Exception:  # its lease runs out, its place in the isolation does not
            log.exception("hand back failed", extra={"action": "hand_back_failed"})
        self._leave(request)

    def _leave(self, request: OnlineRequest) -> None:
        """Leaves the isolation, once the end is recorded and the engine cannot have the request: one
        journalled as running alone must have been alone.
        """
        with self._lock:
            request.has_ended = True
            if request.is_beginning:
                return  # it may yet enter the engine; `_has_begun` then calls this again
        if request.is_cancelled and request.server is not None:
            request.server.after_cancelled(lambda: self._left(request))
        else:
            self._left(request)

    def _left(self, request: OnlineRequest) -> None:
        if request.is_inside:
            request.is_inside = False
            self._isolation.leave(request)
        self._isolation.release(request)


def _identity(claim: OnlineClaim) -> Identity:
    return Identity(claim.job.id, int(claim.job.created_at.timestamp()))


def _answer(claim: OnlineClaim, result: Result) -> Answer:
    job = claim.job
    assert job.model is not None, "an online request names its model"
    origin = Origin(_identity(claim), job.model, job.priority)
    return Answer(result.status_code, endpoints.get(job.spec.endpoint).body_of(origin, result), result.usage)
