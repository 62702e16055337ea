"""The worker's process: its log once Celery has set itself up, and how a model is loaded into it."""

import os
import re
import subprocess
import sys

import pytest

from nightshift_engine import limit_spinning

# In a process of its own: Celery's logging is set up once in a process, and stays.
PROGRAM = """
import contextlib, gc, logging, sys, warnings
from celery.exceptions import SecurityWarning
from workers.app import app
from workers.composition import load_models
from nightshift.errors import ConfigurationError
from nightshift.process.settings import WorkerSettings
import workers.serving.hub

app.log.setup(loglevel="WARNING", redirect_stdouts=True)  # as `celery worker --loglevel WARNING` does
logging.getLogger("workers.runtime").info("worker ready")
warnings.warn("you are root", SecurityWarning)
loaded = {"torch", "transformers", "safetensors"} & set(sys.modules)
assert not loaded, "a worker starts, and finds models, without them"
before = gc.get_freeze_count()
with contextlib.suppress(ConfigurationError):
    load_models(WorkerSettings(models=("/nowhere",)), lambda error: None)
print("frozen", gc.get_freeze_count() - before, "collects", gc.isenabled(), file=sys.stderr)
for library in ("huggingface_hub", "transformers"):
    logging.getLogger(f"{library}.somewhere").warning(f"{library} warns")
"""


@pytest.fixture(scope="module", params=["info", pytest.param("warning", marks=pytest.mark.exhaustive)])
def said(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The log level, and the log of one process for all tests: it imports everything a model needs."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    environment |= {"NIGHTSHIFT_LOG_LEVEL": request.param, "OMP_DISPLAY_ENV": "verbose"}
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=240)
    return request.param, ended.stderr


def test_the_operator_decides_the_log_level_of_a_worker_not_celery(said: tuple[str, str]) -> None:
    level, log = said
    assert log.count("worker ready") == (level == "info")
    assert "you are root" not in log


def test_libraries_imported_with_a_model_log_once(said: tuple[str, str]) -> None:
    for library in ("huggingface_hub", "transformers"):
        (line,) = (line for line in said[1].splitlines() if f"{library} warns" in line)
        assert '"level": "warning"' in line


def test_a_worker_limits_the_spinning_before_it_loads_torch(said: tuple[str, str]) -> None:
    if "_OPENMP" not in said[1]:
        pytest.skip("torch's OpenMP runtime does not say what it was told")
    limited: dict[str, str] = {}
    limit_spinning(limited)
    assert f"GOMP_SPINCOUNT = '{limited['GOMP_SPINCOUNT']}'" in said[1]


def test_the_modules_of_models_are_left_alone_by_the_collector(said: tuple[str, str]) -> None:
    """A collection during a load would look through all of torch."""
    [(frozen, collects)] = re.findall(r"frozen (\d+).*collects.*(True|False)", said[1])
    assert int(frozen) > 100_000
    assert collects == "True"
