"""Ranks over NCCL: the tokens of one device, graphs included, and an end with any of them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from nightshift_engine import Engine, Request
from nightshift_engine.errors import RankLost
from nightshift_engine.execution.parallel.group import Group
from nightshift_engine.loading.model import load_part
from tests.unit.engine.loading.ranks.test_processes import RANK, run_to_end
from tests.unit.engine.tiny.decoders import (
    engine_config,
    greedy,
    greedy_answers,
    load_engine,
    load_tokenizer,
    random_prompts,
    save_model,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TWO_DEVICES = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("qwen3"), "qwen3", head_dim=16)


@pytest.fixture(scope="module")
def wanted(qwen3: Path) -> list[list[int]]:
    return greedy_answers(load_engine(qwen3, device="cuda", dtype="float32"), random_prompts(8), NEW_TOKENS)


@pytest.fixture
def two_devices(qwen3: Path) -> Iterator[Engine]:
    return load_engine(qwen3, device="cuda", dtype="float32", tensor_parallel_size=2)


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_the_exchanges_of_a_single_rank_change_no_token(
    qwen3: Path, wanted: list[list[int]], cuda_graphs: bool
) -> None:
    device = torch.device("cuda", 0)
    config = engine_config(qwen3, device="cuda", dtype="float32", cuda_graphs=cuda_graphs)
    with torch.cuda.device(device):
        group = Group.over(dist.HashStore(), 0, 1, device)
        engine = Engine.over(load_part(config, load_tokenizer(str(qwen3)), device, group))

        assert greedy_answers(engine, random_prompts(8), NEW_TOKENS) == wanted


@TWO_DEVICES
def test_two_devices_give_the_tokens_of_one(two_devices: Engine, wanted: list[list[int]]) -> None:
    assert greedy_answers(two_devices, random_prompts(8), NEW_TOKENS) == wanted


@TWO_DEVICES
def test_the_death_of_a_rank_ends_the_engine(two_devices: Engine) -> None:
    two_devices.add(Request("row", [1, 2, 3], greedy(100)))
    two_devices.step()
    os.kill(_pid_of_rank(), signal.SIGKILL)

    with pytest.raises(RankLost):
        run_to_end(two_devices)


def _pid_of_rank() -> int:
    """The youngest child of this process that is a rank."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ranks = [int(child) for child in children if RANK in Path(f"/proc/{child}/cmdline").read_text()]
    return ranks[-1]
