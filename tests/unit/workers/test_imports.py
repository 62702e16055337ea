"""What starting a worker costs before a model is loaded."""

import subprocess
import sys

WITHOUT_TORCH = """
import sys
for absent in ("torch", "transformers", "safetensors"):
    sys.modules[absent] = None  # importing it fails
import workers.app
"""


def test_a_worker_starts_without_torch_which_only_loading_a_model_needs() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
