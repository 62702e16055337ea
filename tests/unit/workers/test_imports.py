"""A worker starts without the imports that loading a model needs."""

import subprocess
import sys

import pytest

WITHOUT_TORCH = """
import sys
for absent in ("torch", "transformers", "safetensors"):
    sys.modules[absent] = None  # importing it fails
import {module}
"""


@pytest.mark.parametrize("module", ["workers.app", "workers.serving.hub"])
def test_a_worker_starts_and_finds_models_without_torch_which_only_loading_one_needs(module: str) -> None:
    program = WITHOUT_TORCH.format(module=module)

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
