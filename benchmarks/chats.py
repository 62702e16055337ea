"""Measures chats beside bulk: their time to first token alone and beside it, and the speed that bulk keeps.

    python -m benchmarks.chats --model 0.6b --rows 6000 --rates 1 5 10 \\
        --setting ENGINE_MAX_NUM_SEQS=256 --setting ENGINE_MAX_NUM_BATCHED_TOKENS=8192
    python -m benchmarks.chats --model tiny --rows 200 --seconds 5      # to try it on a CPU

The service is its real processes with SQLite and a directory. Chats come over HTTP at random times (a Poisson
process), whatever the ones before do. A time to first token ends with the first text of a streamed answer.
Bulk is one job of the standard class, measured from its first claim to `_SUCCESS`; beside it count the chats
that were sent in that time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any, Final

import httpx

from benchmarks.fixtures import checkpoints
from benchmarks.report import Cell, percent, quantile, report
from benchmarks.service_overhead import PARTS, Ended, Work, letters, random_lines, run_job, service_with
from nightshift.fleet.checkpoints import model_id
from tests.faults.kit.service import Service

CHAT_TOKENS: Final = 64
BULK_TOKENS: Final = (128, 128)
WARM_UP_ROWS: Final = 32
TIMEOUT_S: Final = 120.0
SEED: Final = 3


@dataclass(frozen=True)
class Chat:
    sent_s: float
    """Seconds since 1970."""
    first_token_ms: float


@dataclass
class Chats:
    """Chats at a rate: `run` sends them on a thread of its own until it is left."""

    service: Service
    model: str
    per_second: float
    answered: list[Chat] = field(default_factory=list)

    @contextmanager
    def run(self) -> Iterator[None]:
        """Raises the first error of a chat at the end."""
        is_over, errors = threading.Event(), list[BaseException]()

        def send() -> None:
            try:
                asyncio.run(self._send_until(is_over.is_set))
            except BaseException as error:  # noqa: BLE001 - raised on the caller's thread
                errors.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
        if errors:
            raise errors[0]

    async def _send_until(self, is_over: Callable[[], bool]) -> None:
        draw = random.Random(SEED)
        headers = {"authorization": f"Bearer {self.service.api_key}"}
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(
                base_url=self.service.base_url,
                headers=headers,
                verify=False,
                trust_env=False,
                timeout=TIMEOUT_S,
                limits=limits,
            ) as http,
            asyncio.TaskGroup() as group,
        ):
            while not is_over():
                group.create_task(self._send(http, letters(draw)))
                await asyncio.sleep(draw.expovariate(self.per_second))

    async def _send(self, http: httpx.AsyncClient, text: str) -> None:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": CHAT_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        sent_s, began_s = time.time(), time.perf_counter()
        first_s: float | None = None
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                raise RuntimeError(f"a chat was refused: {answer.status_code} {await answer.aread()!r}")
            async for line in answer.aiter_lines():
                if first_s is None and has_text(line):
                    first_s = time.perf_counter()
        if first_s is None:
            raise RuntimeError("an answer had no text")
        self.answered.append(Chat(sent_s, 1000 * (first_s - began_s)))


def has_text(line: str) -> bool:
    if not line.startswith("data: {"):
        return False
    choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
    return bool(choices[0].get("delta", {}).get("content"))


def measure(model: str, rows: int, rates: Sequence[float], seconds: float, **settings: str) -> list[Any]:
    """A row of the table for each rate."""
    path = checkpoints.ensure(model, "bfloat16")
    work = Work(model, path, "completions", "bfloat16", random_lines(path, rows, BULK_TOKENS))
    threads = len(os.sched_getaffinity(0))
    with service_with(path, replace(PARTS, threads=threads), DTYPE="bfloat16", **settings) as service:
        run = Bulk(service, work).run
        run("warm-up", WARM_UP_ROWS)
        chats_in(service, path, seconds=2.0, per_second=5.0)
        alone = [chats_in(service, path, seconds, rate) for rate in rates]
        ran_alone = [run("before", rows)]
        beside = []
        for rate in rates:
            chats = Chats(service, model_id(str(path)), rate)
            with chats.run():
                ended = run(f"beside-{rate:g}", rows)
            during = [chat for chat in chats.answered if chat.sent_s > ended.claimed_s]
            beside.append(([chat for chat in during if chat.sent_s < ended.success_s], ended))
        ran_alone.append(run("after", rows))
    bulk_alone = mean(map(_speed, ran_alone))
    pairs = zip(rates, alone, beside, strict=True)
    return [table_row(rate, own, during, ended, bulk_alone) for rate, own, (during, ended) in pairs]


def chats_in(service: Service, path: Path, seconds: float, per_second: float) -> list[Chat]:
    """Chats of some seconds."""
    chats = Chats(service, model_id(str(path)), per_second)
    with chats.run():
        time.sleep(seconds)
    return chats.answered


@dataclass(frozen=True)
class Bulk:
    service: Service
    work: Work

    def run(self, name: str, rows: int) -> Ended:
        """Runs a job over the first rows."""
        place = Path(self.service.location("").removeprefix("file://"))
        source = self.work.write(self.work.rows[:rows], place / name / "input")
        return run_job(
            self.service, self.work.body(source.as_uri(), self.service.location(f"{name}/out/")), rows
        )


def table_row(
    rate: float, alone: Sequence[Chat], beside: Sequence[Chat], ended: Ended, bulk_alone: float
) -> dict[str, Cell]:
    assert beside, "no chat was sent beside bulk: more rows are needed"
    own, during = ([chat.first_token_ms for chat in chats] for chats in (alone, beside))
    return {
        "chats/s": rate,
        "chats alone": len(own),
        "alone p50, ms": quantile(own, 0.5),
        "alone p99, ms": quantile(own, 0.99),
        "chats beside": len(during),
        "beside p50, ms": quantile(during, 0.5),
        "beside p99, ms": quantile(during, 0.99),
        "p99 beside / alone": quantile(during, 0.99) / quantile(own, 0.99),
        "bulk alone, tok/s": bulk_alone,
        "bulk beside, tok/s": _speed(ended),
        "bulk keeps": percent(_speed(ended), bulk_alone),
    }


def _speed(ended: Ended) -> float:
    return ended.job.usage.completion_tokens / ended.after_claim_s


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="0.6b", choices=checkpoints.DECODERS)
    parser.add_argument("--rows", type=int, default=6000, help="of the bulk job, of 128 tokens each")
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0, 5.0, 10.0], help="chats per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of chats alone, at each rate")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the worker")
    chosen = parser.parse_args(arguments)
    settings = dict(setting.split("=", 1) for setting in chosen.setting)
    rows = measure(chosen.model, chosen.rows, chosen.rates, chosen.seconds, **settings)
    notes = [f"{chosen.model}, {chosen.rows} rows, {chosen.seconds:g} s of chats alone, {settings}."]
    report("chats", rows, [*notes, "The goals: a p99 of at most 2 times that alone; bulk keeps 90 %."])


if __name__ == "__main__":
    main()
