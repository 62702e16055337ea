"""Is what a device computes right? Kernels, the engine's tokens, and the error of its logits."""

from __future__ import annotations

import importlib.util
import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_problems import (
    ERROR_MAX,
    PROBLEMS,
    Inputs,
    attend_reference,
    random_inputs,
    write_reference,
)
from benchmarks.models import QWENS, make_model
from benchmarks.vocabularies import save_made_up_tokenizer
from workers.engine import Completion, Engine, EngineConfig, Request, SamplingParams
from workers.engine.batching.batcher import Chunk
from workers.engine.batching.sequence import Sequence
from workers.engine.execution.attention.selection import (
    FP8_CAPABILITY_MIN,
    has_transposed_keys,
    make_attention,
)
from workers.engine.execution.kv_memory import KvMemory
from workers.engine.execution.model_runner import ModelRunner
from workers.engine.loading.model import LoadedModel, prove_model
from workers.engine.text.tokenizer import Tokenizer

CONTEXT_LENGTH = 512
SPLIT_SIZE = 32
BFLOAT16_ERROR_RATIO_MAX = 1.5
"""How much larger our error of bfloat16 logits may be than that of transformers: both round, differently."""


@dataclass(frozen=True)
class Check:
    """One comparison: what was off by how much, and by how much it may be."""

    name: str
    error: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.error <= self.limit  # False for a NaN too


def run_checks(device: torch.device, *, quick: bool) -> Iterator[Check]:
    """All comparisons that `device` can make, as they are done."""
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if importlib.util.find_spec("triton") is not None and (device.type == "cuda" or is_interpreted):
        yield from check_kernels(device, ["plain", "bfloat16"] if quick else list(PROBLEMS))
    yield check_greedy(device)
    yield check_bfloat16(device)


def check_kernels(device: torch.device, names: list[str]) -> Iterator[Check]:
    """Chunks, split decoding and KV writes in Triton against float64."""
    from workers.engine.kernels.triton.kv_write import write_kv

    for name in names:
        problem = PROBLEMS[name]
        if problem.kv_dtype == torch.float8_e4m3fn and not _has_fp8(device):
            continue
        inputs = random_inputs(problem, 1, device)
        wanted = write_reference(inputs)
        write_kv(inputs.key, inputs.value, _paged(inputs), inputs.slots)
        written = max(
            _largest_difference(inputs.keys, wanted.keys), _largest_difference(inputs.values, wanted.values)
        )
        # A quotient may round up or down; over fp8's range, that is 32 at the top.
        steps = {torch.int8: 1.0, torch.float8_e4m3fn: 32.0}
        yield Check(f"kernel, KV write, {name}", written, steps.get(inputs.keys.dtype, 0.0))
        expected, limit = attend_reference(wanted), ERROR_MAX[problem.dtype]
        newest = wanted.cu_seqlens_q[1:].long() - 1
        yield Check(f"kernel, chunks, {name}", _error(attend_chunks(wanted), expected), limit)
        yield Check(f"kernel, decode, {name}", _error(attend_decodes(wanted), expected[newest]), limit)


def attend_chunks(inputs: Inputs) -> Tensor:
    """`[tokens, heads, value_dim]` by the chunk kernel."""
    from workers.engine.kernels.triton import prefill

    out = _nans(inputs, inputs.q.shape[0])
    prefill.attend_chunks(inputs.q, _paged(inputs), out, cu_seqlens_q=inputs.cu_seqlens_q, **_options(inputs))
    return out


def attend_decodes(inputs: Inputs, split_size: int = SPLIT_SIZE, programs_wanted: int = 1024) -> Tensor:
    """The newest token of each sequence `[sequences, heads, value_dim]` by the split kernel."""
    from workers.engine.kernels.triton import decode

    rows = inputs.cu_seqlens_q[1:].long() - 1
    longest = max(length for _, length in inputs.problem.sequences)
    out = _nans(inputs, len(rows))
    _, heads, value_dim = out.shape
    splits = -(-longest // split_size)
    parts = decode.SplitParts.allocate(len(rows), heads, splits, value_dim, out.device)
    decode.attend_decodes(
        inputs.q[rows],
        _paged(inputs),
        out,
        max_seqlen_k=longest,
        split_size=split_size,
        parts=parts,
        programs_wanted=programs_wanted,
        **_options(inputs),
    )
    return out


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
    config, tokenizer = _config_and_tokenizer(model, settings)
    return Engine.over(prove_model(config, model, tokenizer, "made on the spot"), tokenizer, config)


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


def _paged(inputs: Inputs) -> Any:
    from workers.engine.kernels.triton.launch import PagedKv

    return PagedKv(inputs.keys, inputs.values, inputs.key_scales, inputs.value_scales)


def _options(inputs: Inputs) -> dict[str, Any]:
    problem = inputs.problem
    return {
        "softmax_scale": problem.scale,
        "window": problem.window,
        "softcap": problem.softcap,
        "sinks": inputs.sinks,
        "seqused_k": inputs.seqused_k,
        "block_table": inputs.block_table,
    }


def _nans(inputs: Inputs, rows: int) -> Tensor:
    problem = inputs.problem
    size = (rows, problem.heads, problem.value_dim or problem.key_dim)
    return torch.full(size, float("nan"), dtype=problem.dtype, device=inputs.q.device)


def _error(got: Tensor, wanted: Tensor) -> float:
    return (got.double() - wanted).abs().max().item()


def _largest_difference(got: Tensor, wanted: Tensor) -> float:
    """Places that hold no number must be the same in both."""
    got, wanted = got.float(), wanted.float()
    if not torch.equal(got.isnan(), wanted.isnan()):
        return float("inf")
    return (got.nan_to_num() - wanted.nan_to_num()).abs().max().item()


def _has_fp8(device: torch.device) -> bool:
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= FP8_CAPABILITY_MIN
