"""A model we would compute wrongly does not load, and the error gives the reason."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.mistral import modeling_mistral

from nightshift_engine.errors import UnsupportedModel
from nightshift_engine.execution.attention.interface import ATTENTION_NAME, AttentionStep
from nightshift_engine.execution.kv_memory import KvShape
from nightshift_engine.execution.step_layout import StepInputs
from nightshift_engine.loading import selftest
from nightshift_engine.loading.selftest import check_model
from tests.unit.engine.tiny.decoders import load_engine, save_model

Checkpoint = Callable[..., Path]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    def save(model_type: str, **overrides: Any) -> Path:
        return save_model(tmp_path / model_type, model_type, **overrides)

    return save


def load(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()


def drop_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of mistral no longer pass their window on."""
    real = modeling_mistral.ALL_ATTENTION_FUNCTIONS.get_interface

    def without_window(name: str, default: Any) -> Any:
        attention = real(name, default)
        return lambda *args, sliding_window=None, **kwargs: attention(*args, **kwargs)

    monkeypatch.setattr(modeling_mistral.ALL_ATTENTION_FUNCTIONS, "get_interface", without_window)


def halve_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes by modules compute at half of each position."""
    real = selftest.ModulePass.__call__

    def shifted(self: Any, inputs: StepInputs, attention: AttentionStep) -> Tensor:
        layout = replace(inputs.layout, positions=inputs.layout.positions // 2)
        return real(self, replace(inputs, layout=layout), attention)

    monkeypatch.setattr(selftest.ModulePass, "__call__", shifted)


@pytest.mark.parametrize(
    ("model_type", "overrides"),
    [
        ("falcon", {"without": ("num_key_value_heads",)}),
        ("bloom", {"n_head": 4, "n_layer": 2, "without": ("num_key_value_heads",)}),
        ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "without": ("num_key_value_heads",)}),
    ],
)
def test_a_model_that_keeps_its_own_attention_is_refused(
    checkpoint: Checkpoint, model_type: str, overrides: dict[str, Any]
) -> None:
    directory = checkpoint(model_type, **overrides)
    with pytest.raises(
        UnsupportedModel, match=f"{model_type}.*does not go through the transformers attention"
    ):
        load_engine(directory)


def test_a_model_with_layers_that_are_not_attention_is_refused(checkpoint: Checkpoint) -> None:
    directory = checkpoint("lfm2", layer_types=["conv", "full_attention"])
    with pytest.raises(UnsupportedModel, match="layers of type conv"):
        load_engine(directory)


def test_a_model_that_claims_our_attention_but_does_not_call_it_is_refused(checkpoint: Checkpoint) -> None:
    """As bloom once did: the configuration accepts our attention, the layers do not use it."""
    model = load(checkpoint("llama"))
    for layer in model.model.layers[1:]:
        layer.self_attn.forward = lambda hidden_states, **_: (hidden_states, None)

    with pytest.raises(UnsupportedModel, match="1 attention calls in one pass over 2 layers"):
        check_model(model, "sly")


def test_shapes_come_from_the_layers_not_from_the_configuration(checkpoint: Checkpoint) -> None:
    model = load(checkpoint("llama", head_dim=10))

    assert check_model(model, "llama").shapes == {
        n: KvShape(num_heads=2, key_dim=10, value_dim=10) for n in range(2)
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_passes_within_its_own_tolerance(checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    check_model(load(checkpoint("llama")).to(dtype), "half")


@pytest.mark.parametrize(
    ("context", "is_noticed"), [(8192, True), (4096, False)], ids=["is noticed", "never reached"]
)
def test_a_window_that_attention_is_not_told_is_noticed_where_the_context_reaches_it(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, context: int, is_noticed: bool
) -> None:
    """A layer that does not pass its window on would see too much, but only beyond 4096 tokens."""
    model = load(checkpoint("mistral", sliding_window=4096, max_position_embeddings=context))
    drop_windows(monkeypatch)
    if not is_noticed:
        check_model(model, "far-sighted")
        return
    with pytest.raises(UnsupportedModel, match="logits differ"):
        check_model(model, "far-sighted")


def test_the_check_leaves_the_models_windows_as_they_were(checkpoint: Checkpoint) -> None:
    model = load(checkpoint("gemma2", head_dim=8, query_pre_attn_scalar=8, sliding_window=64))
    check_model(model, "gemma2")
    assert model.config._attn_implementation == ATTENTION_NAME
    torch.nn.init.constant_(model.get_input_embeddings().weight, float("nan"))
    with pytest.raises(UnsupportedModel):
        check_model(model, "broken")

    assert model.config.sliding_window == 64
    assert [layer.self_attn.sliding_window for layer in model.model.layers] == [64, None]


@pytest.mark.parametrize(
    ("family", "overrides", "reason"),
    [
        ("mistral", {"sliding_window": 0}, "does not see itself"),
        ("mistral", {"sliding_window": 1}, "it has a sliding window"),
        ("mistral", {"num_hidden_layers": 0}, "it has 0 layers"),
        # A llama has no windows; one stray key in its configuration, and its cache forgets all the same.
        ("llama", {"sliding_window": 24}, "with a cache, its logits differ"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(
    checkpoint: Checkpoint, family: str, overrides: dict[str, int], reason: str
) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        check_model(load(checkpoint(family, **overrides)), "senseless")


UP_PROJ = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("name", "value", "dtype", "reason"),
    [
        (
            "lm_head.weight",
            float("nan"),
            torch.float32,
            "its weight {} has NaN or infinite values in float32",
        ),
        (UP_PROJ, float("inf"), torch.float32, "its weight {} has NaN or infinite values in float32"),
        ("lm_head.weight", 1e6, torch.float16, "its weight {} has NaN or infinite values in float16"),
        ("lm_head.weight", 3e38, torch.float32, "logits differ"),  # though all weights are numbers
    ],
)
def test_a_weight_that_makes_no_numbers_is_refused_by_name(
    checkpoint: Checkpoint, name: str, value: float, dtype: torch.dtype, reason: str
) -> None:
    model = load(checkpoint("llama"))
    torch.nn.init.constant_(model.get_parameter(name)[:3], value)

    with pytest.raises(UnsupportedModel, match=reason.format(name)):
        check_model(model.to(dtype), "broken")


def fail(*args: Any, **kwargs: Any) -> Any:
    raise IndexError("a layer of my own")


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (
            lambda real: lambda input_ids, position_ids=None, **others: real(input_ids, **others),
            "logits differ",
        ),
        (
            lambda real: lambda input_ids, use_cache=False: real(input_ids, use_cache=use_cache),
            "position_ids",
        ),
        (lambda real: fail, "transformers itself cannot run it: IndexError: a layer"),
    ],
    ids=["positions of its own", "no positions", "an error"],
)
def test_a_model_that_cannot_be_told_where_its_tokens_are_is_refused(
    checkpoint: Checkpoint, forward: Callable[[Any], Any], reason: str
) -> None:
    model = load(checkpoint("llama"))
    model.forward = forward(model.forward)

    with pytest.raises(UnsupportedModel, match=reason):
        check_model(model, "lost")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_position_is_far_outside_every_tolerance(
    checkpoint: Checkpoint, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(checkpoint("llama")).to(dtype)
    halve_positions(monkeypatch)
    with pytest.raises(UnsupportedModel, match="logits differ"):
        check_model(model, "shifted")
