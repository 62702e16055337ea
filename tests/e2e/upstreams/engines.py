"""Engines of others, each with the demo model, in an environment of its own that is made once.

An environment lies in the user's cache; making one needs a package index.
"""

import fcntl
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from benchmarks.runners.environments import ENVIRONMENTS, Environment, PeerUnavailableError, ensure
from nightshift.cli.demo import DEMO_MODEL_ID, demo_model_path
from tests.helpers.waiting import wait_for

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nightshift-tests"
CONTEXT_LENGTH: Final = 256  # tokens; the demo model's
START_TIMEOUT_S: Final = 300.0
HERE: Final = Path(__file__).parent
GGUF: Final = "demo_model.gguf"
SLOTS: Final = 16  # requests at a time
LLAMA_CPP: Final = Environment(
    "llama-cpp",
    ("xllamacpp==2026.10.11549", "gguf==0.19.0", "safetensors==0.8.0"),
    "import xllamacpp, gguf, safetensors",
)
"""A built server in a wheel: to compile llama-cpp-python would take a quarter of an hour."""


@dataclass
class Engine:
    """A server of the demo model with OpenAI's routes, on a port that it keeps when it is started again."""

    name: str
    command: Sequence[str]
    port: int
    log: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self._is_ready()

    @property
    def is_at_work(self) -> bool:
        """Whether vLLM has requests."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            counts = re.findall(rb"^vllm:num_requests_running\S* (\S+)", answer.read(), re.M)
        return any(map(float, counts))

    def __enter__(self) -> "Engine":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        """Returns once it lists its models. Raises TimeoutError or RuntimeError with what it said."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | self.variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(f"{self.name} answers", self._is_ready, START_TIMEOUT_S, said=self.said)

    def kill(self) -> None:
        """Ends it and the processes that it started, at once."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def _is_ready(self) -> bool:
        assert self.process is not None, "it was started"
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{self.said()}")
        try:
            with urlopen(f"{self.url}/models", timeout=10) as answer:
                return bool(json.load(answer)["data"])
        except (URLError, ConnectionError, TimeoutError):
            return False


def vllm(port: int, folder: Path) -> Engine:
    """vLLM on a CPU. Skips where it cannot be installed."""
    python = _made(ENVIRONMENTS["vllm"], lambda _: None)
    options: dict[str, object] = {
        "model": demo_model_path(),
        "served-model-name": DEMO_MODEL_ID,
        "host": "127.0.0.1",
        "port": port,
        "max-model-len": CONTEXT_LENGTH,
        "max-num-seqs": SLOTS,
        "scheduling-policy": "priority",
        "distributed-executor-backend": "uni",  # the executor of several processes dies on a CPU
    }
    variables = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TORCH_COMPILE_DISABLE": "1",  # else the first request for logprobs waits for a C++ compiler
        "LD_PRELOAD": str(python.parent.parent / "lib" / "libiomp5.so"),  # its own OpenMP before torch's
    }
    # The command `vllm` looks for a distribution of that name and ends.
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", *_written(options)]
    return Engine("vLLM", command, port, folder / "vllm.log", variables)


def llama_cpp(port: int, folder: Path) -> Engine:
    """llama.cpp's own server. Skips where it cannot be installed."""

    def convert(python: Path) -> None:
        command = [str(python), str(HERE / "to_gguf.py"), str(demo_model_path()), str(python.parent / GGUF)]
        subprocess.run(command, check=True, capture_output=True)

    python = _made(LLAMA_CPP, convert)
    command = [str(python), str(HERE / "serve_gguf.py"), str(python.parent / GGUF), DEMO_MODEL_ID]
    command += [str(port), str(CONTEXT_LENGTH), str(SLOTS)]
    return Engine("llama.cpp", command, port, folder / "llama_cpp.log")


def _made(environment: Environment, finish: Callable[[Path], None]) -> Path:
    """The Python of an environment, made first where it is not there. Other tests' processes wait for it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{environment.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            python = ensure(replace(environment, home=CACHE))
        except PeerUnavailableError as error:
            pytest.skip(f"{environment.name} is not available: {error}")
        finish(python)
    return python


def _written(options: Mapping[str, object]) -> list[str]:
    return [text for name, value in options.items() for text in (f"--{name}", str(value))]
