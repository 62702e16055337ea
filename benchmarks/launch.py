"""Runs an engine's runner to its end, as a process in its own environment."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import BENCH_DIRECTORY, PeerUnavailableError
from benchmarks.peers import ENGINES, Peer
from benchmarks.runners.harness import RunResult

REPOSITORY = Path(__file__).resolve().parent.parent
LOGS_DIRECTORY = BENCH_DIRECTORY / "logs"
RESULTS_DIRECTORY = BENCH_DIRECTORY / "results"


class RunFailedError(Exception):
    """A run ended without a result. The message is one line with the reason."""


@dataclass(frozen=True)
class Launch:
    """An engine with a checkpoint, ready to run."""

    peer: Peer
    python: Path
    checkpoint: Path

    def run(
        self, workload: str, precision: str, threads: int, options: Sequence[str], timeout_seconds: float
    ) -> RunResult:
        """One run; `options` go to the runner as they are. Raises RunFailedError. Leaves nothing running."""
        name = f"{self.peer.name}-{workload}-{precision}"
        result_path = RESULTS_DIRECTORY / f"{name}.run.json"
        result_path.unlink(missing_ok=True)
        command = [str(self.python), "-m", self.peer.module, "--engine", self.peer.name]
        command += ["--model", str(self.checkpoint), "--workload", workload, "--precision", precision]
        command += ["--threads", str(threads), "--result", str(result_path), *options]
        run_process(
            command,
            self.peer.variables(self.python, threads),
            LOGS_DIRECTORY / f"{name}.log",
            timeout_seconds,
        )
        return RunResult.read(result_path)


def prepare(
    engines: Sequence[str], models: Sequence[str], precisions: Sequence[str]
) -> dict[tuple[str, str, str], Launch | str]:
    """What to run, or why not, by engine, model and precision. Makes missing checkpoints and says so."""
    launches: dict[tuple[str, str, str], Launch | str] = {}
    for name in engines:
        peer, started = ENGINES[name], time.monotonic()
        print(f"preparing {name} … ", end="", flush=True)
        problems = set()
        for model in models:
            for precision in precisions:
                launch = _prepared(peer, model, precision)
                launches[name, model, precision] = launch
                if isinstance(launch, str):
                    problems.add(launch)
        print("; ".join([f"{time.monotonic() - started:.0f} s", *sorted(problems)]), flush=True)
    return launches


def run_process(
    command: Sequence[str], variables: dict[str, str], log_path: Path, timeout_seconds: float
) -> None:
    """Run to the end with output to a log. Raises RunFailedError. Leaves nothing running."""
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


def _prepared(peer: Peer, model: str, precision: str) -> Launch | str:
    if precision not in peer.precisions:
        return f"does not compute in {precision} on CPU"
    try:
        return Launch(peer, peer.ensure_environment(), peer.checkpoint(model, precision))
    except PeerUnavailableError as error:
        return str(error)
