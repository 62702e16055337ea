"""Weights that have been packed do not stay in memory a second time."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nightshift_engine.execution.device.mapped_files import MAPS, MappedFiles

pytestmark = pytest.mark.skipif(not MAPS.exists(), reason="this system does not list its mappings")

MEGABYTE = 1 << 20


def resident_file_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssFile"].split()[0]) * 1024


def test_released_pages_leave_memory_and_can_still_be_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"w": torch.arange(4 * MEGABYTE, dtype=torch.float32)}, file)
    with safe_open(file, framework="pt") as opened:
        weight = opened.get_tensor("w")
        total = weight.sum().item()
        before = resident_file_bytes()
        MappedFiles().release(weight)
        assert resident_file_bytes() < before - 12 * MEGABYTE
        assert weight.sum().item() == total


def test_memory_that_is_no_files_is_left_alone() -> None:
    weight = torch.ones(MEGABYTE)
    MappedFiles().release(weight)
    assert bool((weight == 1).all())
