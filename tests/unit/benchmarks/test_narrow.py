"""Checkpoints in few bits that are made to measure with are served as they are stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fixtures.checkpoints import NARROW
from benchmarks.fixtures.narrow import save_narrow
from nightshift_engine import EngineConfig
from nightshift_engine.models import load_model
from tests.unit.engine.tiny.decoders import save_model


@pytest.mark.parametrize("code", NARROW)
def test_the_engine_serves_a_checkpoint_in_few_bits_as_it_is_stored(code: str, tmp_path: Path) -> None:
    whole = save_model(
        tmp_path / "whole", hidden_size=128, intermediate_size=256, head_dim=64, num_attention_heads=2
    )

    save_narrow(whole, code, tmp_path / "narrow")

    model = load_model(EngineConfig(str(tmp_path / "narrow"), device="cpu", dtype="float32", num_kv_blocks=4))
    assert model.facts.weight_dtype == f"{code} as stored"
