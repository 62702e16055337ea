"""The measurement of KV in 8 bits rounds as the engine does, and names every way."""

import pytest
import torch

from benchmarks.device import kv_error
from benchmarks.fixtures.models import QWENS
from tests.unit.engine.kernels.triton.attention_problems import quantise


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_rows_are_rounded_as_kv_memory_rounds_them(dtype: torch.dtype) -> None:
    rows = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(1))
    rows[1, 2] = 0
    stored, scales = quantise(rows, dtype)

    assert torch.equal(kv_error.rounded(rows, dtype), stored.float() * scales[..., None])


def test_each_way_is_measured_at_each_length(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kv_error, "LENGTHS", (6, 20))
    monkeypatch.setattr(kv_error, "SHAPE", QWENS["tiny"])

    kv_error.main([])

    lines = capsys.readouterr().out.splitlines()
    errors = [float(line.split("error ")[1].split()[0]) for line in lines]
    assert len(lines) == 2 * len(kv_error.WAYS)
    assert all(error > 0 for error in errors)
    assert errors[1] < errors[2], "int8 rounds a row of even size more finely than e4m3"
