"""One worker for each GPU: which GPUs there are, and the part of the machine that each worker has."""

import os
from pathlib import Path

import pytest

from nightshift.cli.processes.gpus import Gpu, gpus, gpus_for, shares
from nightshift.errors import ConfigurationError

TWO = """GPU 0: NVIDIA H100 (UUID: GPU-aaaa-1)
GPU 1: NVIDIA H100 (UUID: GPU-bbbb-2)
"""
IN_PARTS = """GPU 0: NVIDIA H100 (UUID: GPU-aaaa-1)
  MIG 1g.10gb     Device  0: (UUID: MIG-cccc-3)
  MIG 1g.10gb     Device  1: (UUID: MIG-dddd-4)
GPU 1: NVIDIA H100 (UUID: GPU-bbbb-2)
"""
BUSES = "GPU-aaaa-1, 00000000:1B:00.0\nGPU-bbbb-2, 00000000:9D:00.0\n"


@pytest.fixture
def machine(tmp_path: Path) -> "Machine":
    return Machine(tmp_path)


class Machine:
    """A machine with a simulated driver."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {"PATH": str(root / "bin")}
        (root / "bin").mkdir()

    def has(self, listed: str, exit_code: int = 0) -> None:
        (self.root / "listed").write_text(listed)
        (self.root / "buses").write_text(BUSES)
        program = self.root / "bin/nvidia-smi"
        program.write_text(
            f'#!/bin/sh\ncase "$1" in --list-gpus) file=listed ;; *) file=buses ;; esac\n'
            f'while read -r line; do echo "$line"; done < {self.root}/$file\nexit {exit_code}\n'
        )
        program.chmod(0o700)

    def has_cores_near(self, bus: str, cores: str) -> None:
        folder = self.root / "sys/bus/pci/devices" / bus
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text(cores + "\n")

    def gpus(self) -> list[Gpu]:
        return list(gpus(self.environment, self.root))


def test_the_driver_lists_gpus_and_the_kernel_the_cores_near_them(machine: Machine) -> None:
    machine.has(TWO)
    machine.has_cores_near("0000:1b:00.0", "0-1,4")

    assert machine.gpus() == [Gpu("GPU-aaaa-1", frozenset({0, 1, 4})), Gpu("GPU-bbbb-2")]


def test_a_gpu_that_is_cut_into_parts_counts_as_its_parts(machine: Machine) -> None:
    machine.has(IN_PARTS)
    machine.has_cores_near("0000:1b:00.0", "2-3")

    near = frozenset({2, 3})
    assert machine.gpus() == [Gpu("MIG-cccc-3", near), Gpu("MIG-dddd-4", near), Gpu("GPU-bbbb-2")]


@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        ("2,0", ["2", "0"]),
        ("GPU-bbbb-2, GPU-aaaa-1", ["GPU-bbbb-2", "GPU-aaaa-1"]),
        ("1,-1,0", ["1"]),
        ("", []),
        ("NoDevFiles", []),
    ],
)
def test_the_operators_choice_of_devices_comes_first(machine: Machine, visible: str, ids: list[str]) -> None:
    machine.has(TWO)
    machine.environment["CUDA_VISIBLE_DEVICES"] = visible

    assert [gpu.id for gpu in machine.gpus()] == ids


def test_a_machine_without_a_driver_or_with_a_broken_one_has_none(machine: Machine) -> None:
    assert machine.gpus() == []
    machine.has("Failed to initialize NVML: Driver/library version mismatch", exit_code=18)
    assert machine.gpus() == []


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_a_setting_that_names_a_device_leaves_none_to_share(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")

    assert [gpu.id for gpu in gpus_for("auto")] == ["0", "1"]
    assert gpus_for(device) == ()


def test_each_worker_has_a_gpu_and_the_cores_near_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    first, second, third = shares(3, [Gpu("A", frozenset({0, 1, 99})), Gpu("B")], {})

    assert (first.environment["CUDA_VISIBLE_DEVICES"], first.cpus) == ("A", {0, 1})
    assert (second.environment["CUDA_VISIBLE_DEVICES"], second.cpus) == ("B", frozenset())
    assert third.environment["CUDA_VISIBLE_DEVICES"] == "A"


def test_several_workers_share_the_cores_unless_the_operator_gives_them_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    assert [share.environment for share in shares(2, (), {})] == [{"OMP_NUM_THREADS": "4"}] * 2
    assert shares(9, (), {})[8].environment == {"OMP_NUM_THREADS": "1"}
    assert shares(1, (), {})[0].environment == {}
    assert shares(2, (), {"OMP_NUM_THREADS": "3"})[1].environment == {}, "they inherit it"


def test_workers_that_compute_on_several_gpus_have_as_many_together_and_leave_the_rest(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")

    assert [group.id for group in gpus_for("auto", 2)] == ["0,1", "2,3", "4,5", "6,7"]
    assert [group.id for group in gpus_for("cuda", 3)] == ["0,1,2", "3,4,5"]
    assert gpus_for("cpu", 2) == ()


def test_a_group_of_gpus_has_the_cores_near_any_of_them(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.has(TWO)
    machine.has_cores_near("0000:1b:00.0", "0-1")
    machine.has_cores_near("0000:9d:00.0", "4")
    monkeypatch.setattr("nightshift.cli.processes.gpus.gpus", machine.gpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    [share] = shares(1, gpus_for("auto", 2), {})

    assert share.environment == {"CUDA_VISIBLE_DEVICES": "GPU-aaaa-1,GPU-bbbb-2"}
    assert share.cpus == {0, 1, 4}


@pytest.mark.parametrize(
    ("listed", "size", "words"),
    [
        (TWO, 4, "NIGHTSHIFT_ENGINE_TENSOR_PARALLEL_SIZE is 4, and this machine has 2 whole GPUs"),
        (IN_PARTS, 2, "is 2, and this machine has 1 whole GPUs and 2 parts of GPUs"),
    ],
)
def test_fewer_whole_gpus_than_a_worker_needs_are_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, listed: str, size: int, words: str
) -> None:
    machine.has(listed)
    monkeypatch.setattr("nightshift.cli.processes.gpus.gpus", machine.gpus)

    with pytest.raises(ConfigurationError, match=words):
        gpus_for("auto", size)


def test_a_machine_without_gpus_leaves_the_size_to_the_engine(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.cli.processes.gpus.gpus", machine.gpus)

    assert gpus_for("auto", 2) == []
