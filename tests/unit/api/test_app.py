"""The API as a process of its own: without a model library, and with settings that make no sense."""

import subprocess
import sys

import pytest

from nightshift.cli.processes.children import Launch
from nightshift.process.exit_codes import CONFIGURATION_EXIT
from tests.faults.kit.forks import fork_server

PROGRAM = """
import sys
for absent in ("torch", "transformers", "tokenizers", "safetensors", "scheduler", "workers"):
    sys.modules[absent] = None  # importing it fails
from api.app import create_app
from api.services.services import AppSettings
print(create_app(AppSettings()).title)
"""


def test_the_api_is_made_without_torch_scheduler_or_workers():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)

    assert done.stdout == "Nightshift\n", done.stderr


SLOW = pytest.mark.exhaustive
COMMAND = ("uvicorn", "api.app:create_app", "--factory", "--port", "0", "--log-level", "warning")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("LOG_LEVEL", "loud", "NIGHTSHIFT_LOG_LEVEL is 'loud'"),
        pytest.param("ONLINE_QUEUE_MAX", "loud", "NIGHTSHIFT_ONLINE_QUEUE_MAX is 'loud'", marks=SLOW),
        pytest.param("DATABASE_URL", "mysql://loud", "NIGHTSHIFT_DATABASE_URL names 'mysql'", marks=SLOW),
        pytest.param("STORAGE_URL", "ftp://loud/x", "'ftp://loud/x'", marks=SLOW),
        ("REDIS_URL", "http://:hush@queue", "NIGHTSHIFT_REDIS_URL is not shown here: it should be redis://"),
        pytest.param("DATA_DIR", "/dev/null/loud", "/dev/null", marks=SLOW),
    ],
)
def test_it_ends_with_one_line_that_names_the_variable(name, value, says, tmp_path):
    environment = {"NIGHTSHIFT_DATA_DIR": str(tmp_path), f"NIGHTSHIFT_{name}": value}
    with (tmp_path / "said").open("wb") as said:
        launch = Launch((sys.executable, "-P", "-m", *COMMAND), environment)
        returncode = fork_server().spawn(launch, said).wait()
    output = (tmp_path / "said").read_text()

    assert returncode == CONFIGURATION_EXIT
    assert "cannot start: " in output
    assert says in output
    assert "hush" not in output
    assert output.count("\n") == 1
