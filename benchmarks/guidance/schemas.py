"""Answers to random JSON schemas at temperature 1, each checked against its schema: how many validate.

The model is tiny and its weights are random, so only the grammar makes its answers what they are. The schemas
go through an engine with room, one whose steps overlap, one that preempts, and one that resumes every answer
at a random token; the last three must give the same tokens as the first.

    python -m benchmarks.guidance.schemas                          # --schemas 1000 --seed 0
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema

from tests.unit.workers.engine.guidance.random_schemas import Schema, check, grammar_of, random_schema
from tests.unit.workers.engine.tiny_models import greedy, make_engine, run_to_end, save_model
from workers.engine import Completion, Engine, Request, SamplingParams

CONTEXT = 2048
ROOMY: dict[str, Any] = {"num_kv_blocks": 60_000, "max_num_seqs": 64}
CRAMPED: dict[str, Any] = {"num_kv_blocks": 300, "max_num_seqs": 32, "max_num_batched_tokens": 64}


def run(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    for request in requests:
        engine.add(request)
    completions = run_to_end(engine, steps_max=1_000_000)
    return [completions[request.id] for request in requests]


def verdict(completion: Completion, schema: Schema, plain: Completion) -> str:
    if completion.finish_reason != "stop":
        return f"{completion.finish_reason}: {completion.error or 'cut off'}"
    try:
        check(completion.text, schema)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"invalid: {type(error).__name__}"
    return "valid" if completion.token_ids == plain.token_ids else "valid, but with other tokens"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guidance.schemas", description=__doc__)
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    rng = random.Random(chosen.seed)
    schemas = [random_schema(rng) for _ in range(chosen.schemas)]
    params = SamplingParams(temperature=1.0, max_tokens=CONTEXT - 8)
    requests = [Request(f"g{n}", [1, 2, 3], params, grammar=grammar_of(s)) for n, s in enumerate(schemas)]
    with tempfile.TemporaryDirectory() as directory:
        model = save_model(Path(directory), vocab_size=300, max_position_embeddings=CONTEXT)
        plain = run(make_engine(model, **ROOMY), requests)
        print(f"{sum(len(each.token_ids) for each in plain)} tokens in {len(plain)} answers")
        report("with room", schemas, plain, plain)
        report("overlapped", schemas, run(make_engine(model, overlap_steps=True, **ROOMY), requests), plain)
        cramped = make_engine(model, **CRAMPED)
        fillers = [Request(f"f{n}", [n], greedy(400)) for n in range(16)]
        report("preempted", schemas, run(cramped, [*requests, *fillers]), plain)
        print(f"  {cramped.stats().preemptions} preemptions")
        cut = [list(each.token_ids[: rng.randint(1, len(each.token_ids))]) for each in plain]
        resumed = [replace(r, output_token_ids=tokens) for r, tokens in zip(requests, cut, strict=True)]
        report("resumed", schemas, run(make_engine(model, **ROOMY), resumed), plain)


def report(
    name: str, schemas: Sequence[Schema], completions: Sequence[Completion], plain: Sequence[Completion]
) -> None:
    # Of those there may be more than schemas: what made the engine preempt.
    verdicts = Counter(map(verdict, completions, schemas, plain))
    print(f"{name}: {dict(verdicts)}", flush=True)


if __name__ == "__main__":
    main()
