"""Measures `GET /healthz` beside costly requests: the API's event loop must not wait for them.

    nightshift up --data-dir DIR --port 8000 &
    python -m benchmarks.health --key-file DIR/api_key [--url URL] [--seconds 10] [--only CASE]

Each case repeats its requests from `SENDERS` threads while another process asks for the health every 20 ms on
a connection of its own. The process that sends is busy too, on the same machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.report import Cell, quantile, report

SENDERS: Final = 4
PAUSE_S: Final = 0.02
SAMPLER_START_S: Final = 1.0
GOAL_MS: Final = 250
TIMEOUT_S: Final = 120
STREAMS: Final = 500  # opened at once

Body = dict[str, Any]


def chat(**fields: Any) -> Body:
    return {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1, **fields}


CHATS: Final = "/v1/chat/completions"
EMBEDDINGS: Final = "/v1/embeddings"
TOKEN: Final = {"role": "user", "content": "1"}
TEXT: Final = "one two " * 200
CASES: Final[Mapping[str, tuple[str, Callable[[], Body]]]] = {
    "idle": (CHATS, chat),
    "36,000 messages": (CHATS, lambda: chat(messages=[TOKEN] * 36_000)),
    "36,000 messages, the last one wrong": (CHATS, lambda: chat(messages=[TOKEN] * 36_000 + [{}])),
    "2,048 inputs, the first one empty": (EMBEDDINGS, lambda: {"input": ["", *[TEXT] * 2_047]}),
    "2,048 inputs, the first one too long": (EMBEDDINGS, lambda: {"input": [TEXT] * 2_048}),
    "logit_bias of 100,000": (CHATS, lambda: chat(logit_bias={str(n): 1 for n in range(100_000)})),
    "a grammar that is refused": (CHATS, lambda: chat(guided_grammar="start: " + "(" * 4_000)),
    "n=128 with 20 log-probabilities": (
        CHATS,
        lambda: chat(n=128, logprobs=True, top_logprobs=20, max_tokens=64, ignore_eos=True),
    ),
    f"{STREAMS} streams": (CHATS, lambda: chat(stream=True)),
}
"""Routes and bodies, by case."""


def sample(url: str, is_over: Event, samples_ms: Any) -> None:
    """Asks for the health until the event is set."""
    connection = _connection(url)
    while not is_over.is_set():
        began_s = time.monotonic()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        samples_ms.append(1000 * (time.monotonic() - began_s))
        time.sleep(PAUSE_S)


def send(url: str, key: str, route: str, body: bytes, until_s: float, statuses: Counter[str]) -> None:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    while time.monotonic() < until_s:
        connection = _connection(url)
        try:
            connection.request("POST", route, body, headers)
            answer = connection.getresponse()
            answer.read()
            statuses[str(answer.status)] += 1
        except OSError as error:  # beyond the backlog of connections
            statuses[type(error).__name__] += 1
        connection.close()


def run(url: str, key: str, model: str, name: str, seconds: float) -> dict[str, Cell]:
    """One row of the table."""
    route, make_body = CASES[name]
    num_senders = STREAMS if name.endswith("streams") else 0 if name == "idle" else SENDERS
    body = json.dumps({"model": model, **make_body()}).encode()
    statuses: Counter[str] = Counter()
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        is_over, samples_ms = context.Event(), manager.list()
        sampler = context.Process(target=sample, args=(url, is_over, samples_ms))
        sampler.start()
        time.sleep(SAMPLER_START_S)
        until_s = time.monotonic() + seconds
        arguments = (url, key, route, body, until_s, statuses)
        senders = [threading.Thread(target=send, args=arguments) for _ in range(num_senders)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        time.sleep(max(0.0, until_s - time.monotonic()))
        is_over.set()
        sampler.join()
        taken_ms = [*samples_ms]
    return {
        "case": name,
        "bytes": len(body),
        "p50 ms": quantile(taken_ms, 0.5),
        "p99 ms": quantile(taken_ms, 0.99),
        "most ms": max(taken_ms),
        "answers": ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items())),
    }


def _connection(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)


def _model(url: str, key: str) -> str:
    connection = _connection(url)
    connection.request("GET", "/v1/models", headers={"authorization": f"Bearer {key}"})
    name: str = json.loads(connection.getresponse().read())["data"][0]["id"]
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument("--embedding-model", default="", help="the name for the cases of embeddings")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each case")
    parser.add_argument("--only", action="append", choices=CASES, help="these cases alone")
    chosen = parser.parse_args()
    key = chosen.key_file.read_text().strip()
    model = _model(chosen.url, key)
    rows = []
    for name in chosen.only or CASES:
        named = chosen.embedding_model or model if CASES[name][0] == EMBEDDINGS else model
        rows.append(run(chosen.url, key, named, name, chosen.seconds))
    report("health", rows, [f"The goal is a p99 of at most {GOAL_MS} ms."])


if __name__ == "__main__":
    main()
