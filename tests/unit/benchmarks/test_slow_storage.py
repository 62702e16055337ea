"""What the worker's metrics say of its steps, and the row groups of the input."""

import io

import httpx
import pyarrow.parquet as pq
import pytest

from benchmarks import slow_storage
from benchmarks.slow_storage import parquet, step_seconds
from workers.health.metrics import WorkerMetrics


class OneServer:
    """A model whose steps took so long."""

    stepping_since_s = None
    steps = 3
    step_seconds = 1.25
    engine_stats = None
    histograms = None
    busy_fraction = 0.0
    roofline_fraction = None

    class model:
        id = "minilm"


def test_the_time_in_steps_is_what_a_worker_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    from prometheus_client import generate_latest

    metrics = WorkerMetrics(lambda: [OneServer()], dict, lambda: False)  # type: ignore[list-item]
    shown = httpx.Response(200, content=generate_latest(metrics.registry), request=httpx.Request("GET", "/"))
    monkeypatch.setattr(slow_storage.httpx, "get", lambda *_, **__: shown)

    assert step_seconds(9100) == 1.25


def test_the_input_has_row_groups_of_the_size_asked_for() -> None:
    file = pq.ParquetFile(io.BytesIO(parquet(["a", "b", "c", "d", "e"], 2)))

    assert [file.metadata.row_group(group).num_rows for group in range(3)] == [2, 2, 1]
