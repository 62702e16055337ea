"""Ranks as processes: the text of one device, and an end of all of them with any of them."""

import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nightshift_engine import Engine, EngineConfig, Request
from nightshift_engine.errors import InvalidConfig, RankLost, UnsupportedModel
from nightshift_engine.loading.ranks import processes
from nightshift_engine.loading.ranks.processes import REFUSED_STATUS, ClearBlocks, Ranks, rank_device
from tests.unit.engine.tiny.decoders import (
    engine_config,
    greedy,
    greedy_answers,
    load_engine,
    random_prompts,
)

END_MAX_S = 60.0
RANK = "nightshift_engine.loading.ranks.rank"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """The ranks that are started."""
    started: list[subprocess.Popen[bytes]] = []

    class Watched(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            if RANK in self.args:
                started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Watched)
    return started


def run_to_end(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def test_two_processes_give_the_text_of_one_and_the_death_of_a_rank_ends_the_engine(
    llama: Path, started: list["subprocess.Popen[bytes]"]
) -> None:
    prompts = random_prompts(3)
    engine = load_engine(llama, dtype="bfloat16", tensor_parallel_size=2, overlap_steps=True)
    alone = load_engine(llama, dtype="bfloat16")
    assert greedy_answers(engine, prompts, 8) == greedy_answers(alone, prompts, 8)

    [rank] = started
    engine.add(Request("row", prompts[0], greedy(50)))
    engine.step()
    os.kill(rank.pid, signal.SIGKILL)

    lost = re.escape(f"rank 1 (process {rank.pid}) ended with status -9")
    for _ in ("it dies", "it stays dead"):
        with pytest.raises(RankLost, match=lost):
            run_to_end(engine)
    assert rank.returncode == -9


class Alone:
    """A group without others."""

    @classmethod
    def join(cls, *_: object) -> "Alone":
        return cls()

    def abort(self) -> None:
        self.is_aborted = True


def test_a_rank_ends_with_the_process_that_started_it_and_leaves_nothing(
    llama: Path, started: list["subprocess.Popen[bytes]"]
) -> None:
    ranks = Ranks(engine_config(llama, tensor_parallel_size=2))  # the other waits for this one's weights
    directory = Path(ranks._all.directory.name)

    [rank] = started
    assert rank.stdin is not None
    rank.stdin.close()  # as the end of this process would

    assert rank.wait(END_MAX_S) == 0
    assert not directory.exists()


RANK_THAT_ENDS = """
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
connection.recv_bytes()
connection.send(None)
try:
    connection.recv_bytes()
except EOFError:
    sys.exit(0)
sys.exit(int(sys.argv[2]))
"""

Started = Callable[[int], Ranks]


@pytest.fixture
def ranks_ending_with(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Two ranks that compute nothing, and end with a status at the first message."""

    def start(status: int) -> Ranks:
        program = tmp_path / "python"
        (tmp_path / "rank.py").write_text(RANK_THAT_ENDS)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I {tmp_path}/rank.py "$4" {status}\n')
        program.chmod(0o700)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(program))
            patch.setattr(processes, "Group", Alone)
            return Ranks(engine_config(llama, tensor_parallel_size=3))

    return start


def test_ranks_end_when_nothing_needs_them(
    ranks_ending_with: Started, started: list["subprocess.Popen[bytes]"]
) -> None:
    ranks = ranks_ending_with(0)
    del ranks
    gc.collect()

    assert [rank.returncode for rank in started] == [0, 0]


@pytest.mark.parametrize(
    ("raised", "status", "reported", "words"),
    [
        pytest.param(RuntimeError("closed by peer"), 7, RankLost, "ended with status 7", id="a rank dies"),
        pytest.param(
            UnsupportedModel("m", "closed"), 7, RankLost, "ended with status 7", id="in the self-test"
        ),
        pytest.param(UnsupportedModel("m", "odd"), REFUSED_STATUS, UnsupportedModel, "odd", id="all refuse"),
    ],
)
def test_an_error_names_the_rank_that_was_its_cause(
    raised: Exception,
    status: int,
    reported: type[Exception],
    words: str,
    ranks_ending_with: Started,
    started: list["subprocess.Popen[bytes]"],
) -> None:
    ranks = ranks_ending_with(status)

    def fail_in_step() -> None:
        with ranks.in_step():
            ranks.send(ClearBlocks([]))
            raise raised

    with pytest.raises(reported, match=words):
        fail_in_step()

    assert [rank.returncode for rank in started] == [status, status]
    with pytest.raises(RankLost):
        ranks.check()


def test_a_failure_of_rank_0_alone_ends_the_others(
    ranks_ending_with: Started, started: list["subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOST_S", 0.0)
    ranks = ranks_ending_with(0)

    with pytest.raises(RankLost, match="rank 0 failed: RuntimeError: out of memory"), ranks.in_step():
        raise RuntimeError("out of memory")

    assert [rank.returncode for rank in started] == [0, 0]


def test_a_rank_that_cannot_start_is_reported(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with pytest.raises(RankLost, match="a rank ended before it began"):
        Ranks(engine_config(llama, tensor_parallel_size=2))


def on_cuda(count: int) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "resolve_device", lambda name: torch.device("cuda"))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return patch


def test_each_rank_has_the_cuda_device_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cuda(2)(monkeypatch)
    config = EngineConfig("model", tensor_parallel_size=2)

    assert rank_device(EngineConfig("model", device="cuda:1"), 0) == torch.device("cuda"), "as it is resolved"
    assert [rank_device(config, rank) for rank in (0, 1)] == [torch.device("cuda:0"), torch.device("cuda:1")]


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("auto", "tensor_parallel_size 4 needs as many CUDA devices, and there are 2"),
        ("cuda:1", "device 'cuda:1' is one of the 4 that tensor_parallel_size needs"),
    ],
)
def test_fewer_devices_than_ranks_are_refused(
    device: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cuda(2)(monkeypatch)

    with pytest.raises(InvalidConfig, match=reason):
        rank_device(EngineConfig("model", device=device, tensor_parallel_size=4), 0)
