"""The engine on a device: the same tokens with graphs and overlap as without, and as `generate`."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_checks import check_bfloat16, check_greedy
from tests.unit.workers.engine.test_overlap import CRAMPED, random_request, told
from tests.unit.workers.engine.tiny_models import complete, load_engine, save_model
from workers.engine import Engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"))


def on_device(directory: Path, **settings: Any) -> Engine:
    return load_engine(directory, **({"device": "cuda", "dtype": "float32"} | settings))


def test_greedy_tokens_are_those_of_generate() -> None:
    check = check_greedy(torch.device("cuda"))
    assert check.holds, check


def test_bfloat16_is_no_further_off_than_in_transformers() -> None:
    check = check_bfloat16(torch.device("cuda"))
    assert check.holds, check


@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("overlap_steps", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_graphs_and_overlap_change_no_answer(
    llama: Path, cuda_graphs: bool, overlap_steps: bool, seed: int
) -> None:
    print(f"{seed=}")
    requests = [random_request(n, random.Random(seed * 1000 + n)) for n in range(16)]
    plain = on_device(llama, attention_backend="torch", overlap_steps=False)
    wanted = [told(completion) for completion in complete(plain, *requests)]

    engine = on_device(llama, cuda_graphs=cuda_graphs, overlap_steps=overlap_steps, **CRAMPED)

    assert [told(completion) for completion in complete(engine, *requests)] == wanted


def test_a_llama_can_be_recorded(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="workers.engine"):
        on_device(llama, max_num_seqs=8)

    assert any("recorded as 4 CUDA graphs" in record.getMessage() for record in caplog.records)
