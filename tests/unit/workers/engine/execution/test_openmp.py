"""How OpenMP's threads wait in a worker."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from workers.engine.execution.openmp import SPIN_COUNT, SPIN_VARIABLES, limit_spinning

LOAD_NO_MODEL = """
import sys
from nightshift.settings import WorkerSettings
from workers.composition import load_models
assert "torch" not in sys.modules
try:
    load_models(WorkerSettings(models="/nowhere"), print)
finally:
    assert "torch" in sys.modules
"""


@pytest.mark.parametrize("name", SPIN_VARIABLES)
def test_what_the_operator_says_about_waiting_stays(name: str) -> None:
    environment = {name: "active"}
    limit_spinning(environment)
    assert environment == {name: "active"}


def test_a_worker_limits_the_spinning_before_it_loads_torch() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in SPIN_VARIABLES}
    worker = subprocess.run(
        [sys.executable, "-c", LOAD_NO_MODEL],
        env=environment | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "_OPENMP" not in worker.stderr:
        pytest.skip("torch's OpenMP runtime does not say what it was told")
    assert f"GOMP_SPINCOUNT = '{SPIN_COUNT}'" in worker.stderr
