"""Whose fault a failure is: a row's own ends that row alone, the upstream's is waited for and told."""

import asyncio
import gzip
import math
import queue
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightshift.errors import InvalidRequest
from nightshift.process.upstreams import Upstream
from tests.helpers.upstreams import Settings, SimulatedUpstream, simulated_upstream
from tests.helpers.upstreams.behaviours import (
    Behaviour,
    breaks,
    counts,
    fails,
    holds,
    html,
    says,
    too_many,
    unavailable,
)
from tests.helpers.waiting import WAIT_MAX_S, wait_for
from tests.unit.workers.upstreams.conftest import Asker, Opening
from tests.unit.workers.upstreams.running.test_server import answered, runs
from workers.serving.model_server import Busy
from workers.upstreams.connection import Connection
from workers.upstreams.control.breaker import FAULTS_IN_A_ROW
from workers.upstreams.faults import Unavailable, UpstreamChanged, retry_after_s
from workers.upstreams.running import server

NO_TOOLS = "No endpoints found that support tool use"


# -- the upstream's


@pytest.mark.parametrize("refusal", [too_many(), unavailable()], ids=["429", "503"])
def test_an_upstream_that_refuses_all_is_told_as_the_models_problem(
    asker: Asker, upstream: SimulatedUpstream, refusal: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ONLINE_WAIT_S", 0.0)
    upstream.behave(refusal)
    row, chat = asker.chat("a row"), asker.chat("a chat", is_bulk=False)
    assert row.end.is_returned
    assert asker.server.problem is not None
    assert f"answers {refusal.status} since " in asker.server.problem
    assert chat.result.status_code == 503
    assert chat.body["error"]["message"] == asker.server.problem


def test_a_refusal_beside_requests_that_run_is_no_problem(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(too_many(containing="more", times=20), holds(containing="held"))
    held = asker.chat("held")
    upstream.wait_until("it is there", lambda seen: "held" in seen.prompts)
    more = asker.chat("more")
    wait_for("it was refused", lambda: upstream.seen.statuses[429])
    assert asker.server.problem is None
    upstream.behave()
    assert held.text == answered("held")
    assert more.text == answered("more")


@pytest.mark.parametrize("status", [402, 403, 409, 410, 424])
def test_rows_wait_for_an_upstream_that_answers_all_of_them_with_another_error(
    asker: Asker, upstream: SimulatedUpstream, status: int
) -> None:
    upstream.behave(fails(status, "Insufficient balance"))
    rows = [asker.chat(f"row {number}") for number in range(FAULTS_IN_A_ROW)]
    assert all(row.end.is_returned for row in rows)
    assert f"answers {status} since " in str(asker.server.problem)
    assert "balance" not in str(asker.server.problem), "what it says may quote a row"


def test_few_rows_end_while_an_upstream_fails_on_all(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(breaks())
    ends = [
        asker.chat(f"row {number}").end for number in range(3 * FAULTS_IN_A_ROW) if not asker.server.problem
    ]
    assert all(end.is_returned for end in ends[-1:])
    assert "answers 500 since " in str(asker.server.problem)


@pytest.mark.parametrize(
    "change", [{"version": "0.33.0"}, {"root": "example/other"}], ids=["engine", "model"]
)
def test_a_worker_ends_where_an_upstream_comes_back_with_another_model(
    upstream: SimulatedUpstream, opened: Opening, change: dict[str, str]
) -> None:
    ended: queue.Queue[BaseException] = queue.Queue()
    asker = opened(upstream.url, on_fatal=ended.put)
    upstream.behave(unavailable())
    assert asker.chat().end.is_returned
    upstream.serve(**change)
    upstream.behave()

    def has_ended() -> bool:
        with suppress(Busy):
            asker.chat("after it")
        return not ended.empty()

    wait_for("it is tried", has_ended)
    reason = ended.get()
    assert isinstance(reason, UpstreamChanged)
    assert "another engine, version or checkpoint of 'simulated'" in str(reason)
    assert "after it" not in upstream.seen.prompts


def test_an_upstream_that_comes_back_as_it_was_is_used_again(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    upstream.behave(unavailable())
    assert asker.chat().end.is_returned
    upstream.serve(version=None)  # it may not be told once more
    upstream.behave()
    wait_for("it answers", lambda: runs(asker))


# -- a row's


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (html(403), "The upstream answers 403."),
        (fails(403, "Flagged by moderation"), "The upstream answers 403: Flagged by moderation."),
        (fails(404, NO_TOOLS), f"The upstream no longer has the model (404): {NO_TOOLS}."),
        (breaks(), "The upstream answers 500: CUDA error: device-side assert triggered."),
        (
            Behaviour(body='{"error": {"message": "provider failed", "code": 502}}'),
            "The upstream answers 502",
        ),
    ],
    ids=["a firewall's page", "moderation", "no endpoint", "500", "an error under 200"],
)
def test_a_row_that_alone_is_answered_so_ends_and_the_others_go_on(
    asker: Asker, upstream: SimulatedUpstream, fault: Behaviour, message: str
) -> None:
    upstream.behave(replace(fault, containing="poison"))
    poisoned, well = asker.chat("poison"), asker.chat("well")
    while not poisoned.ended.is_set() or poisoned.end.is_returned:  # as their shards do
        with suppress(Busy):
            if poisoned.ended.is_set():
                poisoned = asker.chat("poison", breaks=poisoned.end.breaks)
        with suppress(Busy):
            if well.ended.wait(0.01):
                well = asker.chat("well")
    assert str(poisoned.end.failed).startswith(message)
    upstream.behave()
    wait_for("the others go on", lambda: runs(asker))


def test_a_filters_refusal_is_the_rows(asker: Asker, upstream: SimulatedUpstream) -> None:
    upstream.behave(fails(403, "No.", code="content_policy_violation"))
    assert asker.chat().result.status_code == 403
    assert asker.server.problem is None


def test_a_route_that_one_upstream_lacks_is_refused_and_holds_nothing_up(opened: Opening) -> None:
    with simulated_upstream() as whole, simulated_upstream(Settings(routes=("chat/completions",))) as less:
        asker = opened(whole.url, less.url)
        whole.behave(holds())
        with pytest.raises(InvalidRequest, match="do not all answer /v1/completions"):
            asker.ask("completions", {"prompt": "Hi"})
        whole.behave()
        assert asker.chat("a row").text == answered("a row")


# -- ours


def test_a_request_that_is_cancelled_as_it_is_sent_leaves_its_place(asker: Asker) -> None:
    """Its task is cancelled before it begins."""
    place, gone = asker.server.places[0], threading.Event()

    def send_and_cancel() -> None:
        heard = asker.chat("a row")
        asker.server._calls.popleft()()
        asker.server.send_waiting(heard.inference.priority)
        assert place.upstream.places.limit.in_flight == 1
        asker.server.cancel(heard.inference.id)
        asker.server.after_cancelled(gone.set)

    asker.server._call(send_and_cancel)
    assert gone.wait(WAIT_MAX_S)
    assert place.upstream.places.limit.in_flight == place.upstream.places.bulk_in_flight == 0


def test_requests_that_wait_are_looked_at_a_few_times_a_second(
    asker: Asker, upstream: SimulatedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays_s: list[float] = []
    call_later = asyncio.BaseEventLoop.call_later

    def noted(loop: asyncio.BaseEventLoop, delay_s: float, *rest: object) -> asyncio.TimerHandle:
        if getattr(rest[0], "__name__", "") == "_tick":
            delays_s.append(delay_s)
        return call_later(loop, delay_s, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_later", noted)
    upstream.behave(too_many(0.3, times=1))
    assert asker.chat("a row").text == answered("a row")
    assert delays_s
    assert min(delays_s) >= 0.1


# -- tokens a minute


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": "many"}])
def test_tokens_are_spent_where_an_upstream_tells_no_usage(
    upstream: SimulatedUpstream, opened: Opening, tmp_path: Path, usage: object
) -> None:
    upstream.behave(counts(usage))  # type: ignore[arg-type]
    asker = opened(_limited(upstream, tmp_path))
    assert asker.chat(max_tokens=50).result.succeeded
    assert _wait_s(asker) > 0


def test_a_refused_request_has_spent_no_tokens(
    upstream: SimulatedUpstream, opened: Opening, tmp_path: Path
) -> None:
    asker = opened(_limited(upstream, tmp_path))
    upstream.behave(fails(400, "no"))
    assert asker.chat(max_tokens=50).result.status_code == 400
    assert _wait_s(asker) == 0


def test_what_a_stream_or_a_refusal_tells_of_its_limits_is_heeded(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "50s"}
    upstream.behave(Behaviour(headers=headers))
    assert asker.chat(is_bulk=False, stream=True).text
    assert _wait_s(asker) > 0


def _limited(upstream: SimulatedUpstream, folder: Path) -> str:
    file = folder / "upstreams.yaml"
    file.write_text(f"upstreams: [{{url: '{upstream.url}', tokens_per_minute: 61}}]")
    return str(file)


def _wait_s(asker: Asker) -> float:
    return asker.server.places[0].upstream.places.wait_s(time.monotonic(), is_interactive=True)


# -- what is on the line


@pytest.mark.parametrize(
    "event",
    [
        'data: {"choices": [{"index": 0, "delta": {"content": 7}}]}\n\n',
        'data: {"choices": [{"index": 9, "delta": {"content": "a"}}]}\n\n',
        'data: {"choices": 4}\n\n',
        "data: null\n\n",
        "data: \udcff\udcfe\n\n",  # no UTF-8
        'data: {"choices": [{"index": 0, "delta": {"content": "\udcc3"}}]}\n\n',  # half a character
        'data: {"error": "overloaded"}\n\n',
        'data: {"error": {"message": "no", "code": 503}}\n\n',
    ],
)
def test_an_event_that_is_none_costs_no_stream(asker: Asker, upstream: SimulatedUpstream, event: str) -> None:
    upstream.behave(says(event, 0, containing="Tell", times=1))
    heard = asker.chat("Tell", is_bulk=False, stream=True)
    assert heard.text == answered("Tell")


@pytest.mark.parametrize(
    "event", [": keep-alive\n\n", "event: ping\n\n", 'data: {"choices": [], "error": null}\n\n', "\r\n"]
)
def test_an_event_without_news_is_passed_over(asker: Asker, upstream: SimulatedUpstream, event: str) -> None:
    upstream.behave(says(event, 0, containing="Tell"))
    assert asker.chat("Tell", is_bulk=False, stream=True).text == answered("Tell")
    assert upstream.seen.prompts.count("Tell") == 1


@contextmanager
def serving(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that says this to every connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    taken, _ = listening.accept()
                except OSError:
                    return
                with taken:
                    taken.recv(1 << 16)
                    taken.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def reason_of(url: str) -> str:
    async def fails_with() -> str:
        connection = Connection(Upstream(url=url), None, 1 << 10)
        try:
            await connection.post("/v1/completions", {})
        except Unavailable as fault:
            return fault.reason
        finally:
            await connection.close()
        raise AssertionError("it answered")

    return asyncio.run(fails_with())


HTTP_2 = bytes.fromhex("000000040000000000") + bytes.fromhex("000008070000000000") + bytes(7) + b"\x01"
"""An empty SETTINGS and a GOAWAY for a protocol error (RFC 9113): the answer of a server of HTTP/2 alone."""


@pytest.mark.parametrize(
    ("scheme", "answer", "reason"),
    [
        ("http", HTTP_2, "does not answer in HTTP/1.1"),
        ("http", b"220 smtp.example.com ESMTP\r\n", "does not answer in HTTP/1.1"),
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "cannot be reached by TLS"),
        ("http", b"", "broke the connection off"),
        ("http", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "broke the connection off"),
    ],
)
def test_a_server_that_speaks_otherwise_is_told_as_such(scheme: str, answer: bytes, reason: str) -> None:
    with serving(answer) as place:
        assert reason_of(f"{scheme}://{place}") == reason


def test_a_compressed_answer_is_no_answer_and_is_never_unpacked(
    asker: Asker, upstream: SimulatedUpstream
) -> None:
    bomb = gzip.compress(bytes(1 << 22)).decode(errors="surrogateescape")
    headers = {"content-encoding": "gzip"}
    upstream.behave(Behaviour(body=bomb, headers=headers, containing="bomb", times=1))
    assert asker.chat("bomb").text == answered("bomb")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("1.5", 1.5),
        ("Sat, 28 Nov 2026 12:00:09 GMT", 9.0),
        ("Sat, 28 Nov 2026 11:00:00 GMT", None),
        ("-5", None),
        ("nan", None),
        ("inf", None),
        ("9" * 400, math.inf),
        ("soon", None),
        ("", None),
        ("Sat, 28 Nov 99999 12:00:00 GMT", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_a_date(value: str, seconds: float | None) -> None:
    now = datetime(2026, 11, 28, 12, tzinfo=UTC)
    assert retry_after_s({"retry-after": value}, now) == seconds
    assert retry_after_s({"retry-after-ms": "1500", "retry-after": value}, now) == 1.5
