"""What `GET /metrics` shows is in docs/operations.md, and what stands there is shown."""

import re
from pathlib import Path

from api.metrics import SUMS

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (
    "api/metrics.py",
    "scheduler/metrics.py",
    "workers/health/metrics.py",
    "workers/health/request_metrics.py",
)


def test_every_metric_is_documented_and_no_other() -> None:
    texts = [(ROOT / source).read_text(encoding="utf-8") for source in SOURCES]
    shown = {name for text in texts for name in re.findall(r'"(nightshift_\w+)"', text)}
    shown |= {f"nightshift_{name}" for name in SUMS}
    assert len(shown) > len(SUMS)

    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    documented = {name.removesuffix("_total") for name in re.findall(r"`(nightshift_\w+)`", page)}
    assert documented == shown
