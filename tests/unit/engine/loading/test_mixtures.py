"""Mixtures of experts in half precision: rounding that chooses other experts is no error, a wrong pass is.

`make test` draws the weights of a few families from one seed, `make test-all` those of all from three. It
also loads each mixture in both dtypes of weights, and shifts the positions in both dtypes of the model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from nightshift_engine import Request
from nightshift_engine.errors import UnsupportedModel
from nightshift_engine.execution.attention.interface import AttentionStep, LayerCall
from nightshift_engine.execution.attention.torch_backend import TorchAttention
from nightshift_engine.execution.decoder.decoder import Decoder
from nightshift_engine.execution.decoder.native_operations import NativeOperations
from nightshift_engine.execution.decoder.pack import read_decoder
from nightshift_engine.execution.device.native_calls import WrittenCalls
from nightshift_engine.execution.linears import packing as measuring
from nightshift_engine.execution.linears.native import NativeLinear
from nightshift_engine.execution.linears.packing import native_packing
from nightshift_engine.execution.step_layout import StepInputs
from nightshift_engine.loading import selftest
from nightshift_engine.loading.selftest import (
    CheckedModel,
    check_forward_pass,
    check_model,
    check_written_steps,
)
from tests.unit.engine.loading.test_model_families import CASES
from tests.unit.engine.loading.test_selftest import halve_positions
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import complete, greedy, load_engine, save_model

needs_bfloat16 = pytest.mark.skipif(
    not NativeLinear.can_pack("bfloat16", 2), reason="no compiler, or no AVX512_BF16"
)

SEEDS = mostly_exhaustive(range(3), default=[0])

WIDE: dict[str, Any] = {
    "vocab_size": 258,
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "pad_token_id": 0,
}
LATENT = CASES["deepseek_v3"] | {"head_dim": 8, "moe_intermediate_size": 32, "n_group": 4, "topk_group": 2}
SHAPES = {  # layers, experts, experts per token
    "qwen3_moe": (16, 64, 8),
    "mixtral": (8, 8, 2),
    "gpt_oss": (8, 16, 4),
    "deepseek_v3": (8, 32, 8),
    "phimoe": (8, 16, 2),
    "granitemoe": (8, 32, 8),
    "ernie4_5_moe": (8, 32, 6),
    "hunyuan_v1_moe": (8, 16, 4),
}
ROUTED_IN_FLOAT32 = ("ernie4_5_moe", "hunyuan_v1_moe")
"""Families whose routers are float32 whatever the dtype of the model."""
DEFAULT_FAMILIES = ("qwen3_moe", "mixtral", "deepseek_v3", "ernie4_5_moe")
"""Between them: many experts and few, latent attention, and a router in float32."""
PER_TOKEN = {"ernie4_5_moe": "moe_k", "hunyuan_v1_moe": "moe_topk"}


def fields(family: str) -> dict[str, Any]:
    layers, experts, per_token = SHAPES[family]
    is_latent = family == "deepseek_v3"
    names = ("n_routed_experts",) if is_latent else ("num_experts", "num_local_experts", "moe_num_experts")
    sizes = WIDE | (LATENT if is_latent else {}) | dict.fromkeys(names, experts)
    return sizes | {"num_hidden_layers": layers, PER_TOKEN.get(family, "num_experts_per_tok"): per_token}


def mixture(family: str, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Random and wide, so that every layer matters and experts score nearly alike often enough."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **fields(family))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return model.to(dtype)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", mostly_exhaustive(SHAPES, default=DEFAULT_FAMILIES[::3]))
def test_rounding_that_chooses_other_experts_is_no_reason_to_refuse(family: str, seed: int) -> None:
    check_model(mixture(family, seed), family)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", mostly_exhaustive(SHAPES, default=DEFAULT_FAMILIES[1:3]))
def test_in_float32_hardly_any_expert_may_be_another(family: str, seed: int) -> None:
    checked = check_model(mixture(family, seed, torch.float32), family)

    assert checked.reference.chooses_experts


@pytest.mark.parametrize("dtype", mostly_exhaustive([torch.bfloat16, torch.float32], [torch.float32]))
@torch.inference_mode()
def test_a_router_that_errs_once_in_twenty_choices_is_refused_in_float32(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held to the reference's experts, its layers are all right: only the share of its own shows it."""
    model = mixture("qwen3_moe", dtype=dtype)
    checked = check_model(model, "erring")
    real, calls = torch.topk, count()

    def topk(scores: Tensor, *args: Any, **kwargs: Any) -> Any:
        return real(-scores if next(calls) % 20 == 0 else scores, *args, **kwargs)

    def check() -> None:
        check_forward_pass(
            selftest.ModulePass(model), checked, model, "erring", "torch", block_size=4, is_held=True
        )

    check()
    monkeypatch.setattr(torch, "topk", topk)
    if dtype == torch.bfloat16:
        check()
    else:
        with pytest.raises(UnsupportedModel, match=r"of packed, its experts are others .*allowed 1%"):
            check()


