"""Datasets of a hub as inputs: the rows of one commit, from planning to the end of the job."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.errors import InvalidRequest
from nightshift.jobs import Face, Job, JobState
from nightshift.jobs.planning import FIRST_PAGE, PlanCursor
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.problems import shown_problem
from nightshift.objectstore.hub import Hub
from nightshift.store import Store
from nightshift.store.databases.database import Database
from tests.helpers.fakes import MODEL, FakeClock, a_spec, submit
from tests.helpers.hub import FakeDataset, FakeHub, fake_hub
from tests.integration.scheduler.assembly.conftest import assembled, planned
from tests.integration.scheduler.assembly.test_retries import retry_of
from tests.integration.scheduler.planning.test_pages import ONE_PAGE_A_TURN, assemble, plan, texts, turn
from tests.integration.scheduler.planning.test_submission import request, submitter
from tests.integration.scheduler.planning.test_told_formats import CONTENTS, seen
from tests.integration.scheduler.scheduling import TEMPLATE, Place, a_line, jsonl


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    with fake_hub() as fake:
        fake.datasets["org/docs"] = FakeDataset()
        yield fake


@pytest.fixture
def docs(fake: FakeHub) -> FakeDataset:
    return fake.datasets["org/docs"]


@pytest.fixture
def place(sqlite_database: Database, clock: FakeClock, tmp_path: Path, fake: FakeHub) -> Place:
    place = Place.at(Store(sqlite_database, clock=clock), tmp_path)
    place.locations._hub = Hub(fake.url)
    place.serve_model()
    return place


def over(place: Place, path: str = "/", **wishes: Any) -> Job:
    defaults = {"template": TEMPLATE, "model": MODEL, "input": f"hf://datasets/org/docs{path}"}
    return place.native(**{**defaults, **wishes})


def lines(*values: str) -> bytes:
    return jsonl({"text": value} for value in values)


def test_rows_are_those_of_the_commit_at_planning_in_every_format_until_the_job_has_ended(
    place: Place, docs: FakeDataset
) -> None:
    files = {f"data/{format}.{format}": content for format, content in CONTENTS.items()}
    commit = docs.push(files | {"README.md": b"# About", ".gitattributes": b"* text"})
    job = over(place)
    objects, rows = seen(place, job)
    assert (objects.formats, rows.rows_checked, rows.problems) == (sorted(CONTENTS), 10, [])

    job = planned(place, job)
    docs.push({})
    place.work_off(lambda request: (400, {"error": {"code": "x", "message": "not yet"}}))
    again = planned(place, retry_of(place, assembled(place, place.job(job))))
    place.work_off()

    assert sorted(shard.uri for shard in place.shards(job)) == [
        f"hf://datasets/org/docs@{commit}/{name}" for name in sorted(files)
    ]
    assert assembled(place, again).counts.succeeded == 10


def test_every_page_reads_the_commit_of_the_first_one(place: Place, docs: FakeDataset) -> None:
    commit = docs.push({f"{number}.jsonl": lines(f"text {number}") for number in range(8)})
    job, duty = over(place, "/*.jsonl"), place.planning(**ONE_PAGE_A_TURN)

    assert turn(place, duty).yielded == 1
    assert place.job(job).plan_cursor.commit == commit
    docs.push({"1.jsonl": lines("other"), "9.jsonl": lines("later")})
    assert plan(place, duty) > 1
    place.work_off()
    assemble(place)

    assert sorted(texts(place, place.job(job))) == [f"text {number}" for number in range(8)]


def test_a_batch_reads_its_file_at_the_commit_of_the_first_page(place: Place, docs: FakeDataset) -> None:
    commit = docs.push({"a.jsonl": jsonl(a_line(f"r{number}", f"text {number}") for number in range(20))})
    spec = a_spec(input="hf://datasets/org/docs/a.jsonl", output=None)
    job = submit(place.store, face=Face.OPENAI, model=None, spec=spec)
    duty = place.planning(**ONE_PAGE_A_TURN)

    assert turn(place, duty).yielded == 1
    docs.push({"a.jsonl": jsonl([a_line("other")])})
    assert plan(place, duty) > 1
    assert {shard.uri for shard in place.shards(job)} == {f"hf://datasets/org/docs@{commit}/a.jsonl"}
    place.work_off()
    assert assembled(place, place.job(job)).counts.succeeded == 20


def test_files_of_several_datasets_are_one_list(place: Place, fake: FakeHub, docs: FakeDataset) -> None:
    docs.push({"a.jsonl": lines("a")})
    fake.datasets["org/more"] = FakeDataset()
    fake.datasets["org/more"].push({"b.jsonl": lines("b")})

    job = over(place, "/a.jsonl", further_inputs=("hf://datasets/org/more@main/b.jsonl",))
    job = planned(place, job)
    place.work_off()

    assembled(place, job)
    assert texts(place, job) == ["a", "b"]


def test_a_delta_table_in_a_dataset_is_read_by_its_log(
    place: Place, docs: FakeDataset, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    pa = pytest.importorskip("pyarrow")
    table = tmp_path / "table"
    for text in ("a", "b"):
        deltalake.write_deltalake(str(table), pa.table({"text": [text, "gone"]}), mode="append")
    deltalake.DeltaTable(str(table)).delete("text = 'gone'")
    files = {f"t/{path.relative_to(table)}": path.read_bytes() for path in table.rglob("*") if path.is_file()}
    docs.push(files)

    job = planned(place, over(place, "/t/", input_format="delta"))
    docs.push({})
    place.work_off()
    assembled(place, job)
    assert sorted(texts(place, job)) == ["a", "b"]


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/", "unreadable_input", "train.arrows"),
        ("/gone/", "object_not_found", "nothing found at hf://datasets/org/docs"),
        ("/gone.jsonl", "object_not_found", "gone.jsonl"),
        ("@v9/", "object_not_found", "no such revision"),
        ("-not/", "object_not_found", "no such dataset"),
    ],
)
def test_what_cannot_be_read_fails_the_job_by_its_name(
    place: Place, docs: FakeDataset, path: str, code: str, words: str
) -> None:
    docs.push({"a.jsonl": lines("a"), "train.arrows": b"?"})

    job = over(place, path)
    failed = place.plan(job)

    assert (failed.state, failed.errors[0].code, failed.errors[0].param) == (JobState.FAILED, code, "input")
    assert words in failed.errors[0].message
    (problem,) = seen(place, job)
    assert (problem.code, problem.message) == (code, failed.errors[0].message)


def test_a_job_waits_for_a_hub_that_is_away_and_says_so(
    place: Place, fake: FakeHub, docs: FakeDataset
) -> None:
    docs.push({"a.jsonl": lines("a")})
    fake.fault = lambda path: (503, b"", {})
    job = over(place)

    place.plan(job)

    with place.store.snapshot() as tx:
        shown = shown_problem(tx, tx.jobs.fetch(job.id), tx.now())
    assert shown is not None
    assert shown.fault.error.message == (
        "The input cannot be read at present: hf://datasets/org/docs/: the hub answers with the status 503"
    )
    assert place.job(job).state is JobState.QUEUED
    fake.fault = lambda path: None
    assert len(place.shards(planned(place, job))) == 1


@pytest.mark.parametrize(
    ("wrong", "param", "words"),
    [
        ({"output": "hf://datasets/org/docs/out/"}, "output", "a dataset of a hub is no place to write to"),
        ({"input": "hf://org/docs/a.jsonl"}, "input", "does not name a dataset"),
        ({"input": "hf://datasets/org/docs/a/../b"}, "input", "without '.' or '..'"),
    ],
)
def test_a_location_that_cannot_be_is_refused_as_the_job_is_submitted(
    place: Place, wrong: dict[str, str], param: str, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        submitter(place).check(request(place, **wrong), PriorityClass.INTERACTIVE)
    assert refused.value.param == param


def test_an_earlier_release_reads_a_cursor_without_a_commit() -> None:
    cursor = PlanCursor(page=1, commit="0" * 40)
    assert PlanCursor.from_json(1, cursor.to_json()) == cursor
    assert "commit" not in FIRST_PAGE.to_json()
