"""Checks our engine on a GPU, then measures it: one command, from the root of the source tree.

    python benchmarks/gpu.py [--quick] [--skip-checks] [--out gpu.json]
    python benchmarks/gpu.py --all --models 0.6b --batches 1 32 256 --within 570
    python benchmarks/gpu.py --parts mixed requests --models 8b
    python benchmarks/gpu.py --load

Needs torch, triton, transformers, numpy, safetensors, tokenizers and this tree; nothing is downloaded. The
parts `tests`, `load`, `service` and `chats` run in processes of their own; `tests` needs pytest, the last two
the service's dependencies and a Redis server. What is wrong is reported before anything is timed; a part that
fails ends alone.

Speeds are of random weights in the shapes of Qwen3-0.6B and Qwen3-8B, beside transformers' continuous
batching on the same weights, and as a share of what the device's own copy and matrix product allow.
`--device cpu --quick` tries the script; its figures are of no GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

# Run as a file, the script's own folder comes first, where modules have names that others use too.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch  # noqa: E402
import transformers  # noqa: E402

from benchmarks.device import checks as gpu_checks  # noqa: E402
from benchmarks.device import parts as gpu_parts  # noqa: E402
from benchmarks.device import speed as gpu_speed  # noqa: E402
from benchmarks.device.limits import Limits  # noqa: E402
from benchmarks.device.parts import OF_ENGINE, Figure, Subject  # noqa: E402
from benchmarks.device.processes import OF_MACHINE, Machine  # noqa: E402
from benchmarks.fixtures.models import QWENS  # noqa: E402
from benchmarks.fixtures.models import make_model as make_random_model  # noqa: E402
from benchmarks.report import Cell, markdown  # noqa: E402
from nightshift_engine import Engine  # noqa: E402

Row = dict[str, Any]

DTYPE = torch.bfloat16
OF_EVERY_MODEL = ("load",)
"""Parts in processes of their own that are run for each model; others are for the first alone."""
PARTS = ("checks", *OF_ENGINE, "shared", "transformers", *OF_MACHINE)
DEFAULT_PARTS = ("checks", *OF_ENGINE, "shared", "transformers")
ALL_PARTS = tuple(part for part in PARTS if part != "transformers")


class Run:
    """Collects what was measured and what failed, and knows the time that is left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.figures: list[Figure] = []
        self.failed: dict[str, str] = {}
        self._ends_s: float = time.monotonic() + options.within

    def seconds_left(self) -> float:
        return self._ends_s - time.monotonic()

    def try_part(self, name: str, measure: Callable[[], Iterable[Figure]]) -> None:
        """Measures a part and prints it. An error ends this part alone, and is reported."""
        if self.seconds_left() <= 0:
            self.failed[name] = f"not begun within {self.options.within:.0f} s"
            return
        try:
            for figure in measure():
                self.figures.append(figure)
                print(figure, flush=True)
        except Exception as error:  # noqa: BLE001 - whatever a device or a peer makes of it
            self.failed[name] = f"{type(error).__name__}: {error}"
            print(f"  {name} FAILED: {self.failed[name]}", flush=True)
            traceback.print_exc()

    def chosen(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self.options.parts]


def main(arguments: list[str] | None = None) -> int:
    """0: all is right; 1: a check or a part failed; 2: there is no such device."""
    options = _options(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            "gpu.py: torch sees no CUDA device; --device cpu --quick tries the script without",
            file=sys.stderr,
        )
        return 2
    run = Run(options)
    report: Row = {"machine": _machine(run.device), "checks": [], "limits": {}}
    print(
        f"{report['machine']['device']}, torch {torch.__version__}, transformers {transformers.__version__}"
    )
    if run.device.type == "cpu":
        print("This is a CPU: the figures below say that the script runs, and nothing about any GPU.")
    logging.basicConfig(format="  %(message)s")
    logging.getLogger("nightshift_engine").setLevel(logging.INFO)  # how a model is computed
    holds = "checks" not in options.parts or _check(report, run.device)
    if holds or options.keep_going:
        _measure(report, run)
    report |= {"figures": [asdict(figure) for figure in run.figures], "failed": run.failed}
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=2))
    _print_table(run)
    return 0 if holds and not run.failed else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one tiny model, short runs")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try the script")
    parser.add_argument("--models", nargs="+", choices=QWENS, help="default: 0.6b 8b; with --quick: tiny")
    parser.add_argument("--batches", nargs="+", type=int, help="sequences that decode together")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help=f"default: {' '.join(DEFAULT_PARTS)}")
    parser.add_argument(
        "--all", dest="parts", action="store_const", const=ALL_PARTS, help=f"--parts {' '.join(ALL_PARTS)}"
    )
    parser.add_argument("--load", dest="parts", action="store_const", const=("load",), help="--parts load")
    parser.add_argument("--within", type=float, default=3600.0, metavar="S", help="no part begins after it")
    parser.add_argument("--out", type=Path, help="where to write everything as JSON")
    parser.add_argument("--skip-checks", action="store_true", help="only measure")
    parser.add_argument("--keep-going", action="store_true", help="measure even if a check failed")
    options = parser.parse_args(arguments)
    options.models = options.models or (["tiny"] if options.quick else ["0.6b", "8b"])
    options.batches = options.batches or ([1, 4] if options.quick else [1, 8, 32, 128, 256])
    skipped = {"checks"} if options.skip_checks else set()
    options.parts = [part for part in options.parts or DEFAULT_PARTS if part not in skipped]
    return options


