"""Translation by our engine and by transformers' static `generate`: a Marian in opus-mt's shape, float32.

    python -m benchmarks.translation

Sources are lognormal, 8 to 128 tokens, outputs about as long; greedy, end-of-sequence ignored. `generate` has
batches in order of arrival, each as long as its longest output; only the tokens that were asked for count.
Ours runs before and after each batch size, in the same process, and a ratio is to those two.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Final

import torch

from benchmarks.checkpoints import ensure_translator
from benchmarks.measure import cpu_times
from benchmarks.models import TRANSLATOR_VOCAB_SIZE
from benchmarks.report import Cell, others, report, share
from benchmarks.workloads import NUM_SPECIAL_TOKENS, Lengths

SOURCES: Final = Lengths(28, 0.6, 8, 128)
RATIOS: Final = (0.7, 1.3)
"""Of an output's length to its source's."""
BATCH_SIZES: Final = (16, 32)
WARM_UP: Final = 4


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


def timed(run: Run, work: Sequence[Translation]) -> tuple[float, list[list[int]]]:
    began_s = time.monotonic()
    answers = run(work)
    return time.monotonic() - began_s, answers


def table(rows: int, seed: int) -> list[dict[str, Cell]]:
    path, work = str(ensure_translator()), make_work(rows, seed)
    tokens = sum(each.num_output_tokens for each in work)
    engine = ours(path)
    engine(work[:WARM_UP])
    found: list[dict[str, Cell]] = []
    for size in BATCH_SIZES:
        peer = static(path, size)
        peer(work[:WARM_UP])
        began = cpu_times(os.getpid())
        before_s, answers = timed(engine, work)
        theirs_s, expected = timed(peer, work)
        after_s, _ = timed(engine, work)
        same = sum(one == other for one, other in zip(answers, expected, strict=True))
        both_s = mean((before_s, after_s))
        found.append(
            {
                "peer": f"generate, batches of {size}",
                "tok/s": tokens / theirs_s,
                "ours, tok/s": tokens / both_s,
                "ours / it": round(theirs_s / both_s, 2),
                "equal outputs": share(same, rows),
                "others' CPU": others(cpu_times(os.getpid()).other_share_since(began)),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=5)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    rows = table(chosen.rows, chosen.seed)
    report(
        "translation", rows, [f"{chosen.rows} rows, float32, {chosen.threads} threads, seed {chosen.seed}"]
    )


if __name__ == "__main__":
    main()
