"""What the service and the engine alone run is the same, and the table says what the rest costs."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks import service_overhead
from benchmarks.report import markdown
from benchmarks.runners.bare_engine import BareRun
from benchmarks.service.running import Ended
from benchmarks.service_overhead import Work, measured
from benchmarks.texts import SHORT, make_texts
from nightshift.jobs import Usage
from nightshift.testing import a_job

EMBEDDING = Work("minilm", Path("models/minilm"), "embeddings", "auto", ["a text", "another"])
COMPLETION = Work("medium", Path("models/medium"), "completions", "bfloat16", [{"custom_id": "row-0"}])


def test_texts_differ_have_lengths_in_the_range_and_are_the_same_each_time() -> None:
    texts = make_texts(200, seed=3)

    assert len(set(texts)) == 200
    assert all(SHORT.low <= len(text.split()) - 1 <= SHORT.high for text in texts)
    assert texts == make_texts(200, seed=3)
    assert not set(texts) & set(make_texts(200, seed=4))


def test_an_input_is_what_its_job_says_it_is(tmp_path: Path) -> None:
    embedding = replace(EMBEDDING, checkpoint=tmp_path)
    table = embedding.write(embedding.rows, tmp_path / "in")
    lines = COMPLETION.write(COMPLETION.rows, tmp_path / "in")

    assert pq.read_table(table).to_pylist()[1] == {"id": "row-1", "text": "another"}
    assert embedding.body("in", "out")["template"] == {"model": tmp_path.name, "input": "{{text}}"}
    assert [json.loads(line) for line in lines.read_text().splitlines()] == COMPLETION.rows
    assert COMPLETION.body("in", "out") == {"endpoint": "completions", "input": "in", "output": "out"}


def test_the_cost_is_what_the_service_lacks_to_the_mean_of_the_runs_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds: Iterator[float] = iter((10.0, 10.0))
    ended = Ended(a_job(usage=Usage(500, 100, 0)), submitted_s=0.0, claimed_s=5.0, success_s=25.0)
    monkeypatch.setattr(service_overhead, "run_bare", lambda *_: BareRun(100, 500, 100, next(seconds)))
    monkeypatch.setattr(service_overhead, "run_service", lambda *_: ended)

    row = measured(COMPLETION, threads=1)

    assert (row["engine alone, rows/s"], row["service, first claim to _SUCCESS"]) == ("10–10", 5.0)
    assert (row["cost"], row["cost of that"]) == ("50.0 %", "60.0 %")
    assert (row["tok/s alone"], row["tok/s service"]) == (10.0, 5.0)


def test_a_table_has_a_column_for_each_key_of_any_row() -> None:
    table = markdown([{"work": "a", "rows/s": 1234.5}, {"work": "b", "missing": 2}])

    assert table.splitlines()[0] == "| work | rows/s | missing |"
    assert table.splitlines()[2:] == ["| a | 1,234 | – |", "| b | – | 2 |"]
