"""What the worker's process writes into its log once Celery has set itself up."""

import os
import subprocess
import sys

import pytest

# In a process of its own: Celery's logging is set up once in a process, and stays.
PROGRAM = """
import logging, warnings
from celery.exceptions import SecurityWarning
from workers.app import app

app.log.setup(loglevel="WARNING", redirect_stdouts=True)  # as `celery worker --loglevel WARNING` does
logging.getLogger("workers.runtime").info("worker ready")
warnings.warn("you are root", SecurityWarning)
"""


@pytest.mark.parametrize(("level", "times"), [("info", 1), ("warning", 0)])
def test_the_operator_decides_the_log_level_of_a_worker_not_celery(level, times):
    environment = os.environ | {"NIGHTSHIFT_LOG_LEVEL": level}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stderr.count("worker ready") == times
    assert "you are root" not in ended.stderr


LOADING_PROGRAM = """
import contextlib, logging
from workers.app import app
from workers.composition import load_models
from nightshift.errors import ConfigurationError
from nightshift.settings import WorkerSettings

app.log.setup(loglevel="WARNING")
with contextlib.suppress(ConfigurationError):
    load_models(WorkerSettings(models=("/nowhere",)), lambda error: None)
for library in ("huggingface_hub", "transformers"):
    logging.getLogger(f"{library}.somewhere").warning(f"{library} warns")
"""


def test_libraries_imported_with_a_model_log_once():
    ended = subprocess.run(
        [sys.executable, "-c", LOADING_PROGRAM], capture_output=True, text=True, check=True, timeout=240
    )
    for library in ("huggingface_hub", "transformers"):
        (line,) = (line for line in ended.stderr.splitlines() if f"{library} warns" in line)
        assert '"level": "warning"' in line