def _machine(device: torch.device) -> Row:
    on_cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_cuda else f"CPU {platform.machine()}",
        "is_gpu": on_cuda,
        "compute_capability": torch.cuda.get_device_capability(device) if on_cuda else None,
        "memory_bytes": torch.cuda.get_device_properties(device).total_memory if on_cuda else None,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def _check(report: Row, device: torch.device) -> bool:
    print("\nchecks")
    holds = True
    for check in gpu_checks.run_checks(device):
        holds &= check.holds
        report["checks"].append(
            {"name": check.name, "error": check.error, "limit": check.limit, "holds": check.holds}
        )
        print(
            f"  {'ok   ' if check.holds else 'WRONG'} {check.name}: "
            f"{check.error:.2g} (at most {check.limit:.2g})"
        )
    return holds


def _measure(report: Row, run: Run) -> None:
    limits = gpu_speed.measure_limits(run.device, DTYPE, quick=run.options.quick)
    report["limits"] = {"copy_bytes_per_s": limits.bytes_per_second, "gemm_flops": limits.flops_per_second}
    print(
        f"\nlimits: copy {limits.bytes_per_second / 1e9:.1f} GB/s, "
        f"bfloat16 product {limits.flops_per_second / 1e12:.2f} TFLOP/s"
    )
    machine = Machine(run.options.device, run.options.quick, run.seconds_left)
    _free(run.device)
    for name in run.chosen(("tests",)):  # what is wrong comes first
        run.try_part(name, partial(OF_MACHINE[name], machine, ""))
    for model in run.options.models:
        _measure_model(run, model, limits)
        for part in run.chosen(OF_EVERY_MODEL):
            run.try_part(f"{part} of {model}", partial(OF_MACHINE[part], machine, model))
    first = run.options.models[0]
    for part in run.chosen(part for part in OF_MACHINE if part not in ("tests", *OF_EVERY_MODEL)):
        run.try_part(part, partial(OF_MACHINE[part], machine, first))


def _measure_model(run: Run, name: str, limits: Limits) -> None:
    """The parts that share an engine, then transformers' continuous batching on fresh weights."""
    shape = QWENS[name]
    print(f"\n{name}: {shape.num_linear_parameters / 1e9:.2f} G parameters in linears and head, {DTYPE}")
    names = run.chosen(OF_ENGINE)
    if names or "shared" in run.options.parts:
        run.try_part(f"engine of {name}", lambda: _of_engine(run, name, limits, names))
    _free(run.device)
    if "transformers" in run.options.parts:
        run.try_part(f"transformers of {name}", lambda: _of_transformers(run, name))
    _free(run.device)


def _of_engine(run: Run, name: str, limits: Limits, names: list[str]) -> Iterable[Figure]:
    shape, quick, device, batches = QWENS[name], run.options.quick, run.device, tuple(run.options.batches)
    model = _make_model(run, name)
    start = time.perf_counter()
    loaded = gpu_checks.loaded(
        model,
        max_num_seqs=max(batches),
        max_num_batched_tokens=64 if quick else 8192,
        enable_prefix_reuse=False,
        **({"num_kv_blocks": 64} if device.type == "cpu" else {}),
    )
    engine = Engine.over(loaded)
    gpu_speed.synchronize(device)
    done = "self-test, kernels compiled, graphs recorded" if device.type == "cuda" else "self-test"
    yield Figure(name, "start", f"after the model was made: {done}", time.perf_counter() - start, "s")
    subject = Subject(name, engine, shape, limits, device, DTYPE.itemsize, batches, quick)
    for part in names:
        run.try_part(f"{part} of {name}", partial(_drained, subject, part))
    if "shared" in run.options.parts:
        del engine, subject  # its KV memory is the other's
        _free(device)
        engine = Engine.over(replace(loaded, config=replace(loaded.config, enable_prefix_reuse=True)))
        subject = Subject(name, engine, shape, limits, device, DTYPE.itemsize, batches, quick)
        run.try_part(f"shared of {name}", lambda: gpu_parts.shared(subject))


def _drained(subject: Subject, part: str) -> Iterable[Figure]:
    """A part, once what a failed one left has ended."""
    while subject.engine.has_work:
        subject.engine.step()
    yield from OF_ENGINE[part](subject)


def _of_transformers(run: Run, name: str) -> Iterable[Figure]:
    ours = [figure.value for figure in run.figures if (figure.model, figure.part) == (name, "even")]
    model = _make_model(run, name)  # our engine has taken the other's weights apart
    for figure in gpu_parts.transformers(model, name, QWENS[name], run.options.quick):
        yield figure
        if ours:
            yield Figure(name, "transformers", "ours / theirs", ours[0] / figure.value, "")


def _make_model(run: Run, name: str) -> Any:
    return make_random_model(QWENS[name], DTYPE, run.device, 256 if run.options.quick else 4096)


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _print_table(run: Run) -> None:
    rows: list[dict[str, Cell]] = [
        {
            "model": figure.model,
            "part": figure.part,
            "case": figure.case,
            "value": figure.value,
            "unit": figure.unit,
            "of the limit": "" if figure.share is None else f"{figure.share:.0%}",
        }
        for figure in run.figures
    ]
    print(f"\n{markdown(rows)}")
    for part, reason in run.failed.items():
        print(f"FAILED or not run: {part}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
