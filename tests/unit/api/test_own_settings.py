"""The API as a process of its own, started with settings that make no sense."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nightshift.supervisor import CONFIGURATION_EXIT

COMMAND = ("uvicorn", "api.app:create_app", "--factory", "--port", "0", "--log-level", "warning")


@pytest.mark.parametrize("name", ["LOG_LEVEL", "ONLINE_QUEUE_MAX"])
def test_it_ends_with_one_line_that_names_the_variable(name: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", *COMMAND],
        env={**os.environ, "NIGHTSHIFT_DATA_DIR": str(tmp_path), f"NIGHTSHIFT_{name}": "loud"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert ended.returncode == CONFIGURATION_EXIT
    assert f"cannot start: NIGHTSHIFT_{name} is 'loud'" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("\n") == 1
