"""Modules whose linear layers are packed: which ones stay, and what may be asked of those that go."""

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2MLP

from nightshift_engine.errors import UnsupportedModel
from nightshift_engine.execution.linears.native import NativeLinear
from nightshift_engine.execution.linears.packing import native_packing
from nightshift_engine.execution.packed_modules import PackedLinear, pack_modules
from tests.unit.engine.loading.test_model_families import CASES
from tests.unit.engine.tiny.decoders import (
    greedy_answers,
    load_engine,
    reference_greedy,
    save_model,
)

pytestmark = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels"
)


def test_a_layer_that_a_model_keeps_in_another_dtype_stays() -> None:
    model = torch.nn.ModuleDict({"router": torch.nn.Linear(32, 8), "up": torch.nn.Linear(32, 16).bfloat16()})
    router = copy.deepcopy(model["router"])

    assert pack_modules(model, native_packing("bfloat16"), torch.bfloat16) == 1

    assert isinstance(model["up"], PackedLinear)
    assert torch.equal(model["router"].weight, router.weight)


def test_a_packed_layer_says_what_its_weight_was_but_not_the_numbers() -> None:
    model = torch.nn.ModuleDict({"up": torch.nn.Linear(32, 16)})
    pack_modules(model, native_packing("float32"), torch.float32)
    weight: Any = model["up"].weight

    assert (weight.shape, weight.dtype, weight.device) == ((16, 32), torch.float32, torch.device("cpu"))
    assert weight.isnan().all()
    assert weight.untyped_storage().nbytes() < 16


def multiply_by_hand(self: Any, x: Tensor) -> Tensor:
    gated = self.act_fn(F.linear(x, self.gate_proj.weight)) * self.up_proj(x)
    return self.down_proj(gated)  # type: ignore[no-any-return]


def test_a_model_that_reads_the_weights_of_its_layers_runs_with_them_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(DeepseekV2MLP, "forward", multiply_by_hand)
    directory = save_model(tmp_path / "model", "deepseek_v2", **CASES["deepseek_v2"])
    prompts = [[5, 6, 7], list(range(20, 40))]

    with caplog.at_level(logging.WARNING):
        engine = load_engine(directory)

    assert greedy_answers(engine, prompts, 12) == reference_greedy(directory, prompts, 12)
    assert "runs without packed layers, more slowly" in caplog.text
    if NativeLinear.can_pack("int8", 4):
        with pytest.raises(UnsupportedModel, match="packed"):
            load_engine(directory, weight_dtype="int8")
