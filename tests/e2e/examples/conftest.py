"""Airflow in an environment of its own, made once in the user's cache."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from nightshift.cli.processes.supervisor import Process
from tests.e2e.service import Service

REQUIREMENTS = Path(__file__).parent / "airflow.txt"
OWN_DAGS = Path(__file__).parent / "dags"
DAGS = Path(__file__).resolve().parents[3] / "examples" / "orchestrators"
UNREACHABLE = (
    "error sending request",
    "Failed to fetch",
    "dns error",
    "tcp connect error",
    "Could not connect",
)
MAKE_TIMEOUT_S = 600.0
DATABASE = "airflow.db"


@dataclass(frozen=True)
class Airflow:
    """An installation with an empty database, and a home for what it writes."""

    python: Path
    home: Path

    def start(self, service: Service, dags: Path, dag_id: str, day: str, **params: str) -> Process:
        """Begins the DAG's run of a day, in a group of processes of its own. Its output is in `said`."""
        connection = {"conn_type": "openai", "host": service.base_url, "password": service.api_key}
        environment = {
            **_settings(self.home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # for `nightshift`
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW_CONN_OPENAI_DEFAULT": json.dumps(connection),
            **service.environment(),
        }
        command = (*self._airflow, "dags", "test", dag_id, day, "--conf", json.dumps(params))
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, env=os.environ | environment, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def _airflow(self) -> tuple[str, ...]:
        return str(self.python), "-m", "airflow"

    @property
    def _log(self) -> Path:
        return self.home / "said.log"

    def said(self) -> str:
        return self._log.read_text(errors="replace")


@pytest.fixture
def airflow(installed: Path, tmp_path: Path) -> Airflow:
    home = tmp_path / "airflow"
    home.mkdir()
    shutil.copy(installed / DATABASE, home)
    return Airflow(installed / "bin" / "python", home)


@pytest.fixture(scope="session")
def installed() -> Path:
    """The environment, whose name says what is in it. Skips where its packages cannot be had."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nightshift-tests"
    folder = cache / f"airflow-{digest}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other tests' processes wait until it is made
        if not (folder / DATABASE).exists():
            _make(folder)
    return folder


def _make(folder: Path) -> None:
    uv, python = str(Path(sys.executable).parent / "uv"), str(folder / "bin" / "python")
    _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
    _run([uv, "pip", "install", "--quiet", "--require-hashes", "--python", python, "-r", str(REQUIREMENTS)])
    partial = folder / "partial"
    _run([python, "-m", "airflow", "db", "migrate"], _settings(partial))
    (partial / DATABASE).rename(folder / DATABASE)


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    ended = subprocess.run(
        command,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=MAKE_TIMEOUT_S,
        check=False,
    )
    if ended.returncode and any(words in ended.stderr for words in UNREACHABLE):
        pytest.skip(
            f"Airflow cannot be installed, no package index is reached: {ended.stderr.strip()[-300:]}"
        )
    assert ended.returncode == 0, ended.stderr


def _settings(home: Path) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / DATABASE}",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "false",
    }
