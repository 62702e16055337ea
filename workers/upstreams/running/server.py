"""A model that upstreams run: its requests wait here for a place, are sent, and are answered.

Requests come from any thread; everything else is done on the loop's thread, where listeners are called too.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, Protocol

from prometheus_client.registry import Collector

from nightshift.endpoints.answers import error_body
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.results import Result
from nightshift.endpoints.texts.generation import GenerationRequest
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.priorities import PriorityClass
from nightshift_engine import EngineHistograms
from workers.serving.carry_over import ChoiceSoFar
from workers.serving.inference import Progress
from workers.serving.model_server import Busy, Inference, ModelServer, RequestCounts, engine_class
from workers.upstreams.faults import BrokenOff, RowRefused, Unavailable, UpstreamFault
from workers.upstreams.messages.answers import StreamedAnswer, read_answer
from workers.upstreams.messages.bodies import check_request, route_of, tokens_expected, upstream_body
from workers.upstreams.messages.continuing import continued, may_be_long, may_continue
from workers.upstreams.running.place import Place
from workers.upstreams.running.upstream import Outcome
from workers.upstreams.running.waiting import Pending, Waiting

log = logging.getLogger(__name__)

WAITING_MAX: Final = 4096  # bulk requests of a model; more are refused until some are gone
BREAKS_MAX: Final = 3  # of one request; then the fault may be its own, and counts as a try of its row
ONLINE_WAIT_S: Final = 60.0  # for an upstream that can be used, then the client is told


class Dispatching(Protocol):
    """The pass that gives requests their places, as a server knows it. Called from any thread."""

    @property
    def metrics(self) -> Collector: ...

    def add(self, server: "UpstreamServer") -> None: ...

    def remove(self, server: "UpstreamServer") -> None:
        """Cancels what the server has."""

    def wake(self) -> None:
        """Makes a pass, soon."""


class UpstreamServer(ModelServer):
    """One model over the upstreams that have it."""

    takes_bodies = True

    def __init__(self, model: Model, places: Sequence[Place], dispatcher: Dispatching) -> None:
        super().__init__(model)
        self.places = places
        self.waiting = Waiting()
        self.collector = dispatcher.metrics
        self.engine_stats = RequestCounts(0, 0)
        self._histograms = EngineHistograms()
        self._dispatcher = dispatcher
        self._calls: deque[Callable[[], None]] = deque()  # from any thread, to be made on the loop's in order
        self._tasks: dict[str, asyncio.Task[Result]] = {}  # by inference id
        self._streamed: dict[str, Pending] = {}  # bulk rows that have been, by inference id
        self._cancelled: set[asyncio.Task[Result]] = set()  # which have not ended
        self._busy_seconds = 0.0
        self._busy_since_s: float | None = None

    # -- any thread

    def start(self) -> None:
        self._dispatcher.add(self)

    def stop(self) -> None:
        self._dispatcher.remove(self)

    def submit(self, inference: Inference) -> None:
        route = route_of(inference.endpoint)
        if not all(route in place.model.routes for place in self.places):  # any of them may get it
            raise InvalidRequest(
                f"The upstreams of '{self.model.id}' do not all answer {inference.endpoint.route}.",
                param="model",
                code="model_not_supported",
            )
        may_fetch = all(place.upstream.config.fetches_urls for place in self.places)
        check_request(inference.body or {}, inference.request, may_fetch=may_fetch)
        most = WAITING_MAX if self.problem is None else int(self._may_be_tried)  # one is the trial
        if inference.group is not None and len(self.waiting) + len(self._calls) >= most:
            raise Busy
        self._call(partial(self._take, inference))

    def is_repeatable(self, request: ModelRequest) -> bool:
        """Requests without sampling are, and those with a seed."""
        if not isinstance(request, GenerationRequest):
            return True
        return request.seed is not None or request.temperature == 0

    def cancel(self, inference_id: str) -> None:
        self._call(partial(self._cancel, inference_id))

    def after_cancelled(self, callback: Callable[[], None]) -> None:
        def wait() -> None:
            ended = asyncio.gather(*self._cancelled, return_exceptions=True)
            ended.add_done_callback(lambda _: callback())

        self._call(wait)

    def generated(self, inference_id: str) -> Sequence[Progress]:
        pending = self._streamed.get(inference_id)
        so_far = None if pending is None else pending.so_far
        return [Progress(so_far=so_far)] if so_far is not None and so_far.num_tokens else ()

    @property
    def problem(self) -> str | None:
        troubles = [place.trouble for place in self.places if place.trouble is not None]
        if not troubles or not all(place.breaker.is_open for place in self.places):
            return None
        since, reason = min(troubles)
        return f"The model's upstream {reason} since {since:%H:%M} UTC."

    @property
    def busy_seconds(self) -> float:
        since_s = self._busy_since_s
        return self._busy_seconds + (0.0 if since_s is None else max(0.0, time.monotonic() - since_s))

    @property
    def histograms(self) -> EngineHistograms:
        """Waits before requests were sent, and counts of tokens; the others stay empty."""
        return self._histograms

    @property
    def made_by(self) -> JsonObject:
        return self.places[0].model.made_by

    @property
    def _may_be_tried(self) -> bool:
        now_s = time.monotonic()
        return any(place.breaker.wait_s(now_s) == 0 for place in self.places)

    def _call(self, callback: Callable[[], None]) -> None:
        self._calls.append(callback)
        self._dispatcher.wake()

    # -- the loop's thread

    def begin_pass(self) -> None:
        """Does what other threads have called for. While no upstream can be used, returns bulk rows to their
        shards, and tells clients who have waited for long.
        """
        while self._calls:
            self._calls.popleft()()
        problem, now_s = self.problem, time.monotonic()
        if problem is None:
            return
        keeps_bulk = self._may_be_tried
        for pending in self.waiting:
            has_waited = now_s - pending.since_s >= ONLINE_WAIT_S
            if not keeps_bulk if pending.is_bulk else has_waited:
                self.waiting.remove(pending.id)
                self._tell_away(pending, problem)

    def send_waiting(self, priority: PriorityClass) -> None:
        """Sends what waits of a class, as long as an upstream has a place for it."""
        while (pending := self.waiting.next_of(priority)) and (place := self._place_for(pending)):
            pending.sent_s = time.monotonic()
            self.waiting.take(pending)
            place.sent(pending)
            of_class = self._histograms.of_class(engine_class(priority))
            of_class.queue_s.observe(pending.sent_s - pending.since_s)
            task = asyncio.get_running_loop().create_task(self._answer(pending, place))
            task.add_done_callback(partial(self._ended, pending, place))  # also of one that never began
            self._tasks[pending.id] = task
            self._note_busy()
        self.engine_stats = RequestCounts(len(self._tasks), len(self.waiting))

    def cancel_all(self) -> None:
        self.begin_pass()
        for inference_id in [*self._tasks, *(pending.id for pending in self.waiting)]:
            self._cancel(inference_id)

    def _take(self, inference: Inference) -> None:
        tokens = 0 if inference.carry_over is None else inference.carry_over.num_tokens
        expected = tokens_expected(inference)
        self.waiting.put(Pending(inference, time.monotonic(), expected, inference.breaks, tokens))

    def _place_for(self, pending: Pending) -> Place | None:
        """The place where a request goes; None: it waits."""
        now_s, is_interactive = time.monotonic(), not pending.is_bulk
        ready = [place for place in self.places if place.may_get(now_s, is_interactive=is_interactive)]
        return min(ready, key=lambda place: place.upstream.places.load, default=None)

    async def _answer(self, pending: Pending, place: Place) -> Result:
        """Sends a request. Raises RowRefused or an UpstreamFault; UpstreamChanged ends the process."""
        if place.breaker.is_open:  # the upstream was away: it may have been started with another model
            await place.check_same()
        inference, served = pending.inference, place.model
        streams = may_be_long(inference.request) if pending.is_bulk else inference.request.streams
        goes_on = streams and self._goes_on(pending, place)
        if pending.is_bulk:
            streams = goes_on
        body = upstream_body(inference, served, streams=streams)
        connection, route = place.upstream.connection, route_of(inference.endpoint)
        if not streams:
            if pending.answer is not None:
                pending.answer = StreamedAnswer(inference)  # what there was is made again
            answer = await connection.post(route, body)
            return read_answer(inference, answer.data)
        if pending.answer is None or not goes_on:
            pending.answer = StreamedAnswer(inference, self._earlier(inference) if goes_on else None)
        else:
            pending.answer.resume()
        if (so_far := pending.answer.so_far).num_tokens:
            body = continued(body, inference.request, so_far)
        if pending.is_bulk:
            self._streamed[inference.id] = pending  # it is asked for what has come (`generated`)
        async with aclosing(connection.stream(route, body)) as chunks:
            async for chunk in chunks:
                for progress in pending.answer.take(chunk):
                    if not pending.is_shown:
                        place.upstream.first_token(pending, time.monotonic())
                    pending.is_shown = True
                    inference.listener(progress)
        if not pending.answer.is_whole:
            raise BrokenOff("ended a stream before its end")
        return pending.answer.result()

    def _goes_on(self, pending: Pending, place: Place) -> bool:
        """Whether an answer that is cut off there is continued from its text."""
        served, request = place.model, pending.inference.request
        is_alike = not pending.is_plain and served.made_by == self.made_by
        return is_alike and may_continue(request, continues_chats=served.continues)

    def _earlier(self, inference: Inference) -> ChoiceSoFar | None:
        """The only choice as an earlier lease left it."""
        carry_over = inference.carry_over
        is_ours = carry_over is not None and carry_over.made_by == self.made_by
        return carry_over.choices[0] if carry_over and is_ours and len(carry_over.choices) == 1 else None

    def _ended(self, pending: Pending, place: Place, task: asyncio.Task[Result]) -> None:
        """Notes the end of a request that was sent, and tells it or puts the request back."""
        self._cancelled.discard(task)
        if is_wanted := self._tasks.get(pending.id) is task:
            del self._tasks[pending.id]
        ended = asyncio.CancelledError() if task.cancelled() else task.exception() or task.result()
        if not isinstance(ended, Result | Outcome):
            raise ended  # a fault of ours, or a model that is another
        progress = self._progress_after(pending, place, ended) if is_wanted else None
        place.ended(pending, ended.usage if isinstance(ended, Result) else ended)
        self._note_busy()
        self._dispatcher.wake()
        if progress is not None:
            self._tell_end(pending, progress)

    def _progress_after(self, pending: Pending, place: Place, ended: Result | Outcome) -> Progress | None:
        """The end of a request; None: it waits for a place again."""
        match ended:
            case Result(usage=usage):
                of_class = self._histograms.of_class(engine_class(pending.inference.priority))
                of_class.prompt_tokens += usage.prompt_tokens
                of_class.generation_tokens += usage.completion_tokens
                return Progress(result=ended)
            case RowRefused():
                return self._after_refusal(pending, ended)
            case UpstreamFault():
                return self._after_fault(pending, place, ended)
        return None

    def _after_refusal(self, pending: Pending, refused: RowRefused) -> Progress | None:
        """The end of a request that was refused; None: it is sent again whole, since a refusal may be of the
        stream or of the text so far.
        """
        if pending.is_bulk and pending.answer is not None and not pending.is_plain:
            pending.is_plain = True
            self.waiting.put(pending, first=True)
            return None
        return Progress(result=_refused(refused))

    def _after_fault(self, pending: Pending, place: Place, fault: UpstreamFault) -> Progress | None:
        """The end of a request whose upstream failed; None: it waits for a place again."""
        log.warning(
            "upstream failed",
            extra={"action": "upstream_failed", "upstream": place.upstream.name, "reason": fault.reason},
        )
        was_well = place.trouble is None  # it may be well but for this request
        if isinstance(fault, BrokenOff) or (was_well and isinstance(fault, Unavailable)):
            pending.broke_off()
        if pending.is_bulk and pending.breaks == BREAKS_MAX - 1 and not pending.tokens_most:
            pending.is_plain = True  # an upstream may not stream
        is_lost = pending.is_shown and not self._can_resume(pending)
        if is_lost or pending.breaks >= BREAKS_MAX:
            return Progress(failed=f"The upstream {fault}.")
        self.waiting.put(pending, first=not pending.breaks)  # others are not held up by what may break again
        return None

    def _can_resume(self, pending: Pending) -> bool:
        """Whether the rest of what a client has seen may follow, wherever it is sent."""
        has_some = pending.so_far is not None and pending.so_far.num_tokens > 0
        return has_some and all(self._goes_on(pending, place) for place in self.places)

    def _tell_away(self, pending: Pending, problem: str) -> None:
        if pending.is_bulk:
            self._tell_end(pending, Progress(failed=problem, is_returned=True, breaks=pending.breaks))
        else:
            body = error_body(problem, "server_error", code="model_unavailable")
            self._tell_end(pending, Progress(result=Result(503, Usage(), body=body)))

    def _tell_end(self, pending: Pending, progress: Progress) -> None:
        self._streamed.pop(pending.id, None)
        if pending.is_bulk:
            progress.so_far = pending.so_far
        pending.inference.listener(progress)

    def _cancel(self, inference_id: str) -> None:
        self._streamed.pop(inference_id, None)
        self.waiting.remove(inference_id)
        if (task := self._tasks.pop(inference_id, None)) is not None:
            self._cancelled.add(task)
            task.cancel()

    def _note_busy(self) -> None:
        now_s = time.monotonic()
        if self._busy_since_s is not None:
            self._busy_seconds += now_s - self._busy_since_s
        self._busy_since_s = now_s if self._tasks else None
        self._busy.note(now_s, self.busy_seconds)


def _refused(refused: RowRefused) -> Result:
    body = error_body(refused.message, "invalid_request_error", param=refused.param, code=refused.code)
    return Result(refused.status, Usage(), body=body)
