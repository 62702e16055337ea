"""Checkpoints in few bits that are made to measure with are read as what they were rounded from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.fixtures.checkpoints import NARROW
from benchmarks.fixtures.narrow import save_narrow
from nightshift_engine.checkpoint.narrow.tensors import read_narrow
from tests.unit.engine.tiny.decoders import save_model


@pytest.mark.parametrize("code", NARROW)
def test_the_engine_reads_every_layer_of_a_checkpoint_in_few_bits(code: str, tmp_path: Path) -> None:
    whole = save_model(
        tmp_path / "whole", hidden_size=128, intermediate_size=256, head_dim=64, num_attention_heads=2
    )
    weights = load_file(whole / "model.safetensors")

    save_narrow(whole, code, tmp_path / "narrow")

    stored = load_file(tmp_path / "narrow" / "model.safetensors")
    narrow = read_narrow(tmp_path / "narrow", "narrow")
    assert narrow is not None
    assert set(narrow.weights) == {name for name in weights if name.endswith("_proj.weight")}
    assert stored.keys() - narrow.parts == weights.keys() - narrow.weights.keys()
    for name, weight in narrow.weights.items():
        assert weight.code == code
        read = weight.read(stored.__getitem__, "narrow").dequantized(torch.float32)
        step = weights[name].abs().max() / (7 if code == "int4" else 14)
        assert (read - weights[name]).abs().max() <= step * 0.52
