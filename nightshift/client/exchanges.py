"""Exchanges with a server, as generators that yield what is to be sent and are told the answer: the plain
and the asynchronous client run the same ones.

    def greeted() -> Exchange[str]:
        return (yield from answered(Call("GET", "/hello"))).text

    run(greeted(), httpx.Client(…), time.sleep)
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
from httpx import USE_CLIENT_DEFAULT

from nightshift.client.answers import RETRY, ServerUnreachable, api_error
from nightshift.jobs import JsonObject

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 30.0
TRIES_MAX: Final = 5
FOLLOWING_TRIES_MAX: Final = 20  # about two minutes, enough for a restart

Query = Mapping[str, str | list[str]]  # a URL's parameters
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request. `sink`: takes the bytes of an answer without an error as they come."""

    method: str
    path: str
    json: JsonObject | None = None
    params: Query | None = None
    headers: Mapping[str, str] | None = None
    form: Mapping[str, str] | None = None
    files: Mapping[str, tuple[str, bytes]] | None = None
    sink: Callable[[bytes], None] | None = None
    timeout_s: float | None = None  # if another than the client's

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        return http.build_request(
            self.method,
            self.path,
            json=self.json,
            params=self.params,
            headers=self.headers,
            data=self.form,
            files=self.files,
            timeout=USE_CLIENT_DEFAULT if self.timeout_s is None else self.timeout_s,
        )


@dataclass(frozen=True)
class Pause:
    seconds: float


Step = Call | Pause
Exchange = Generator[Step, Any, T]
"""Is sent the `httpx.Response` to a call, whose body is read, and None after a pause."""


def answered(call: Call, *, tries: int = TRIES_MAX, is_following: bool = False) -> Exchange[httpx.Response]:
    """An answer without an error. With more than one try, the call must be safe to repeat.

    `is_following`: the server answered before, so that a refused connection is tried again. Raises ApiError,
    ServerUnreachable.
    """
    for attempt in range(1, tries + 1):
        try:
            answer: httpx.Response = yield call
        except httpx.TransportError as error:
            is_pointless = isinstance(error, httpx.ConnectError) and not is_following
            if attempt == tries or is_pointless:
                raise unreachable(error) from error
            yield Pause(RETRY.delay_s(attempt))
            continue
        if not answer.is_error:
            return answer
        refused = api_error(answer)
        if attempt == tries or not refused.is_passing:
            refused.is_repeat = attempt > 1
            raise refused
        yield Pause(refused.retry_after_s or RETRY.delay_s(attempt))
    raise AssertionError("the last attempt returns or raises")


def run(exchange: Exchange[T], http: httpx.Client, sleep: Callable[[float], None] = time.sleep) -> T:
    """The exchange's result. Raises what it raises."""
    try:
        step = next(exchange)
        while True:
            if isinstance(step, Pause):
                sleep(step.seconds)
                step = next(exchange)
                continue
            try:
                answer = _sent(step, http)
            except httpx.TransportError as error:
                step = exchange.throw(error)
            else:
                step = exchange.send(answer)
    except StopIteration as ended:
        result: T = ended.value
        return result
    finally:
        exchange.close()  # after Ctrl-C too, so that no progress bar or file outlives it


async def run_async(
    exchange: Exchange[T],
    http: httpx.AsyncClient,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """The same without blocking the event loop: what the exchange computes runs in threads."""
    try:
        step = await asyncio.to_thread(_advanced, exchange.send, None)
        while not isinstance(step, _Ended):
            advance: Callable[[Any], Step] = exchange.send
            answer: httpx.Response | httpx.TransportError | None = None
            if isinstance(step, Pause):
                await sleep(step.seconds)
            else:
                try:
                    answer = await _sent_async(step, http)
                except httpx.TransportError as error:
                    advance, answer = exchange.throw, error
            step = await asyncio.to_thread(_advanced, advance, answer)
    finally:
        with suppress(ValueError):  # cancelled while its thread computes, it ends with that
            exchange.close()
    result: T = step.result
    return result


@dataclass(frozen=True)
class _Ended:
    result: Any


def _advanced(advance: Callable[[Any], Step], with_what: object) -> Step | _Ended:
    """The exchange's next step: a StopIteration cannot leave a thread."""
    try:
        return advance(with_what)
    except StopIteration as ended:
        return _Ended(ended.value)


def _sent(call: Call, http: httpx.Client) -> httpx.Response:
    answer = http.send(call.request(http), stream=call.sink is not None)
    try:
        if call.sink is None or answer.is_error:
            answer.read()
        else:
            for piece in answer.iter_bytes():
                call.sink(piece)
    finally:
        answer.close()
    return answer


async def _sent_async(call: Call, http: httpx.AsyncClient) -> httpx.Response:
    answer = await http.send(call.request(http), stream=call.sink is not None)
    try:
        if call.sink is None or answer.is_error:
            await answer.aread()
        else:
            async for piece in answer.aiter_bytes():
                await asyncio.to_thread(call.sink, piece)
    finally:
        await answer.aclose()
    return answer


def unreachable(error: httpx.TransportError) -> ServerUnreachable:
    reason, server = str(error).rstrip("."), error.request.url.join("/")
    return ServerUnreachable(
        f"No answer from {server}: {reason}. Is the server running? "
        "`nightshift up` starts one; NIGHTSHIFT_BASE_URL says where another is."
    )
