"""Tokens per second of CPU time with half the rows held to a JSON schema, against none, in one process.

The kinds of run take turns, and the least time of each counts. Rows are sampled at temperature 1; a schema
that asks for a thousand objects keeps every row going to its last token.

    python -m benchmarks.guidance.speed small                      # --rows, --tokens, --rounds
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

import torch

from benchmarks.checkpoints import ensure
from benchmarks.models import SHAPES
from workers.engine import Engine, EngineConfig, Grammar, Request, SamplingParams

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "kind": {"enum": ["person", "place", "thing"]},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    },
    "required": ["name", "kind", "count", "tags"],
    "additionalProperties": False,
}
GRAMMAR = Grammar("json_schema", json.dumps({"type": "array", "items": ITEM, "minItems": 1000}))
PROMPT_TOKENS = 32


def seconds(engine: Engine, rows: int, num_guided: int, num_tokens: int, name: str) -> float:
    """CPU time of this process until all rows are done."""
    params = SamplingParams(temperature=1.0, max_tokens=num_tokens, ignore_eos=True)
    began = time.process_time()
    for row in range(rows):
        prompt = [100 + (row * 7 + n) % 1000 for n in range(PROMPT_TOKENS)]
        grammar = GRAMMAR if row < num_guided else None
        engine.add(Request(f"{name}-{row}", prompt, params, grammar=grammar))
    count = 0
    while engine.has_work:
        count += sum(len(output.token_ids) for output in engine.step())
    assert count == rows * num_tokens, f"{count} tokens, not {rows * num_tokens}"
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guidance.speed", description=__doc__)
    parser.add_argument("model", choices=SHAPES)
    parser.add_argument("--rows", type=int, nargs="+", default=[2, 16, 64])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    config = EngineConfig(str(ensure(chosen.model, "float32")), device="cpu", num_kv_blocks=1024)
    engine = Engine.load(config)
    seconds(engine, 2, 1, 4, "warm-up")
    for rows in chosen.rows:
        kinds: dict[int, list[float]] = {0: [], rows // 2: [], rows: []}
        for turn in range(chosen.rounds):
            for guided, times in kinds.items():
                times.append(seconds(engine, rows, guided, chosen.tokens, f"{turn}-{guided}"))
        free, *others = (min(times) for times in kinds.values())
        ratios = ", ".join(
            f"{guided} of {rows} guided: {free / least:.3f} of it"
            for guided, least in zip(list(kinds)[1:], others, strict=True)
        )
        print(f"{rows} rows: {rows * chosen.tokens / free:.0f} tokens per CPU second; {ratios}", flush=True)


if __name__ == "__main__":
    main()
