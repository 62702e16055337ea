"""Translation by our engine, by static `generate` and by CTranslate2: a Marian in opus-mt's shape.

    python -m benchmarks.translation [--peers ctranslate2]

Sources are lognormal, 8 to 128 tokens, outputs about as long; greedy, end-of-sequence ignored. `generate` has
batches in order of arrival, each as long as its longest output; only the tokens that were asked for count.
CTranslate2, in float32 and in int8, has batches of similar sources, which each row leaves at its own length.
Ours is in float32 throughout; it runs before and after each peer, and a ratio is to those two.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Final

import torch

from benchmarks.checkpoints import ensure_translator
from benchmarks.environments import ENVIRONMENTS, PeerUnavailableError, ensure
from benchmarks.measure import cpu_times
from benchmarks.models import TRANSLATOR_VOCAB_SIZE
from benchmarks.report import Cell, others, report, share
from benchmarks.workloads import NUM_SPECIAL_TOKENS, Lengths

SOURCES: Final = Lengths(28, 0.6, 8, 128)
RATIOS: Final = (0.7, 1.3)
"""Of an output's length to its source's."""
BATCH_SIZES: Final = (16, 32)
CTRANSLATE2_BATCH_SIZES: Final = (16, 32, 64)
PRECISIONS: Final = ("float32", "int8")
PEERS: Final = ("generate", "ctranslate2")
RUNNER: Final = Path(__file__).parent / "runners" / "ctranslate2_translator.py"
RUN_SECONDS_MAX: Final = 3600
WARM_UP: Final = 32
"""Rows: a batch of the peers', so that each has had its memory."""


@dataclass(frozen=True)
class Translation:
    source: list[int]
    num_output_tokens: int


def make_work(rows: int, seed: int) -> list[Translation]:
    draw = random.Random(seed)
    ids = range(NUM_SPECIAL_TOKENS, TRANSLATOR_VOCAB_SIZE)
    lengths = [SOURCES.draw(draw) for _ in range(rows)]
    return [
        Translation(draw.choices(ids, k=length), max(4, round(length * draw.uniform(*RATIOS))))
        for length in lengths
    ]


Run = Callable[[Sequence[Translation]], list[list[int]]]


def ours(path: str) -> Run:
    from workers.engine import Engine, EngineConfig, Request, SamplingParams
    from workers.engine.seq2seq.model import load_seq2seq, seq2seq_config
    from workers.engine.seq2seq.prompt import seq2seq_prompt
    from workers.engine.text.tokenizer import Tokenizer

    config = seq2seq_config(EngineConfig(path, dtype="float32", kv_cache_bytes=2**30))
    tokenizer = Tokenizer.load(path)
    loaded = load_seq2seq(config, tokenizer)
    engine = Engine.over(loaded, tokenizer, config)
    start = loaded.forward_pass.rules.start_token_id

    def run(work: Sequence[Translation]) -> list[list[int]]:
        for number, each in enumerate(work):
            prompt = seq2seq_prompt(each.source, [start], config.block_size)
            request = Request(
                str(number),
                prompt.token_ids,
                SamplingParams(temperature=0, max_tokens=each.num_output_tokens, ignore_eos=True),
                group="rows",
                output_kind="final_only",
                source_slots=prompt.source_slots,
                num_source_tokens=len(each.source),
            )
            engine.add(request)
        found: dict[int, list[int]] = {}
        while engine.has_work:
            found |= {int(output.id): output.token_ids for output in engine.step() if output.finish_reason}
        return [found[number] for number in range(len(work))]

    return run


def static(path: str, batch_size: int) -> Run:
    from transformers import MarianMTModel

    model: Any = MarianMTModel.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").eval()
    pad = model.config.pad_token_id
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None

    def run(work: Sequence[Translation]) -> list[list[int]]:
        answers: list[list[int]] = []
        for at in range(0, len(work), batch_size):
            group = work[at : at + batch_size]
            width = max(len(each.source) for each in group)
            ids = torch.tensor([each.source + [pad] * (width - len(each.source)) for each in group])
            longest = max(each.num_output_tokens for each in group)
            with torch.inference_mode():
                found = model.generate(
                    ids,
                    attention_mask=(ids != pad).long(),
                    max_new_tokens=longest,
                    num_beams=1,
                    do_sample=False,
                )
            answers += [
                row[1 : 1 + each.num_output_tokens] for row, each in zip(found.tolist(), group, strict=True)
            ]
        return answers

    return run


