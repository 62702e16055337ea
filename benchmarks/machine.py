"""The limits of this machine: memory read bandwidth, and matrix products per dtype.

Products are timed twice, as `F.linear` and with weights that oneDNN has reordered beforehand (prepacked): at
a large square (the peak), and over a whole stack of a model's linears at the row counts of decode steps.
Under 20 seconds on an idle machine. float16 is never timed: on CPUs without it one product can take minutes.

    python -m benchmarks.machine [--model medium] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.models import SHAPES, Shape

if TYPE_CHECKING:
    from torch import Tensor

BANDWIDTH_BYTES = 1 << 30
"""Read at once to measure bandwidth: far more than a cache of a small machine."""
PEAK_SIZE = 2048
ROW_COUNTS = (1, 4, 16, 64, 256)
"""Rows of a step's linears. 64 is a full batch; 256 stands for prompt chunks."""
SECONDS_PER_TIMING = 0.4
GEMM_KINDS = ("linear", "prepacked")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Machine:
    """Measured limits of one machine at a number of threads."""

    cpu: str
    threads: int
    read_bytes_per_second: float
    peak_flops: dict[str, dict[str, float]]
    """By dtype and kind of GEMM: FLOP/s of a 2048-cube product."""
    linears_seconds: dict[str, dict[str, dict[int, float]]]
    """By dtype, kind and rows: one pass over all of the model's linears, weights too large for the caches."""
    model: str

    def best_flops(self, dtype: str) -> float:
        """The highest FLOP/s of a dtype seen in any product, the ceiling of a roofline."""
        shape = SHAPES[self.model]
        per_row = 2 * shape.num_linear_parameters
        of_stack = [
            rows * per_row / seconds
            for by_rows in self.linears_seconds[dtype].values()
            for rows, seconds in by_rows.items()
        ]
        return max(*self.peak_flops[dtype].values(), *of_stack)

    @classmethod
    def read(cls, path: Path) -> Machine:
        fields = json.loads(path.read_text())
        for by_kind in fields["linears_seconds"].values():
            for kind, by_rows in by_kind.items():
                by_kind[kind] = {int(rows): seconds for rows, seconds in by_rows.items()}
        return cls(**fields)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))


def measure(model: str = "medium", threads: int | None = None) -> Machine:
    """Measure all limits. The figures are valid on an idle machine only."""
    import torch

    threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    with torch.inference_mode():
        return Machine(
            cpu=cpu_name(),
            threads=threads,
            read_bytes_per_second=_read_bandwidth(),
            peak_flops={dtype: {kind: _peak_flops(dtype, kind) for kind in GEMM_KINDS} for dtype in DTYPES},
            linears_seconds={dtype: _linears_seconds(SHAPES[model], dtype) for dtype in DTYPES},
            model=model,
        )


def cpu_name() -> str:
    """The model name and the instruction sets that decide about GEMM speed."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(values.get("flags", "").split())
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8") if flag in flags]
    return f"{values.get('model name', 'unknown CPU')} ({', '.join(known)})"


def _read_bandwidth() -> float:
    """Bytes per second of a sum over a large array, all threads."""
    import torch

    array = torch.ones(BANDWIDTH_BYTES // 8, dtype=torch.int64)
    return BANDWIDTH_BYTES / best_seconds(lambda: array.sum())


def _peak_flops(dtype: str, kind: str) -> float:
    import torch

    size = PEAK_SIZE
    inputs = torch.randn(size, size).to(getattr(torch, dtype))
    product = _linear(torch.randn(size, size).to(getattr(torch, dtype)), kind)
    return 2 * size**3 / best_seconds(lambda: product(inputs))


def _linears_seconds(shape: Shape, dtype: str) -> dict[str, dict[int, float]]:
    import torch

    sizes = [*shape.layer_linears] * shape.num_layers + [(shape.hidden_size, shape.vocab_size)]
    weights = [
        torch.empty(outputs, inputs, dtype=getattr(torch, dtype)).normal_() for inputs, outputs in sizes
    ]
    seconds: dict[str, dict[int, float]] = {}
    for kind in GEMM_KINDS:
        products = [_linear(weight, kind) for weight in weights]
        seconds[kind] = {}
        for rows in ROW_COUNTS:
            inputs = {
                width: torch.randn(rows, width).to(getattr(torch, dtype))
                for width in {size[0] for size in sizes}
            }
            seconds[kind][rows] = best_seconds(partial(_run_all, products, inputs, sizes))
    return seconds


def _run_all(
    products: Sequence[Callable[[Tensor], Tensor]],
    inputs: dict[int, Tensor],
    sizes: Sequence[tuple[int, int]],
) -> None:
    for product, (width, _) in zip(products, sizes, strict=True):
        product(inputs[width])


def _linear(weight: Tensor, kind: str) -> Callable[[Tensor], Tensor]:
    import torch

    if kind == "linear":
        return lambda x: torch.nn.functional.linear(x, weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def best_seconds(call: Callable[[], object], seconds: float = SECONDS_PER_TIMING) -> float:
    """The shortest of the calls that fit into the time, at least two, after one that is not counted."""
    call()
    times: list[float] = []
    while len(times) < 2 or sum(times) < seconds:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure what this machine can do at best.")
    parser.add_argument("--model", default="medium", choices=list(SHAPES))
    parser.add_argument("--threads", type=int)
    chosen = parser.parse_args(arguments)
    machine = measure(chosen.model, chosen.threads)
    print(machine.cpu, f"threads: {machine.threads}")
    print(f"read from memory  {machine.read_bytes_per_second / 1e9:8.1f} GB/s")
    for dtype in DTYPES:
        for kind in GEMM_KINDS:
            peak, by_rows = machine.peak_flops[dtype][kind], machine.linears_seconds[dtype][kind]
            print(f"{dtype} {kind:10s} {peak / 1e9:8.0f} GFLOP/s at {PEAK_SIZE} cubed")
            rates = [f"{rows} rows {seconds * 1e3:.1f} ms" for rows, seconds in by_rows.items()]
            print(f"  all of {machine.model}'s linears: {', '.join(rates)}")


if __name__ == "__main__":
    main()
