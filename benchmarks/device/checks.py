"""Checks the engine's tokens on a device, and the error of its logits."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.fixtures.models import QWENS, make_model
from benchmarks.fixtures.vocabularies import save_made_up_tokenizer
from nightshift_engine import Completion, Engine, EngineConfig, Request, SamplingParams
from nightshift_engine.core.batcher import Chunk
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.execution.attention.selection import has_transposed_keys, make_attention
from nightshift_engine.execution.kv_memory import KvMemory
from nightshift_engine.execution.model_runner import ModelRunner
from nightshift_engine.loading.model import LoadedModel, prove_model
from nightshift_engine.text.tokenizer import Tokenizer

CONTEXT_LENGTH = 512
BFLOAT16_ERROR_RATIO_MAX = 1.5
"""How much larger our error of bfloat16 logits may be than that of transformers: both round, differently."""


@dataclass(frozen=True)
class Check:
    """One comparison: its error, and the limit of that."""

    name: str
    error: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.error <= self.limit  # False for a NaN too


def run_checks(device: torch.device) -> Iterator[Check]:
    """The engine's comparisons, as they are done. `pytest tests/gpu` checks each kernel."""
    yield check_greedy(device)
    yield check_bfloat16(device)


def check_greedy(device: torch.device) -> Check:
    """Tokens of a small float32 model that differ from `generate`'s, over requests of mixed lengths."""
    rng, shape = random.Random(2), QWENS["tiny"]
    prompts = [[rng.randrange(shape.vocab_size) for _ in range(rng.randint(3, 90))] for _ in range(6)]
    model = make_model(shape, torch.float32, device, CONTEXT_LENGTH)
    wanted = [_generated(model, prompt, 24) for prompt in prompts]
    engine = engine_over(model, max_num_batched_tokens=64, num_kv_blocks=64, max_num_seqs=4)
    completions = complete(engine, prompts, 24)
    differences = sum(
        a != b
        for one, other in zip(completions, wanted, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    return Check("engine, greedy float32 tokens that differ from generate's", differences, 0)


def check_bfloat16(device: torch.device) -> Check:
    """Error of our bfloat16 logits against float32, as a multiple of the error transformers makes itself."""
    shape = QWENS["tiny"]
    exact = make_model(shape, torch.float32, device, CONTEXT_LENGTH)
    rounded = make_model(shape, torch.bfloat16, device, CONTEXT_LENGTH)
    rounded.load_state_dict({name: tensor.bfloat16() for name, tensor in exact.state_dict().items()})
    prompt = torch.randint(0, shape.vocab_size, (1, 100), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        wanted = exact(prompt.to(device)).logits[0, -1].double()
        theirs = rounded(prompt.to(device)).logits[0, -1].double()
        ours = last_logits(loaded(rounded), prompt[0].tolist()).double()
    ratio = ((ours - wanted).norm() / (theirs - wanted).norm()).item()
    return Check("engine, bfloat16 error of logits / transformers' own", ratio, BFLOAT16_ERROR_RATIO_MAX)


def loaded(model: Any, **settings: Any) -> LoadedModel:
    """The engine's own tests passed, and its attention put in."""
    config, tokenizer = _config_and_tokenizer(model, settings)
    return prove_model(config, model, tokenizer, "made on the spot")


def engine_over(model: Any, **settings: Any) -> Engine:
    """An engine over a transformers model that exists already."""
    return Engine.over(loaded(model, **settings))


def _config_and_tokenizer(model: Any, settings: dict[str, Any]) -> tuple[EngineConfig, Tokenizer]:
    with tempfile.TemporaryDirectory() as directory:
        save_made_up_tokenizer(model.config.vocab_size, Path(directory))
        tokenizer = Tokenizer.load(directory)
    dtype: Any = str(model.dtype).removeprefix("torch.")
    return EngineConfig("made-on-the-spot", device=model.device.type, dtype=dtype, **settings), tokenizer


def complete(engine: Engine, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Greedy tokens, none ending early."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    completions = {}
    for number, prompt in enumerate(prompts):
        engine.add(Request(str(number), prompt, params))
        completions[str(number)] = Completion(str(number))
    while engine.has_work:
        for output in engine.step():
            completions[output.id].append(output)
    return [list(completions[str(number)].token_ids) for number in range(len(prompts))]


def last_logits(model: LoadedModel, prompt: list[int]) -> Tensor:
    """Logits after `prompt`, computed in two chunks over scattered blocks."""
    block_size = 16
    num_blocks = -(-len(prompt) // block_size)
    kv = KvMemory(
        model.shapes,
        num_blocks=num_blocks,
        block_size=block_size,
        dtype=model.dtype,
        device=model.device,
        transposed_keys=has_transposed_keys(model.attention),
    )
    runner = ModelRunner(model.forward_pass, kv, make_attention(model.attention, kv), model.device)
    sequence = Sequence(Request("r", prompt), arrival=0, num_tokens_max=len(prompt) + 1)
    sequence.add_blocks(random.Random(1).sample(range(num_blocks), num_blocks))
    runner.forward([Chunk(sequence, len(prompt) // 2)])
    sequence.num_computed_tokens = len(prompt) // 2
    return runner.forward([Chunk(sequence, sequence.num_uncomputed_tokens)])[0]


def _generated(model: Any, prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt], device=model.device)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens
