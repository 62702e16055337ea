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
logging.getLogger("huggingface_hub.utils").warning("the hub is away")
warnings.warn("you are root", SecurityWarning)
"""


@pytest.mark.parametrize(("level", "times"), [("info", 1), ("warning", 0)])
def test_the_operator_decides_what_a_worker_logs_and_celery_does_not(level, times):
    environment = os.environ | {"NIGHTSHIFT_LOG_LEVEL": level}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stderr.count("worker ready") == times
    assert ended.stderr.count("the hub is away") == 1
    assert "you are root" not in ended.stderr
