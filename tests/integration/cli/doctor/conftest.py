"""An installation on real servers, looked at check by check."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nightshift.cli.doctor.checks import every_check
from nightshift.cli.doctor.examination import Finding, Status, examine
from nightshift.cli.doctor.site import Site
from nightshift.process.settings import DataSettings

Look = Callable[..., Finding]


def expect(finding: Finding, status: Status, *words: str) -> Finding:
    """Asserts a finding's status, and that its detail or advice has these words."""
    assert finding.status is status, finding
    for word in words:
        assert word in f"{finding.detail}\n{finding.advice}"
    return finding


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the machine's own settings is seen."""
    for name in [name for name in os.environ if name.startswith(("NIGHTSHIFT_", "HF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NIGHTSHIFT_SPOT_PROVIDER", "none")
    return tmp_path / "data"


@pytest.fixture
def look(data_dir: Path) -> Look:
    """One check's finding, with the settings as they are now. Those that it needs are not run."""

    def one(id: str, timeout_s: float = 60.0) -> Finding:
        checks = [
            check for check in every_check(Site(data=DataSettings(data_dir=data_dir))) if check.id == id
        ]
        (result,) = examine(checks, timeout_s)
        return result.finding

    return one