@dataclass(frozen=True)
class Timed:
    """One run of a peer over all rows."""

    name: str
    seconds: float
    answers: list[list[int]]


def ctranslate2_runs(path: str, work: Sequence[Translation], precision: str, threads: int) -> list[Timed]:
    """One for each of its batch sizes, in a process of its own. Raises PeerUnavailableError."""
    python = ensure(ENVIRONMENTS["ctranslate2"])
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([[each.source, each.num_output_tokens] for each in work], file)
        file.flush()
        sizes = map(str, CTRANSLATE2_BATCH_SIZES)
        command = [str(python), str(RUNNER), path, file.name, precision, str(threads), *sizes]
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        variables |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
        )
    if done.returncode:
        raise PeerUnavailableError(f"ctranslate2 failed: {done.stderr.strip().splitlines()[-1:]}")
    return [
        Timed(
            f"CTranslate2 {said['version']} {precision}, batches of {said['batch_size']}",
            said["seconds"],
            said["answers"],
        )
        for said in map(json.loads, done.stdout.splitlines())
    ]


def generate_runs(path: str, work: Sequence[Translation], batch_size: int) -> list[Timed]:
    peer = static(path, batch_size)
    peer(work[:WARM_UP])
    return [Timed(f"generate, batches of {batch_size}", *timed(peer, work))]


def timed(run: Run, work: Sequence[Translation]) -> tuple[float, list[list[int]]]:
    began_s = time.monotonic()
    answers = run(work)
    return time.monotonic() - began_s, answers


def table(rows: int, seed: int, threads: int, peers: Sequence[str]) -> list[dict[str, Cell]]:
    path, work = str(ensure_translator()), make_work(rows, seed)
    engine = ours(path)
    engine(work[:WARM_UP])
    runs: list[Callable[[], list[Timed]]] = []
    if "generate" in peers:
        runs += [partial(generate_runs, path, work, size) for size in BATCH_SIZES]
    if "ctranslate2" in peers:
        runs += [partial(ctranslate2_runs, path, work, precision, threads) for precision in PRECISIONS]
    return [row for run in runs for row in beside(engine, run, work)]


def beside(
    engine: Run, run: Callable[[], list[Timed]], work: Sequence[Translation]
) -> Iterator[dict[str, Cell]]:
    """A peer's best run, between two of ours. Others' CPU is that beside ours."""
    tokens = sum(each.num_output_tokens for each in work)
    began = cpu_times(os.getpid())
    before_s, answers = timed(engine, work)
    others_share = cpu_times(os.getpid()).other_share_since(began)
    try:
        best = min(run(), key=lambda each: each.seconds)
    except PeerUnavailableError as error:
        yield {"peer": f"left out: {error}"}
        return
    began = cpu_times(os.getpid())
    after_s, _ = timed(engine, work)
    others_share = max(others_share, cpu_times(os.getpid()).other_share_since(began))
    same = sum(one == other for one, other in zip(answers, best.answers, strict=True))
    both_s = mean((before_s, after_s))
    yield {
        "peer": best.name,
        "tok/s": tokens / best.seconds,
        "ours, tok/s": tokens / both_s,
        "ours / it": round(best.seconds / both_s, 2),
        "equal outputs": share(same, len(work)),
        "others' CPU": others(others_share),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    rows = table(chosen.rows, chosen.seed, chosen.threads, chosen.peers)
    report(
        "translation",
        rows,
        [f"{chosen.rows} rows, ours in float32, {chosen.threads} threads, seed {chosen.seed}"],
    )


if __name__ == "__main__":
    main()
