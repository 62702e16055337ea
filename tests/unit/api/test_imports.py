"""The API starts on a machine that has no model library."""

import subprocess
import sys

PROGRAM = """
import sys
for absent in ("torch", "transformers", "tokenizers", "safetensors", "scheduler", "workers"):
    sys.modules[absent] = None  # importing it fails
from api.app import create_app
from api.services.services import AppSettings
print(create_app(AppSettings()).title)
"""


def test_the_api_is_made_without_torch_scheduler_or_workers() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)

    assert done.stdout == "Nightshift\n", done.stderr