@pytest.mark.parametrize(
    ("family", "dtype"),
    mostly_exhaustive(
        product(SHAPES, [torch.bfloat16, torch.float32]),
        default=[
            ("mixtral", torch.float32),
            ("deepseek_v3", torch.bfloat16),  # whose limits are the wider ones
        ],
    ),
)
def test_a_mixture_at_wrong_positions_is_refused(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    halve_positions(monkeypatch)
    with pytest.raises(UnsupportedModel, match="logits differ"):
        check_model(mixture(family, dtype=dtype), family)


@pytest.mark.parametrize(
    ("family", "wrong"),
    mostly_exhaustive(
        [
            *product(["qwen3_moe", "mixtral", "gpt_oss"], ["scale", "tail", "neighbour"]),
            ("qwen3_moe", "late"),
        ],
        default=[
            ("qwen3_moe", "scale"),
            ("mixtral", "tail"),
            ("gpt_oss", "neighbour"),
            ("qwen3_moe", "late"),
        ],
    ),
)
def test_a_mixture_with_wrong_attention_is_refused(
    family: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits of a deep model hide what differs late and little among rounding; its own layer does not."""
    real = TorchAttention.step

    def step(self: TorchAttention, layout: Any) -> AttentionStep:
        if wrong == "tail":  # the last key is not seen
            layout = replace(layout, seq_lens=(layout.seq_lens - 1).clamp(min=1))
        if wrong == "neighbour":  # the sequences read one another's blocks
            layout = replace(layout, block_tables=layout.block_tables.flip(0))
        return Faulty(real(self, layout), wrong)

    monkeypatch.setattr(TorchAttention, "step", step)
    with pytest.raises(UnsupportedModel, match="layer by layer" if wrong == "late" else "logits differ"):
        check_model(mixture(family), family)


class Faulty:
    """Attention of another scale than the layer asked for, or a fifth too small late in the model."""

    def __init__(self, step: AttentionStep, wrong: str) -> None:
        self._step, self._wrong = step, wrong

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        if self._wrong == "scale":
            call = replace(call, scale=call.scale * 0.7)
        out = self._step.attend(layer, query, key, value, call)
        return out * 0.8 if self._wrong == "late" and layer == 12 else out


class Rounding:
    """A pass of its own over a model's modules that rounds more than they do, after every layer."""

    def __init__(self, model: Any) -> None:
        self._modules = selftest.ModulePass(model)

    def __call__(self, inputs: StepInputs, attention: AttentionStep) -> Tensor:
        with self.watch_layers(lambda index, hidden: hidden):
            return self._modules(inputs, attention)

    @contextmanager
    def watch_layers(self, on_layer: Any, on_experts: Any = None) -> Iterator[None]:
        def noisy(index: int, hidden: Tensor) -> Tensor:
            noise = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(index))
            return on_layer(index, hidden * (1 + 2**-9 * noise).to(hidden.dtype))

        with self._modules.watch_layers(noisy):
            yield


@torch.inference_mode()
def test_another_way_through_a_mixture_is_proven_layer_by_layer_where_its_logits_differ() -> None:
    model = mixture("qwen3_moe")
    checked = check_model(model, "mixture")
    assert checked.reference.chooses_experts
    other = Rounding(model)

    check_forward_pass(other, checked, model, "mixture", "torch", block_size=16, is_held=True)
    with pytest.raises(UnsupportedModel, match="packed, its logits differ"):
        check_forward_pass(other, checked, model, "mixture", "torch", block_size=16, is_held=False)


def written_out(model: Any, name: str) -> tuple[Decoder, CheckedModel]:
    checked = check_model(model, name, "native")
    return read_decoder(model, checked.calls, native_packing("bfloat16"), torch.bfloat16), checked


@needs_bfloat16
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", mostly_exhaustive(("qwen3_moe", "mixtral", "granitemoe"), ["mixtral"]))
@torch.inference_mode()
def test_a_mixture_written_out_is_sent_to_the_references_experts(family: str, seed: int) -> None:
    model = mixture(family, seed)
    decoder, checked = written_out(model, family)
    assert not decoder.has_modules

    check_forward_pass(decoder, checked, model, family, "native", block_size=32, is_held=True)
    check_written_steps(decoder, checked, model, family, "native")


@needs_bfloat16
@pytest.mark.parametrize("wrong", ["experts", "weights", "sum"])
@torch.inference_mode()
def test_a_mixture_written_out_wrongly_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_choose, real_combine = NativeOperations.choose_experts, NativeOperations.combine

    def choose(self: Any, router: Any, logits: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        chosen, weights = real_choose(self, router, logits, chosen)
        if wrong == "experts":
            chosen = (chosen + 1) % router.rule.experts
        return chosen, weights * 0.7 if wrong == "weights" else weights

    def combine(self: Any, y: Tensor, places: Tensor, *others: Any) -> None:
        real_combine(self, y, places.flip(0) if wrong == "sum" else places, *others)

    model = mixture("mixtral")
    decoder, checked = written_out(model, "wrong")
    monkeypatch.setattr(NativeOperations, "choose_experts", choose)
    monkeypatch.setattr(NativeOperations, "combine", combine)
    with pytest.raises(UnsupportedModel, match=r"differ|experts are others"):
        check_forward_pass(decoder, checked, model, "wrong", "native", block_size=32, is_held=True)


@needs_bfloat16
@torch.inference_mode()
def test_steps_written_down_that_give_other_logits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mixture("mixtral")
    decoder, checked = written_out(model, "steps")
    real = WrittenCalls.run

    def run_all_but_the_last(self: WrittenCalls) -> None:
        del self._written[-1:]
        real(self)

    monkeypatch.setattr(WrittenCalls, "run", run_all_but_the_last)
    with pytest.raises(UnsupportedModel, match="other logits than its layers"):
        check_written_steps(decoder, checked, model, "steps", "native")


@needs_bfloat16
def test_a_mixture_decodes_by_calls_that_were_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_seconds", lambda pack, *_: float("native" not in pack.__qualname__))
    directory = save_model(tmp_path / "model", "mixtral", **fields("mixtral"))
    engine = load_engine(directory, dtype="bfloat16", block_size=32)
    runs: list[WrittenCalls] = []
    real = WrittenCalls.run
    monkeypatch.setattr(WrittenCalls, "run", lambda self: (runs.append(self), real(self))[1])

    complete(engine, Request("one", [1, 2, 3], greedy(8)))

    assert len(runs) == 7, "one for each token after the first"


@pytest.mark.parametrize(
    ("family", "weight_dtype"),
    mostly_exhaustive(
        product(["qwen3_moe", "mixtral", "ernie4_5_moe", "hunyuan_v1_moe"], ["auto", "int8"]),
        default=[("mixtral", "int8")],
    ),
)
def test_a_mixture_in_bfloat16_is_loaded_and_answers(tmp_path: Path, family: str, weight_dtype: str) -> None:
    directory = save_model(tmp_path / "model", family, **fields(family))

    engine = load_engine(directory, dtype="bfloat16", weight_dtype=weight_dtype)
    [answer] = complete(engine, Request("one", [1, 2, 3], greedy(8)))

    assert len(answer.token_ids) == 8
