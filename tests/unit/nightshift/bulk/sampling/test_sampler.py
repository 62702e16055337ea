"""A sample is spread over the input, and what the survey says of the rest is exact or said not to be."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.bulk.results.digest_files import DigestWriter
from nightshift.bulk.results.row_digests import RowDigests
from nightshift.bulk.rows.previews import Problem
from nightshift.bulk.sampling import places, sampler
from nightshift.bulk.sampling.sampler import InputSampler, Surveyed
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import JobSpec
from nightshift.jobs.capacity.estimates import Survey
from nightshift.objectstore import DirectoryStore, Locations
from nightshift.objectstore.sources import Sources

ROUTE = "/v1/completions"
MODEL = Model(id="m", kind=ModelKind.DECODER, revision="r")
Used = Callable[[], float]


def never() -> float:
    return 0.0


def running_out(reads: int) -> Used:
    """Time that is over once it was asked for so often."""
    answers: Iterator[float] = chain(repeat(0.0, reads), repeat(2.0))
    return lambda: next(answers)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def spec(folder: Path, **fields: Any) -> JobSpec:
    template = {"model": "m", "prompt": "{{text}}"}
    known = JobSpec(endpoint=ROUTE, completion_window_s=60, input=f"{folder.as_uri()}/", template=template)
    return replace(known, **fields)


def look(folder: Path, used: Used = never, **fields: Any) -> Surveyed | Problem:
    locations = Locations(file_roots=[folder])
    store = DirectoryStore(folder.parent / "objects")
    reader = InputSampler(
        sources=Sources(store, locations),
        locations=locations,
        objects=store,
        line_bytes_max=1000,
        models={"m": MODEL},
        used=used,
    )
    (part,) = reader.sample(spec(folder, **fields), "default", None)
    return part


def surveyed(folder: Path, used: Used = never, **fields: Any) -> tuple[Survey, list[str]]:
    """The survey, and the prompts of the sample."""
    part = look(folder, used, **fields)
    assert isinstance(part, Surveyed)
    return part.survey, [json.loads(line)["body"]["prompt"] for line in part.lines]


def jsonl(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def numbered(count: int) -> list[str]:
    return [f"{number:06}" for number in range(count)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet"])
def test_an_input_that_is_read_whole_is_counted_exactly(folder, name):
    texts = [*numbered(90), "again", "again", "again"]
    if name == "a.parquet":
        pq.write_table(pa.table({"text": texts}), folder / name, row_group_size=10)
    elif name == "a.csv":
        (folder / name).write_text("text\n" + "\n".join(texts))
    else:
        data = jsonl(*texts)
        (folder / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    survey, prompts = surveyed(folder)

    assert (survey.rows, survey.rows_read, survey.duplicates) == (93, 93, 2)
    assert survey.rows_are_exact
    assert survey.duplicates_are_exact
    assert survey.is_spread
    assert set(prompts) == set(texts)


def test_the_second_line_repeats_the_first(folder):
    (folder / "a.jsonl").write_bytes(jsonl(*numbered(9)))
    _, prompts = surveyed(folder)
    assert prompts[0] == prompts[1]
    assert len(prompts) == 10


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_the_sample_of_a_sorted_input_comes_from_all_of_it(folder, name, monkeypatch):
    monkeypatch.setattr(places, "TEXT_BYTES", 1000)
    texts = numbered(20_000)
    if name == "a.parquet":
        pq.write_table(pa.table({"text": texts}), folder / name, row_group_size=100)
    else:
        (folder / name).write_bytes(jsonl(*texts))
    survey, prompts = surveyed(folder, running_out(8000))

    assert survey.rows_read < 20_000
    assert survey.rows == pytest.approx(20_000, rel=0.02)
    assert survey.rows_are_exact == (name == "a.parquet")
    assert not survey.duplicates_are_exact
    tenths = [int(prompt) // 2000 for prompt in prompts]
    assert all(tenths.count(tenth) > len(tenths) / 20 for tenth in range(10))


def test_an_input_that_can_only_be_read_from_its_beginning_is_said_to_be(folder):
    (folder / "a.csv").write_text("text\n" + "\n".join(numbered(50_000)))
    survey, _ = surveyed(folder, running_out(5000))
    assert not survey.is_spread
    assert not survey.rows_are_exact


def test_one_row_is_read_however_little_time_there_is(folder):
    (folder / "a.jsonl").write_bytes(jsonl(*numbered(5000)))
    survey, prompts = surveyed(folder, lambda: 2.0)
    assert survey.rows_read == 1
    assert prompts == ["000000", "000000"]


def test_a_sample_has_no_more_bytes_than_it_may(folder, monkeypatch):
    monkeypatch.setattr(sampler, "BYTES_MAX", 10_000)
    (folder / "a.jsonl").write_bytes(jsonl(*("x" * 500 + text for text in numbered(1000))))
    _, prompts = surveyed(folder)
    assert 10 < len(prompts) <= 20


def test_rows_without_a_request_are_counted_and_not_sampled(folder):
    (folder / "a.jsonl").write_bytes(jsonl("a", "b") + b'{"other": 1}\n' + b"{\n")
    survey, prompts = surveyed(folder)
    assert (survey.rows, survey.rows_unusable) == (4, 2)
    assert set(prompts) == {"a", "b"}


def test_rows_of_an_earlier_job_are_known_by_its_digests(folder):
    texts = numbered(100)
    (folder / "a.jsonl").write_bytes(jsonl(*texts))
    digests = RowDigests("default", ROUTE, MODEL)
    known = [digests.digest_of({"model": "m", "prompt": text}) for text in texts[:97]]
    writer = DigestWriter(DirectoryStore(folder.parent / "objects"), "default", "job_earlier", 0)
    writer.add(0, pa.chunked_array([pa.array(known, pa.binary(16))]), pa.chunked_array([pa.array(range(97))]))
    writer.end()

    assert surveyed(folder, reused_job="job_earlier")[0].rows_reused == 97
    assert surveyed(folder)[0].rows_reused is None


def test_an_input_without_rows_has_no_sample(folder):
    (folder / "a.jsonl").write_bytes(b"\n\n")
    survey, prompts = surveyed(folder)
    assert (survey.rows, prompts) == (0, [])


@pytest.mark.parametrize(
    ("content", "code"), [(b'{"other": 1}\n', "missing_column"), (None, "object_not_found")]
)
def test_what_keeps_the_job_from_running_is_a_problem(folder, content, code):
    if content is not None:
        (folder / "a.jsonl").write_bytes(content)
    problem = look(folder)
    assert isinstance(problem, Problem)
    assert problem.code == code
