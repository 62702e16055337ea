"""Measures what drafting tokens gains or costs, by the number of sequences at once.

    python -m benchmarks.speculation [--model medium] [--dtype bfloat16] [--batches 1 4 8 64] [--works copy]

The weights are random, but for `copy` and `json`: there the next token depends on the last alone, so that the
model writes a text that stands in its prompt, in which one token of 16 is another. A layer costs
what it costs otherwise. In `mislead` the prompt has the text's threes of tokens in another order, so each is
followed by a wrong token. `json` follows a schema whose names are long. `own` has nothing to copy. Engines
without drafts and with them, over one model, take a step in turns: what disturbs one disturbs both.

In `agreeing` and `differing` both engines draft, one of them with a draft model, where nothing is to copy.
The model is that of `copy`; the draft model answers as it does but for one token of `WRONG_EVERY`, or at
random. So the share accepted is made, and what is measured is the gain at that share.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fixtures.checkpoints import DTYPES, copying, ensure
from benchmarks.fixtures.workloads import NUM_SPECIAL_TOKENS, TEXT_TOKENS, copied_prompts

if TYPE_CHECKING:
    from nightshift_engine import Request
    from nightshift_engine.models import LoadedModel

WRONG_EVERY: Final = 6
OUTPUT_TOKENS: Final = 128
WARM_UP: Final = 4
"""Requests that run before the clock starts, with prompts of their own."""
KV_BLOCKS: Final = 4096
NAMES: Final = ("identification_number", "classification_of_goods", "recommended_delivery_date")


class Timed:
    """An engine, the seconds of its steps, and its outputs."""

    def __init__(self, model: LoadedModel) -> None:
        from nightshift_engine import Engine

        self.engine = Engine.over(model)
        self.seconds = 0.0
        self.outputs: dict[str, list[int]] = {}

    def add(self, requests: Sequence[Request]) -> None:
        self.seconds, self.outputs = 0.0, {request.id: [] for request in requests}
        for request in requests:
            self.engine.add(request)

    def step(self) -> None:
        began_s = time.perf_counter()
        outputs = self.engine.step()
        self.seconds += time.perf_counter() - began_s
        for output in outputs:
            self.outputs[output.id] += output.token_ids

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.outputs.values())) / self.seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="medium", choices=["tiny", "small", "medium"])
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 64])
    parser.add_argument("--works", nargs="+", default=list(WORKS), choices=list(WORKS))
    chosen = parser.parse_args(arguments)
    print("work, sequences: tokens/s without and with drafts (ratio), share accepted, steps without and with")
    for work in chosen.works:
        directory = ensure(chosen.model, chosen.dtype)
        draft = ensure("draft", chosen.dtype)
        drafts = {"agreeing": str(copying(draft, WRONG_EVERY)), "differing": str(draft)}
        model = load(directory if work == "own" else copying(directory), drafts.get(work))
        for batch in chosen.batches:
            requests = WORKS[work](model, batch + WARM_UP)
            print(f"{work}, {batch}: {compared(model, requests)}", flush=True)


def compared(model: LoadedModel, requests: Sequence[Request]) -> str:
    """Tokens per second without drafts (or draft model) and with; the last `WARM_UP` requests run before."""
    without: dict[str, Any] = {"speculation": "off"} if model.draft is None else {"draft_model": None}
    plain = Timed(replace(model, config=replace(model.config, **without), draft=None))
    drafting = Timed(model)
    for batch in (requests[-WARM_UP:], requests[:-WARM_UP]):
        for timed in (plain, drafting):
            timed.add(batch)
        while plain.engine.has_work or drafting.engine.has_work:
            for timed in (plain, drafting):
                if timed.engine.has_work:
                    timed.step()
    equal = sum(plain.outputs[id] == drafting.outputs[id] for id in plain.outputs)
    stats, ratio = drafting.engine.stats(), drafting.tokens_per_s / plain.tokens_per_s
    accepted = stats.num_accepted_tokens / max(1, stats.num_draft_tokens)
    return (
        f"{plain.tokens_per_s:.0f}, {drafting.tokens_per_s:.0f} ({ratio:.2f}), {accepted:.2f} of "
        f"{stats.num_draft_tokens}, {plain.engine.stats().steps} and {stats.steps}, "
        f"{equal} of {len(plain.outputs)} outputs equal"
    )


def load(directory: Path, draft: str | None) -> LoadedModel:
    from nightshift_engine import EngineConfig
    from nightshift_engine.models import load_model

    config = EngineConfig(str(directory), num_kv_blocks=KV_BLOCKS, speculation="auto", draft_model=draft)
    return load_model(config)


def copies(model: LoadedModel, count: int) -> list[Request]:
    """Prompts of a text with flaws and its beginning again; their outputs are the text."""
    prompts = copied_prompts(model.facts.vocab_size, count, seed=1)
    return [_request(number, prompt) for number, prompt in enumerate(prompts)]


def misleads(model: LoadedModel, count: int) -> list[Request]:
    """Prompts of a text's threes of tokens in random order, and its beginning."""
    draw, vocab_size = random.Random(3), model.facts.vocab_size
    requests = []
    for number in range(count):
        start = draw.randrange(NUM_SPECIAL_TOKENS, vocab_size - TEXT_TOKENS)
        threes = [[start + place, start + place + 1, start + place + 2] for place in range(0, TEXT_TOKENS, 3)]
        draw.shuffle(threes)
        requests.append(_request(number, [*chain.from_iterable(threes), start]))
    return requests


def objects(model: LoadedModel, count: int) -> list[Request]:
    """Objects with long names and values of a choice."""
    from nightshift_engine import Grammar, SamplingParams

    properties = {name: {"enum": [f"{name}_{n}" for n in range(4)]} for name in NAMES}
    schema = {"type": "object", "properties": properties, "required": NAMES, "additionalProperties": False}
    grammar, sampling = Grammar("json_schema", json.dumps(schema)), SamplingParams(temperature=0.0)
    return [
        replace(request, grammar=grammar, sampling=replace(sampling, max_tokens=4 * OUTPUT_TOKENS))
        for request in own(model, count)
    ]


def own(model: LoadedModel, count: int) -> list[Request]:
    """Prompts of random tokens."""
    draw, vocab_size = random.Random(2), model.facts.vocab_size
    prompts = [
        [draw.randrange(NUM_SPECIAL_TOKENS, vocab_size) for _ in range(TEXT_TOKENS)] for _ in range(count)
    ]
    return [_request(number, prompt) for number, prompt in enumerate(prompts)]


def _request(number: int, prompt: list[int]) -> Request:
    from nightshift_engine import Request, SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    return Request(str(number), prompt, sampling, priority="background", group="benchmark")


WORKS: Final[dict[str, Callable[[LoadedModel, int], list[Request]]]] = {
    "copy": copies,
    "mislead": misleads,
    "json": objects,
    "own": own,
    "agreeing": own,
    "differing": own,
}


if __name__ == "__main__":
    main()
