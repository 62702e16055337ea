"""Measures what KV memory in 8 bits does to a model's logits, beside what bfloat16 does to them.

    python -m benchmarks.device.kv_error [MODEL_DIRECTORY]

The reference computes in float32. Keys and values are rounded as the engine keeps them, with a scale per
token and head, as they enter transformers' attention. Without a model, weights are random: 8 layers of
Qwen3-0.6B's width. Prompts are random tokens, so a model's own texts may do better or worse.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from benchmarks.fixtures.models import Shape, make_model

LENGTHS = (11, 64, 512, 2048)
SHAPE = Shape(8192, 1024, 8, 16, 8, 128, 3072, "qwen3", has_tied_embeddings=True)
WAYS: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    "computed in bfloat16": (torch.bfloat16, None),
    "KV in int8": (torch.float32, torch.int8),
    "KV in fp8": (torch.float32, torch.float8_e4m3fn),
}
"""The dtype of the computation, and of KV; None: the same."""


def rounded(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """`rows` `[.., dim]` as they come back from KV memory in `dtype`."""
    largest = (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max
    scales = rows.abs().amax(-1, keepdim=True) / largest
    scaled = rows / torch.where(scales == 0, 1.0, scales)
    stored = scaled.to(dtype) if dtype.is_floating_point else torch.floor(scaled + 0.5).to(dtype)
    return stored.to(rows.dtype) * scales


def main(arguments: list[str]) -> None:
    """Prints a line for each way and length of prompt."""
    models = {dtype: _load(dtype, *arguments) for dtype in (torch.bfloat16, torch.float32)}
    models[torch.float32].load_state_dict(models[torch.bfloat16].state_dict())
    config, generator = models[torch.float32].config, torch.Generator().manual_seed(0)
    for length in (n for n in LENGTHS if n <= config.max_position_embeddings):
        ids = torch.randint(0, config.vocab_size, (1, length), generator=generator)
        exact = _logits(models[torch.float32], ids, None)
        for name, (dtype, kv_dtype) in WAYS.items():
            _report(length, name, exact, _logits(models[dtype], ids, kv_dtype))


def _load(dtype: torch.dtype, directory: str | None = None) -> Any:
    from transformers import AutoModelForCausalLM

    if directory is None:
        return make_model(SHAPE, dtype, torch.device("cpu"), max(LENGTHS))
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


@torch.inference_mode()
def _logits(model: Any, ids: Tensor, kv_dtype: torch.dtype | None) -> Tensor:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Any:
        if kv_dtype is not None:
            key, value = rounded(key, kv_dtype), rounded(value, kv_dtype)
        return sdpa_attention_forward(module, query, key, value, *rest, **options)

    AttentionInterface.register("rounded_kv", attend)
    model.set_attn_implementation("rounded_kv")
    logits: Tensor = model(ids, use_cache=False).logits[0]
    return logits.float()


def _report(length: int, name: str, exact: Tensor, logits: Tensor) -> None:
    error = (logits - exact).square().mean().sqrt() / exact.std()
    logprobs = exact.log_softmax(-1)
    divergence = (logprobs.exp() * (logprobs - logits.log_softmax(-1))).sum(-1)
    others = (logits.argmax(-1) != exact.argmax(-1)).float().mean()
    print(
        f"{length:5} tokens, {name:20}: error {error:.4f} of the spread, KL divergence "
        f"{divergence.mean():.1e} (at most {divergence.max():.1e}), {others:.1%} other greedy tokens"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
