"""The GPUs of this machine, and the share that each of its workers has.

No torch: `CUDA_VISIBLE_DEVICES` says which devices a process may use (NVIDIA's CUDA documentation);
`nvidia-smi` lists them where it does not.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from nightshift.errors import ConfigurationError

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
DRIVER_S: Final = 10.0  # a driver that does not answer has no GPU for us
DEVICES: Final = ("auto", "cuda")  # settings that leave the choice of a GPU open

Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,
        help="Worker processes, each with the models.  [default: one for each GPU or group of GPUs, else 1]",
        show_default=False,
    ),
]

_UUID: Final = re.compile(r"UUID: ((?:GPU|MIG)-[0-9A-Za-z/-]+)")
_CPU_RANGE: Final = re.compile(r"([0-9]+)(?:-([0-9]+))?")


@dataclass(frozen=True)
class Gpu:
    """A GPU, a part of one (MIG), or several that compute a model together."""

    id: str  # as CUDA_VISIBLE_DEVICES names it, or them
    cpus: frozenset[int] = frozenset()  # cores near it; empty: not known


@dataclass(frozen=True)
class WorkerShare:
    """The parts of a machine that one of several workers has for itself."""

    environment: Mapping[str, str]
    cpus: frozenset[int]  # empty: all


WHOLE_MACHINE: Final = WorkerShare({}, frozenset())


def gpus(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Sequence[Gpu]:
    """The GPUs that a process with this environment may use; none where no driver answers.

    A GPU that is cut into parts counts as its parts. `root`: of `sys/`, which says the cores near a GPU.
    """
    visible = environment.get(VISIBLE)
    if visible is not None:
        return [Gpu(id) for id in _named(visible)]
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return []
    near = dict(_near(program, root))
    listed = [match[1] for match in map(_UUID.search, _lines(program, "--list-gpus")) if match]
    chosen: list[Gpu] = []
    whole = ""
    for id in listed:  # the parts of a GPU follow it
        if id.startswith("MIG-"):
            chosen = [gpu for gpu in chosen if gpu.id != whole]
        else:
            whole = id
        chosen.append(Gpu(id, near.get(whole, frozenset())))
    return chosen


def gpus_for(device: str, tensor_parallel_size: int = 1) -> Sequence[Gpu]:
    """The GPUs that workers with these settings may share, as many together as each computes on.

    None where `DEVICE` names one, or the CPU. Raises ConfigurationError where there are too few for a worker.
    """
    listed, size = gpus() if device in DEVICES else (), tensor_parallel_size
    if size == 1 or not listed:
        return listed
    whole = [gpu for gpu in listed if not gpu.id.startswith("MIG-")]  # parts reach no others over NCCL
    if len(whole) < size:
        parts = f" and {len(listed) - len(whole)} parts of GPUs" if len(whole) < len(listed) else ""
        raise ConfigurationError(
            f"NIGHTSHIFT_ENGINE_TENSOR_PARALLEL_SIZE is {size}, and this machine has {len(whole)} whole "
            f"GPUs{parts}: set it to at most the number of whole ones",
            param="ENGINE_TENSOR_PARALLEL_SIZE",
        )
    groups = [whole[first : first + size] for first in range(0, len(whole) - size + 1, size)]
    return [
        Gpu(",".join(gpu.id for gpu in group), frozenset().union(*(gpu.cpus for gpu in group)))
        for group in groups
    ]


def shares(
    count: int, gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ
) -> Sequence[WorkerShare]:
    """The shares of `count` workers. GPUs go round; one worker without a GPU has the whole machine.

    Without a share of the cores, threads of all workers would wait for one another. `OMP_NUM_THREADS` of the
    operator's environment comes first.
    """
    cores = os.sched_getaffinity(0)
    threads = {"OMP_NUM_THREADS": str(max(1, len(cores) // count))}
    common = {} if count == 1 or "OMP_NUM_THREADS" in environment else threads
    if not gpus:
        return [WorkerShare(common, frozenset())] * count
    chosen = [gpus[number % len(gpus)] for number in range(count)]
    return [WorkerShare({**common, VISIBLE: gpu.id}, gpu.cpus & cores) for gpu in chosen]


def _named(visible: str) -> Sequence[str]:
    """The devices in CUDA_VISIBLE_DEVICES, up to the first that is none, as CUDA reads it."""
    ids = []
    for name in visible.split(","):
        if not re.fullmatch(r"[0-9]+|(?:GPU|MIG)-.+", name.strip()):
            break
        ids.append(name.strip())
    return ids


def _near(program: str, root: Path) -> Sequence[tuple[str, frozenset[int]]]:
    """The cores near each GPU, by its UUID."""
    near = []
    for line in _lines(program, "--query-gpu=uuid,pci.bus_id", "--format=csv,noheader"):
        uuid, _, bus_id = line.partition(",")
        # 00000000:1B:00.0 of nvidia-smi is 0000:1b:00.0 of the kernel.
        address = bus_id.strip().lower()[-12:]
        try:
            listed = (root / "sys/bus/pci/devices" / address / "local_cpulist").read_text()
        except OSError:
            continue
        near.append((uuid.strip(), _cpus(listed)))
    return near


def _cpus(listed: str) -> frozenset[int]:
    """The cores in a list such as `0-31,64-95`."""
    ranges = _CPU_RANGE.findall(listed)
    return frozenset(core for first, last in ranges for core in range(int(first), int(last or first) + 1))


def _lines(program: str, *options: str) -> Sequence[str]:
    """The answer's lines; none where the driver does not answer."""
    try:
        done = subprocess.run(
            [program, *options], capture_output=True, text=True, timeout=DRIVER_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
