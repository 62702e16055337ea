"""The worker's process: its log once Celery has set itself up, and how a model is loaded into it."""

import os
import subprocess
import sys

import pytest

from nightshift_engine import limit_spinning

# In a process of its own: Celery's logging is set up once in a process, and stays.
PROGRAM = """
import logging, warnings
from celery.exceptions import SecurityWarning
from workers.app import app

app.log.setup(loglevel="WARNING", redirect_stdouts=True)  # as `celery worker --loglevel WARNING` does
logging.getLogger("workers.runtime").info("worker ready")
warnings.warn("you are root", SecurityWarning)
"""


@pytest.mark.parametrize(
    ("level", "times"), [("info", 1), pytest.param("warning", 0, marks=pytest.mark.exhaustive)]
)
def test_the_operator_decides_the_log_level_of_a_worker_not_celery(level, times):
    environment = os.environ | {"NIGHTSHIFT_LOG_LEVEL": level}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stderr.count("worker ready") == times
    assert "you are root" not in ended.stderr


LOADING_PROGRAM = """
import contextlib, logging, sys
from workers.app import app
from workers.composition import load_models
from nightshift.errors import ConfigurationError
from nightshift.process.settings import WorkerSettings

app.log.setup(loglevel="WARNING")
assert "torch" not in sys.modules
with contextlib.suppress(ConfigurationError):
    load_models(WorkerSettings(models=("/nowhere",)), lambda error: None)
for library in ("huggingface_hub", "transformers"):
    logging.getLogger(f"{library}.somewhere").warning(f"{library} warns")
"""


@pytest.fixture(scope="module")
def said_while_loading():
    """The log of one process for all tests: it imports everything a model needs."""
    spinning = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in spinning}
    return subprocess.run(
        [sys.executable, "-c", LOADING_PROGRAM],
        env=environment | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    ).stderr


def test_libraries_imported_with_a_model_log_once(said_while_loading):
    for library in ("huggingface_hub", "transformers"):
        (line,) = (line for line in said_while_loading.splitlines() if f"{library} warns" in line)
        assert '"level": "warning"' in line


def test_a_worker_limits_the_spinning_before_it_loads_torch(said_while_loading):
    if "_OPENMP" not in said_while_loading:
        pytest.skip("torch's OpenMP runtime does not say what it was told")
    limited: dict[str, str] = {}
    limit_spinning(limited)
    assert f"GOMP_SPINCOUNT = '{limited['GOMP_SPINCOUNT']}'" in said_while_loading
