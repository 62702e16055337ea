"""The forward pass written out: which models it takes, and that it computes what their own modules do."""

import copy
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM

from nightshift_engine import Request
from nightshift_engine.execution.attention.interface import ATTENTION_NAME, LayerCall
from nightshift_engine.execution.decoder.decoder import Decoder
from nightshift_engine.execution.decoder.pack import read_decoder
from nightshift_engine.execution.decoder.recognition.facts import NotPlain
from nightshift_engine.execution.linears import packing as measuring
from nightshift_engine.execution.linears.interface import Packing
from nightshift_engine.execution.linears.native import NativeLinear
from nightshift_engine.execution.linears.packing import native_pack, native_packing, onednn_pack
from nightshift_engine.execution.step_layout import StepInputs, StepLayout
from nightshift_engine.loading.selftest import check_model
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import (
    VOCAB_SIZE,
    complete,
    greedy,
    load_engine,
    reference_greedy,
    save_model,
)

pytestmark = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels"
)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA2 = {"head_dim": 8, "attn_logit_softcapping": None, "sliding_window": 4096, "query_pre_attn_scalar": 8}
GPT2_NAMES = ("intermediate_size", "num_key_value_heads")
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
GRANITE = {"residual_multiplier": 0.22, "embedding_multiplier": 12.0, "logits_scaling": 8.0}
OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32}
PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, odd sizes": ("llama", {"hidden_size": 40, "intermediate_size": 50, "head_dim": 12}),
    "llama, rows a cache way apart": (
        "llama",
        {"hidden_size": 1024, "intermediate_size": 1024, "head_dim": 256, "num_hidden_layers": 1},
    ),
    "llama 3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "tanh gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "exact gelu": ("llama", {"hidden_act": "gelu"}),
    "quick gelu": ("llama", {"hidden_act": "quick_gelu"}),
    "relu": ("llama", {"hidden_act": "relu"}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3, norms of heads": ("qwen3", {"head_dim": 16}),
    "gpt2, learned positions, fused heads": ("gpt2", GPT2),
    "gpt2, scale by layer": ("gpt2", GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "gemma2, norms around, scaled embeddings, capped logits": ("gemma2", GEMMA2),
    "gemma3, two ropes": ("gemma3_text", GEMMA2 | {"layer_types": ["sliding_attention", "full_attention"]}),
    "opt, scaled queries, offset positions": ("opt", OPT),
    "gpt_neox, parallel with two norms, heads interleaved": ("gpt_neox", {}),
    "gpt_neox, in sequence": ("gpt_neox", {"use_parallel_residual": False}),
    "phi, parallel with one norm, partial rope": ("phi", {}),
    "phi, norms of heads with biases": ("phi", {"qk_layernorm": True}),
    "phi3, fused gate": ("phi3", {}),
    "granite, multipliers": ("granite", GRANITE),
    "olmo, norms without weights": ("olmo", {}),
    "olmo2, norms over all heads, none before": ("olmo2", {}),
    "smollm3, a layer without rope": ("smollm3", {"no_rope_layers": [1, 0]}),
    "stablelm": ("stablelm", {}),
    "stablelm, parallel": ("stablelm", {"use_parallel_residual": True}),
    "starcoder2": ("starcoder2", {}),
    "cohere, neighbours rotate": ("cohere", {}),
    "cohere, norms that differ by head": ("cohere", {"use_qk_norm": True}),
    "glm4, four norms": ("glm4", {"head_dim": 8}),
    "nemotron, 1 + weight in layer norms, squared relu": ("nemotron", {}),
    "arcee": ("arcee", {}),
    "biogpt": ("biogpt", {}),
    "gpt_bigcode": ("gpt_bigcode", GPT2 | {"n_inner": 48}),
    "persimmon": ("persimmon", {}),
}
"""Models named after what is special in each; weights are random, biases and norms not 0 and 1 (`stir`)."""
TOKENS = 37


class Whole:
    """Attention over all tokens of one sequence, without KV memory."""

    def attend(self, layer_index: int, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        attended = F.scaled_dot_product_attention(
            query[None], key[None], value[None], is_causal=True, scale=call.scale, enable_gqa=True
        )
        return attended[0].transpose(0, 1).contiguous()


def load(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def stir(model: Any) -> Any:
    """Vectors are 0 or 1 in a fresh model, so that a bias or a weight left out would not show."""
    for index, parameter in enumerate(model.parameters()):
        if parameter.dim() == 1:
            noise = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(index))
            parameter.data += 0.3 * (noise - 0.5)
    return model


def inputs(token_ids: Tensor, rows: list[int]) -> StepInputs:
    empty = torch.empty(0, dtype=torch.int32)
    layout = StepLayout(
        cu_seqlens_q=empty,
        seq_lens=empty,
        block_tables=empty,
        slot_mapping=empty,
        positions=torch.arange(len(token_ids)),
        num_tokens=len(token_ids),
        num_decodes=0,
        max_query_len=len(token_ids),
        max_seq_len=len(token_ids),
    )
    nothing = torch.empty(0, dtype=torch.int64)
    return StepInputs(layout, token_ids, torch.tensor(rows), nothing, nothing)


def read(model: Any, pack: Any = None, dtype: torch.dtype = torch.float32) -> Decoder:
    pack = pack or native_pack("float32")
    checked = check_model(model, "read")
    return read_decoder(model, checked.calls, Packing(pack, pack), dtype)


@torch.inference_mode()
def relative_error(model: Any, decoder: Decoder, *, rows: list[int], seed: int = 0) -> float:
    token_ids = torch.randint(0, VOCAB_SIZE, (TOKENS,), generator=torch.Generator().manual_seed(seed))
    wanted = model(token_ids[None], use_cache=False).logits[0, rows]
    got = decoder(inputs(token_ids, rows), Whole())
    return ((got - wanted).square().mean().sqrt() / wanted.std()).item()


@pytest.mark.parametrize(
    ("name", "pack"),
    mostly_exhaustive(
        product(PLAIN, [native_pack, onednn_pack]),
        default=[*zip(PLAIN, cycle([native_pack, native_pack, onednn_pack]), strict=False)],
    ),
)
def test_logits_equal_those_of_the_models_own_modules(name: str, pack: Any, tmp_path: Path) -> None:
    model_type, overrides = PLAIN[name]
    without = GPT2_NAMES if model_type.startswith("gpt") else ()
    model = stir(load(save_model(tmp_path, model_type, without=without, **overrides)))
    decoder = read(copy.deepcopy(model), pack("float32"))
    assert not decoder.has_modules
    assert relative_error(model, decoder, rows=[3, 20, TOKENS - 1]) < 1e-5
    assert relative_error(model, decoder, rows=list(range(TOKENS)), seed=1) < 1e-5
    assert relative_error(model, decoder, rows=[TOKENS - 1], seed=2) < 1e-5


@pytest.mark.skipif(not NativeLinear.can_pack("bfloat16", 2), reason="this processor has no AVX512_BF16")
def test_bfloat16_is_as_close_to_float32_as_the_modules_in_bfloat16(tmp_path: Path) -> None:
    model = load(save_model(tmp_path))
    half = copy.deepcopy(model).bfloat16()
    decoder = read(copy.deepcopy(half), native_pack("bfloat16"), torch.bfloat16)
    rows = list(range(TOKENS))
    token_ids = torch.randint(0, VOCAB_SIZE, (TOKENS,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted = model(token_ids[None]).logits[0]
        theirs = (
            (half(token_ids[None]).logits[0].float() - wanted).square().mean().sqrt() / wanted.std()
        ).item()
    assert relative_error(model, decoder, rows=rows) < 1.5 * theirs


def test_positions_beyond_the_first_table_are_tabulated_when_they_come(tmp_path: Path) -> None:
    model = load(save_model(tmp_path, max_position_embeddings=4096))
    decoder = read(copy.deepcopy(model))
    token_ids, start = torch.arange(20), 2500
    shifted = inputs(token_ids, [19])
    shifted.layout.positions.add_(start)
    object.__setattr__(shifted.layout, "max_seq_len", start + 20)
    with torch.inference_mode():
        positions = torch.arange(start, start + 20)[None]
        wanted = model(token_ids[None], position_ids=positions, use_cache=False).logits[0, 19:]
        assert torch.allclose(decoder(shifted, Whole()), wanted, atol=1e-3)


@pytest.mark.parametrize(
    ("model_type", "overrides", "reason"),
    [
        ("opt", OPT | {"do_layer_norm_before": False}, "simply added"),
        ("bert", {"is_decoder": True}, "parts beside attention"),
        ("bitnet", {}, "comes between its attention and the linear layer"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "'dynamic'",
        ),
    ],
)
def test_a_model_built_otherwise_is_left_whole(
    model_type: str, overrides: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    model = load(save_model(tmp_path, model_type, **overrides))
    model.set_attn_implementation(ATTENTION_NAME)
    before = {name: value.clone() for name, value in model.named_parameters()}
    with pytest.raises(NotPlain, match=reason):
        read_decoder(model, [], native_packing("float32"), torch.float32)
    assert all(torch.equal(before[name], value) for name, value in model.named_parameters())


@pytest.mark.parametrize("model_type", ["mixtral", "qwen2_moe", "lfm2", "apertus"])
def test_an_mlp_of_an_unknown_kind_stays_a_module_and_the_rest_is_written_out(
    model_type: str, tmp_path: Path
) -> None:
    """Mixtures too, where there is no kernel for experts (`read` gives none)."""
    overrides: dict[str, Any] = {"num_local_experts": 4} if model_type == "mixtral" else {"num_experts": 4}
    model = stir(load(save_model(tmp_path, model_type, **overrides)))
    decoder = read(copy.deepcopy(model))
    assert decoder.has_modules
    assert relative_error(model, decoder, rows=[3, 20, TOKENS - 1]) < 1e-5


@pytest.mark.skipif(not NativeLinear.can_pack("int8", 4), reason="this processor has no AVX512_VNNI")
@pytest.mark.parametrize(
    ("dtype", "fastest"),
    mostly_exhaustive(
        product(["float32", "bfloat16"], ["native", "onednn"]),
        default=[("float32", "onednn"), ("bfloat16", "native")],
    ),
)
def test_int8_weights_leave_the_logits_layer_in_the_models_own_dtype(
    dtype: str, fastest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way of computing it the measurement prefers."""
    monkeypatch.setattr(measuring, "_seconds", lambda pack, *_: float(fastest not in pack.__qualname__))
    engine = load_engine(save_model(tmp_path), dtype=dtype, weight_dtype="int8")
    [answer] = complete(engine, Request("r", [1, 2, 3], greedy(8)))
    assert len(answer.token_ids) == 8


@pytest.mark.parametrize(
    "weight_dtype",
    [
        "auto",
        pytest.param(
            "int8",
            marks=pytest.mark.skipif(
                not NativeLinear.can_pack("int8", 4), reason="this processor has no AVX512_VNNI"
            ),
        ),
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_float16_which_no_kernel_reads_runs_through_the_models_modules(
    model_type: str, weight_dtype: str, tmp_path: Path
) -> None:
    """It was written into memory for two bytes an element as if there were four."""
    directory = save_model(tmp_path, model_type)
    engine = load_engine(directory, dtype="float16", weight_dtype=weight_dtype)

    [completion] = complete(engine, Request("half", list(range(40, 80)), greedy(4)))

    if weight_dtype == "auto":
        assert [completion.token_ids] == reference_greedy(directory, [list(range(40, 80))], 4)
    assert len(completion.token_ids) == 4
    assert completion.error is None
