"""Loads a checkpoint, and says where the time went: one process, one load.

    python -m benchmarks.device.loading DIRECTORY [--device cpu]

Prints one line of JSON: seconds by part, imports among them, bytes of weights, and how many Triton kernels
were compiled or came from its cache. `--make 8b` makes a checkpoint to load.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from typing import Any

from nightshift.process.memory import frozen_imports


@dataclass
class Kernels:
    """Triton kernels that were compiled, and that came from its cache."""

    counts: dict[str, int] = field(default_factory=lambda: {"compiled": 0, "cached": 0})
    seconds: dict[str, float] = field(default_factory=lambda: {"compiled": 0.0, "cached": 0.0})

    def listen(self) -> None:
        """Counts from now on. Does nothing where Triton is missing or has no listener."""
        try:
            from triton import knobs
        except ImportError:
            return
        knobs.compilation.listener = self._note

    def _note(self, *, times: Any, cache_hit: bool, **_: Any) -> None:
        kind = "cached" if cache_hit else "compiled"
        self.counts[kind] += 1
        self.seconds[kind] += times.total / 1e6


def load(directory: str, device: str) -> dict[str, Any]:
    """Seconds by part, those of imports first."""
    seconds, began_s = {}, time.perf_counter()

    def lap(name: str) -> None:
        nonlocal began_s
        seconds[name], began_s = time.perf_counter() - began_s, time.perf_counter()

    with frozen_imports():  # as in a worker
        import torch  # noqa: F401 - its import is measured

        lap("import torch")
        import transformers  # noqa: F401

        lap("import transformers")
        from nightshift_engine import Engine, EngineConfig
        from nightshift_engine.models import load_model

    lap("import engine")
    kernels = Kernels()
    kernels.listen()
    config = EngineConfig(
        directory,
        dtype="bfloat16",
        device=device,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        num_kv_blocks=64 if device == "cpu" else None,
    )
    model = load_model(config)
    Engine.over(model)
    lap("load")
    rest = seconds["load"] - sum(model.times.seconds.values())
    seconds |= {**model.times.seconds, "rest": rest}
    del seconds["load"]
    return {
        "seconds": seconds,
        "weight_bytes": model.times.weight_bytes,
        "kernels": kernels.counts,
        "kernel_seconds": kernels.seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--make", action="store_true", help="DIRECTORY is the name of a decoder: say where it is"
    )
    chosen = parser.parse_args()
    if chosen.make:
        from benchmarks.fixtures import checkpoints

        print(checkpoints.ensure(chosen.directory, "bfloat16"))
    else:
        print(json.dumps(load(chosen.directory, chosen.device)))


if __name__ == "__main__":
    main()
