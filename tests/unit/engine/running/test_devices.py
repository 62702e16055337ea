"""An engine computes on the device it was given, whatever device its thread had before."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nightshift_engine import Engine, EngineConfig, Request
from nightshift_engine.core.kv_blocks import BlockPool
from nightshift_engine.core.live_request import ModelFacts
from nightshift_engine.engine import engine as engine_module
from nightshift_engine.errors import InvalidConfig
from nightshift_engine.execution.device.devices import DeviceMemory
from nightshift_engine.loading import model as model_module
from nightshift_engine.loading import runner as runner_module
from nightshift_engine.loading.model import LoadedModel
from tests.unit.engine.running.scripted_runner import ScriptedRunner
from tests.unit.engine.tiny.decoders import CONTEXT, EOS, VOCAB_SIZE, complete, greedy, load_tokenizer

SECOND = torch.device("cuda:1")


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The thread's devices, the last one current: a stand-in for what CUDA keeps per thread."""
    devices = [torch.device("cuda:0")]

    @contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        devices.append(chosen)
        yield
        devices.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    return devices


class WatchingRunner(ScriptedRunner):
    def __init__(self, current: list[torch.device]) -> None:
        super().__init__([65, 66])
        self.current, self.seen = current, set[torch.device]()

    def forward(self, chunks: Any, promised: Tensor | None = None) -> Tensor:
        self.seen.add(self.current[-1])
        return super().forward(chunks, promised)


def test_a_step_runs_on_the_engines_device(llama: Path, current: list[torch.device]) -> None:
    runner, facts = WatchingRunner(current), ModelFacts("scripted", VOCAB_SIZE, CONTEXT, frozenset({EOS}))
    config, pool = EngineConfig("scripted", block_size=4), BlockPool(64, 4)
    engine = Engine(runner, load_tokenizer(str(llama)), facts, pool, config, SECOND)

    complete(engine, Request("a", [1], greedy(3)))

    assert runner.seen == {SECOND}
    assert current == [torch.device("cuda:0")]


def test_a_model_is_loaded_and_proven_on_its_device(
    llama: Path, current: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.device] = []

    def load(config: EngineConfig, device: torch.device, **_: Any) -> Any:
        seen.extend([device, current[-1]])
        raise InvalidConfig("enough")

    monkeypatch.setattr(model_module.weights, "resolve_device", lambda name: torch.device(name))
    monkeypatch.setattr(model_module.weights, "load_pretrained", load)
    with pytest.raises(InvalidConfig, match="enough"):
        model_module.load_model(EngineConfig(str(llama), device="cuda:1"))

    assert seen == [SECOND, SECOND]


def test_kv_memory_and_graphs_are_made_on_the_engines_device(
    llama: Path, current: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.device] = []

    def allocate(*_: Any, **__: Any) -> Any:
        seen.append(current[-1])
        raise RuntimeError("enough")

    monkeypatch.setattr(runner_module, "KvMemory", allocate)
    facts = ModelFacts("m", VOCAB_SIZE, CONTEXT, frozenset({EOS}), device="cuda")
    any_pass: Any = None
    config, tokenizer = EngineConfig("m", device="cuda:1", num_kv_blocks=9), load_tokenizer(str(llama))
    dtype = torch.bfloat16
    model = LoadedModel(config, tokenizer, facts, any_pass, {}, dtype, dtype, SECOND, "triton", 0)
    with pytest.raises(InvalidConfig, match="enough"):
        Engine.over(model, DeviceMemory(0, 0))

    assert seen == [SECOND]


@pytest.mark.parametrize(
    ("device", "setting", "is_held"),
    [("cuda", None, True), ("cpu", None, False), ("cuda", False, False), ("cpu", True, True)],
)
def test_bulk_waits_for_a_group_on_a_gpu_or_where_asked_to(
    llama: Path, device: str, setting: bool | None, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "instruction_set", lambda device: device)
    facts = ModelFacts("scripted", VOCAB_SIZE, CONTEXT, frozenset({EOS}), device=device)
    config = EngineConfig("scripted", max_num_seqs=32, group_admissions=setting, overlap_steps=False)
    tokenizer = load_tokenizer(str(llama))
    engine = Engine(ScriptedRunner([65, 66]), tokenizer, facts, BlockPool(99, 32), config)
    for number in range(31):
        engine.add(Request(str(number), [number], greedy(20)))
    engine.step()

    engine.add(Request("one more", [40], greedy(20), group="job"))

    assert ("one more" in {output.id for output in engine.step()}) is not is_held


def test_of_two_shares_of_a_device_the_lesser_counts() -> None:
    measured = DeviceMemory(for_kv=10, in_all=100)
    assert measured.at_most(None) == measured
    assert measured.at_most(DeviceMemory(20, 50)) == DeviceMemory(10, 50)
