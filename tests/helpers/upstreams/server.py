"""The HTTP server of a simulated upstream, on one event loop."""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final

from aiohttp import web

from tests.helpers.upstreams import sending
from tests.helpers.upstreams.batching import Batch, Full
from tests.helpers.upstreams.behaviours import Behaviour
from tests.helpers.upstreams.bodies import Generation, Json, Refusal, encoded, model_list, prompt_of
from tests.helpers.upstreams.rates import Allowance
from tests.helpers.upstreams.seen import Arrival, Seen
from tests.helpers.upstreams.settings import EXTENSIONS, Settings
from tests.helpers.waiting import WAIT_MAX_S

REQUEST_BYTES_MAX: Final = 1 << 28
STOP_TIMEOUT_S: Final = 0.1  # twice, for requests that are in the middle of an answer
WELL: Final = Behaviour()


class SimulatedUpstream:
    """Its methods may be called on any thread but the loop's, and `seen` be read."""

    def __init__(self, settings: Settings) -> None:
        self.seen = Seen()
        self.port = 0
        self._changed = threading.Condition()
        self._ids = count()
        self._loop = asyncio.get_running_loop()
        self._server = web.Server(self._handle, request_factory=_request, handler_cancellation=True)
        self._released = asyncio.Event()
        self._behaviours: list[Behaviour] = []
        self._num_met: list[int] = []  # requests that each of them has concerned
        self._busy: set[asyncio.Transport | None] = set()  # connections with a request
        self._set(settings)

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self._listening = await self._loop.create_server(self._server, host, port, ssl=tls, backlog=4096)
        self.port = self._listening.sockets[0].getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://{host}:{self.port}/v1"

    async def stop(self) -> None:
        self._listening.close()
        self._released.set()
        self._server.pre_shutdown()
        await self._server.shutdown(STOP_TIMEOUT_S)

    def behave(self, *behaviours: Behaviour) -> None:
        """Misbehaves so from now on: the first that concerns a request decides. None given: answers well.

        Requests that are held go on.
        """
        self._call(lambda: self._set_behaviours(behaviours))

    def serve(self, **settings: Any) -> None:
        """Changes fields of its settings: `models=[]` makes its models disappear."""
        self._call(lambda: self._set(replace(self.settings, **settings)))

    def close_idle(self) -> None:
        """Closes every connection that has no request."""
        self._call(self._close_idle)

    def wait_until(self, what: str, is_true: Callable[[Seen], object]) -> None:
        """Waits until what it has seen fulfils this. Raises TimeoutError naming `what`."""
        with self._changed:
            if not self._changed.wait_for(lambda: is_true(self.seen), WAIT_MAX_S):
                raise TimeoutError(f"not within {WAIT_MAX_S:.0f} s: {what}")

    def _call(self, change: Callable[[], None]) -> None:
        async def call() -> None:
            change()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(WAIT_MAX_S)

    def _close_idle(self) -> None:
        for connection in self._server.connections:
            if connection.transport is not None and connection.transport not in self._busy:
                connection.transport.close()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _set(self, settings: Settings) -> None:
        self.settings = settings
        self._batch = Batch(settings)
        limits = {"requests": settings.requests_per_minute, "tokens": settings.tokens_per_minute}
        self._allowances = [Allowance(name, limit) for name, limit in limits.items() if limit is not None]

    def _set_behaviours(self, behaviours: Sequence[Behaviour]) -> None:
        self._behaviours, self._num_met = list(behaviours), [0] * len(behaviours)
        self._released.set()
        self._released = asyncio.Event()

    def _behaviour(self, path: str, text: bytes) -> Behaviour:
        for index, behaviour in enumerate(self._behaviours):
            if path.endswith(behaviour.path) and behaviour.containing.encode() in text:
                self._num_met[index] += 1
                at = self._num_met[index] - behaviour.skips
                if at > 0 and (behaviour.times is None or at <= behaviour.times):
                    return behaviour
        return WELL

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.startswith("/control/"):
            return await self._control(request)
        seen, is_answer = self.seen, request.method == "POST"
        seen.in_flight += is_answer
        seen.in_flight_max = max(seen.in_flight_max, seen.in_flight)
        connection = request.transport
        self._busy.add(connection)
        try:
            text = await request.read()
            behaviour = self._behaviour(request.path, text)
            answer = self._answer if is_answer else self._describe
            response = await answer(request, text, behaviour)
            seen.statuses[response.status] += is_answer
            return response
        except Refusal as refusal:
            seen.statuses[refusal.status] += is_answer
            return sending.answer_json(refusal.body, refusal.status, refusal.headers)
        except (asyncio.CancelledError, ConnectionResetError):
            seen.cancelled += is_answer
            raise
        except sending.Cut:
            return sending.close(request)
        finally:
            seen.in_flight -= is_answer
            self._busy.discard(connection)
            self._notify()

    async def _describe(
        self, request: web.BaseRequest, text: bytes, behaviour: Behaviour
    ) -> web.StreamResponse:
        """Answers what the server is."""
        settings, path = self.settings, request.path
        if path == "/v1/models":
            self.seen.asked_for_models += 1
            if behaviour.body is None:
                self._check_key(request.headers)
            models = sending.json_bytes(model_list(settings))
            body = models if behaviour.body is None else sending.as_bytes(behaviour.body)
            return await sending.send(request, behaviour, body, self._released)
        if path == "/version" and settings.version is not None and not settings.is_llama_cpp:
            return sending.answer_json({"version": settings.version})
        if path == "/get_server_info" and settings.server_info is not None:
            return sending.answer_json(settings.server_info)
        if path == "/health" and settings.owned_by == "vllm":
            return web.Response()
        return sending.answer_json({"detail": "Not Found"}, 404)

    async def _answer(
        self, request: web.BaseRequest, text: bytes, behaviour: Behaviour
    ) -> web.StreamResponse:
        settings, route = self.settings, request.path.removeprefix("/v1/")
        if route not in settings.routes and settings.is_llama_cpp:
            raise Refusal(501, f"This server does not support {route}.")
        if route not in settings.routes:
            return sending.answer_json({"detail": "Not Found"}, 404)
        body: Json = json.loads(text)
        generation, refusal = None, self._refusal(body, request.headers)
        if refusal is None and route.endswith("completions"):
            generation = Generation(body, settings, is_chat=route != "completions")
            refusal = generation.refusal
        prompt, id = prompt_of(body), f"{next(self._ids):08x}"
        num_continued = generation.num_continued if generation else 0
        key, now_s = request.headers.get("authorization"), time.monotonic()
        self.seen.arrivals.append(Arrival(route, prompt, body.get("priority"), num_continued, now_s, key))
        self._notify()
        if behaviour.body is not None:
            return await sending.send(request, behaviour, sending.as_bytes(behaviour.body), self._released)
        if refusal is not None:
            raise refusal
        if headers := self._take(generation.total_tokens if generation else 1, now_s):
            behaviour = replace(behaviour, headers={**headers, **behaviour.headers})
        priority = (body.get("priority") or 0) if "priority" in settings.understands else 0
        try:
            async with self._batch.sequence(generation.length if generation else 1, priority) as sequence:
                if generation is not None and generation.is_streamed:
                    events = sending.events(generation, behaviour, id, sequence)
                    response = await sending.stream(request, behaviour, events, self._released)
                    self.seen.answered[prompt] += 1
                    return response
                await sequence.reaches(sequence.total)
        except Full:
            raise Refusal(429, "Model is overloaded", code="overloaded") from None
        answer = generation.body(id) if generation else encoded(route, body, settings, id)
        answer_bytes = sending.json_bytes(sending.changed(answer, behaviour))
        response = await sending.send(request, behaviour, answer_bytes, self._released)
        self.seen.answered[prompt] += response.status == 200
        return response

    def _refusal(self, body: Json, headers: Mapping[str, str]) -> Refusal | None:
        settings, model = self.settings, body.get("model")
        try:
            self._check_key(headers)
        except Refusal as refusal:
            return refusal
        if model not in settings.models and not settings.is_llama_cpp:
            return Refusal(404, f"The model `{model}` does not exist.", "model")
        unknown = [name for name in EXTENSIONS if name in body and name not in settings.understands]
        if settings.is_strict and unknown:
            return Refusal(400, f"Unrecognized request argument supplied: {unknown[0]}", unknown[0])
        return None

    def _check_key(self, headers: Mapping[str, str]) -> None:
        key = self.settings.key
        if key is not None and headers.get("authorization") != f"Bearer {key}":
            raise Refusal(401, "Incorrect API key provided.", code="invalid_api_key")

    def _take(self, num_tokens: int, now_s: float) -> dict[str, str]:
        """Headers that tell what is left of its limits. Raises Refusal where that is too little."""
        wait_s, headers = 0.0, {}
        for allowance in self._allowances:
            wait_s = max(wait_s, allowance.take(num_tokens if allowance.name == "tokens" else 1, now_s))
            headers |= allowance.headers()
        if wait_s:
            headers["retry-after"] = f"{wait_s:.3f}"
            raise Refusal(429, "Rate limit reached.", code="rate_limit_exceeded", headers=headers)
        return headers

    async def _control(self, request: web.BaseRequest) -> web.Response:
        """Tells another process what it has seen, and does what that says."""
        if request.method == "GET":
            return sending.answer_json(self.seen.as_json())
        given = await request.json()
        if request.path == "/control/behave":
            self._set_behaviours([Behaviour(**fields) for fields in given])
        else:
            self._set(replace(self.settings, **given))
        return sending.answer_json({})


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=REQUEST_BYTES_MAX)
