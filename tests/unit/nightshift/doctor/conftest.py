"""Nothing of the machine's own settings is seen."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("NIGHTSHIFT_", "HF_", "AWS_"))]:
        monkeypatch.delenv(name)
