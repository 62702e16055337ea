"""Models to measure with: random weights in the shapes of published models and our own.

Speed does not depend on the values of the weights, so none need be downloaded. They are random but scaled: a
plain initialisation makes greedy decoding repeat its last token for ever, which would flatter engines that
cache or speculate. `checkpoints.py` writes those of `SHAPES` down; the GPU benchmark makes its Qwen3s on the
device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch


Family = Literal["llama", "qwen3", "gpt2", "gemma2", "qwen3_moe"]


@dataclass(frozen=True)
class Shape:
    """A decoder's dimensions. `intermediate_size` is that of one expert where there are several."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    family: Family = "llama"
    has_tied_embeddings: bool = False
    has_gate: bool = True
    """Of the MLP: three linears instead of two."""
    num_experts: int = 1
    num_experts_per_token: int = 1

    @property
    def layer_linears(self) -> tuple[tuple[int, int], ...]:
        """`(in, out)` of what a token passes in a layer, with qkv fused, and gate and up."""
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        inner = self.intermediate_size * self.num_experts_per_token
        return (
            (self.hidden_size, width + 2 * kv_width),
            (width, self.hidden_size),
            (self.hidden_size, (2 if self.has_gate else 1) * inner),
            (inner, self.hidden_size),
        )

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of one token in all layers' linears, without embeddings, head, norms, routers."""
        return self.num_layers * sum(inputs * outputs for inputs, outputs in self.layer_linears)

    @property
    def num_head_parameters(self) -> int:
        return self.hidden_size * self.vocab_size

    @property
    def num_linear_parameters(self) -> int:
        """Of all linears and the head; the embedding table is only looked up."""
        return self.num_layer_parameters + self.num_head_parameters

    def num_parameters_read(self, batch: int) -> float:
        """Of linears and head in a step of `batch` tokens, if experts are drawn evenly."""
        expert = (3 if self.has_gate else 2) * self.hidden_size * self.intermediate_size
        share = self.num_experts_per_token / self.num_experts
        needed = self.num_experts * (1 - (1 - share) ** batch)
        return self.num_linear_parameters + self.num_layers * expert * (needed - self.num_experts_per_token)

    @property
    def kv_elements_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


LLAMAS = {
    "tiny": Shape(512, 64, 2, 4, 2, 16, 128),
    "small": Shape(8192, 384, 8, 6, 2, 64, 1536),
    "medium": Shape(32000, 768, 12, 12, 4, 64, 2560),
}
"""tiny is for trying the scripts; small and medium are the sizes that published figures are about."""

SHAPES = LLAMAS | {
    "gpt2": Shape(32000, 768, 12, 12, 12, 64, 3072, "gpt2", has_tied_embeddings=True, has_gate=False),
    "gemma2": Shape(32000, 768, 12, 6, 2, 128, 3072, "gemma2", has_tied_embeddings=True),
    "qwen3-moe": Shape(32000, 512, 12, 8, 2, 64, 256, "qwen3_moe", num_experts=32, num_experts_per_token=4),
}
"""What checkpoints are made of: also GPT-2 small, a Gemma2 of medium's size, a small mixture of experts."""

QWENS = {
    "0.6b": Shape(151_936, 1024, 28, 16, 8, 128, 3072, "qwen3", has_tied_embeddings=True),
    "8b": Shape(151_936, 4096, 36, 32, 8, 128, 12_288, "qwen3"),
    "tiny": Shape(512, 64, 2, 4, 2, 32, 128, "qwen3"),
}
"""As Qwen3-0.6B and Qwen3-8B publish them; tiny is for trying the script."""


@dataclass(frozen=True)
class EncoderShape:
    """A BERT's dimensions."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int


ENCODERS = {
    "minilm": EncoderShape(30_522, 384, 6, 12, 1536),
    "minilm-tiny": EncoderShape(1_000, 32, 2, 2, 64),
}
"""As all-MiniLM-L6-v2 publishes its own; tiny is for trying the scripts."""


def make_encoder(shape: EncoderShape, context_length: int, **settings: Any) -> Any:
    """A transformers BERT with random weights, in eval mode. `settings` go to its config."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=context_length,
        **settings,
    )
    torch.manual_seed(0)
    return BertModel(config).eval()


def make_model(
    shape: Shape, dtype: torch.dtype, device: torch.device, context_length: int, **settings: Any
) -> Any:
    """A transformers model on `device`, with eager attention, in eval mode. `settings` go to its config."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        shape.family,
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        tie_word_embeddings=shape.has_tied_embeddings,
        max_position_embeddings=context_length,
        **_family_settings(shape),
        **({"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0} | settings),
    )
    torch.manual_seed(0)
    with device:  # weights are created on the device
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                embeds = "embed" in name and not shape.has_tied_embeddings
                inputs = parameter.shape[
                    0 if ".c_" in name else -1
                ]  # GPT-2's linears lie the other way round
                # 1.5 / sqrt(fan in): residual branches strong enough to vary the output tokens.
                parameter.normal_(0, 1 if embeds else 1.5 / inputs**0.5)
    return model.eval()


def _family_settings(shape: Shape) -> dict[str, Any]:
    if shape.family == "gpt2":
        return {"n_inner": shape.intermediate_size}
    heads = {"num_key_value_heads": shape.num_kv_heads, "head_dim": shape.head_dim}
    if shape.family == "qwen3_moe":
        return heads | {
            "num_experts": shape.num_experts,
            "num_experts_per_tok": shape.num_experts_per_token,
            "moe_intermediate_size": shape.intermediate_size,
            "norm_topk_prob": True,
        }
    scale = {"query_pre_attn_scalar": shape.head_dim} if shape.family == "gemma2" else {}
    return heads | scale | {"intermediate_size": shape.intermediate_size}
