"""Delta tables as inputs: the rows of one version of a table, or a refusal by name; never other rows."""

import json
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.bulk.rows.records import UnreadableInput
from nightshift.bulk.rows.tables import delta, delta_process
from nightshift.bulk.rows.tables.delta import log_names
from nightshift.errors import InvalidRequest
from nightshift.jobs import Job, JobState
from nightshift.jobs.planning import FIRST_PAGE, PlanCursor
from nightshift.jobs.priorities import PriorityClass
from nightshift.objectstore.verdicts import without_addresses
from nightshift.store import Store
from nightshift.store.databases.database import Database
from tests.helpers.fakes import MODEL, FakeClock
from tests.integration.scheduler.assembly.conftest import assembled, planned
from tests.integration.scheduler.assembly.test_retries import retry_of
from tests.integration.scheduler.planning.test_pages import ONE_PAGE_A_TURN, assemble, plan, texts, turn
from tests.integration.scheduler.planning.test_submission import request, submitter
from tests.integration.scheduler.planning.test_told_formats import seen
from tests.integration.scheduler.scheduling import TEMPLATE, Place
from tests.integration.servers import S3Server

deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")


@pytest.fixture
def place(sqlite_database: Database, clock: FakeClock, tmp_path: Path) -> Place:
    place = Place.at(Store(sqlite_database, clock=clock), tmp_path)
    place.serve_model()
    return place


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are read in this process, which starts faster."""
    monkeypatch.setattr(delta, "_answer", lambda folder: delta_process.described(Path(folder)))


def write(place: Place, *values: str, **options: Any) -> Any:
    """One more file of rows in the table."""
    folder = str(place.bucket / "in")
    deltalake.write_deltalake(folder, pa.table({"text": list(values)}), mode="append", **options)
    return deltalake.DeltaTable(folder)


def over_table(place: Place, **wishes: Any) -> Job:
    defaults = {"name": "in/", "template": TEMPLATE, "model": MODEL, "input_format": "delta"}
    return place.native(**{**defaults, **wishes})


def run(place: Place, job: Job) -> list[str]:
    job = planned(place, job)
    assert job.errors == ()
    place.work_off()
    assembled(place, job)
    return sorted(texts(place, job))


def why_refused(place: Place, job: Job) -> str:
    """The reason of planning, which a dry run says, too."""
    failed = place.plan(job)
    (problem,) = seen(place, job)
    assert (failed.state, failed.errors[0].message) == (JobState.FAILED, without_addresses(problem.message))
    assert place.shards(failed) == []
    return str(problem.message)


def test_rows_are_those_of_the_last_version_alone(place: Place) -> None:
    write(place, "a", "gone")
    write(place, "b", "bad")
    write(place, "c").delete("text = 'gone'")

    job = over_table(place)
    objects, rows = seen(place, job)
    assert (objects.formats, rows.rows_checked, rows.problems) == (["parquet"], 4, [])
    assert run(place, job) == ["a", "b", "c"]
    again = planned(place, retry_of(place, assembled(place, place.job(job))))
    place.work_off(lambda request: (200, {}))
    assert assembled(place, again).counts.succeeded == 1


def test_a_table_in_s3_is_read_over_http(
    sqlite_database: Database, clock: FakeClock, tmp_path: Path, moto_server: S3Server
) -> None:
    bucket = moto_server.new_bucket()
    place = Place.at(Store(sqlite_database, clock=clock), tmp_path, (bucket,))
    place.serve_model()
    write(place, "a", "gone")
    write(place, "b").delete("text = 'gone'")
    for path in filter(Path.is_file, (place.bucket / "in").rglob("*")):
        key = str(path.relative_to(place.bucket))
        moto_server.client.put_object(Bucket=bucket, Key=f"lake/{key}", Body=path.read_bytes())

    with moto_server.in_environment():
        job = over_table(place, input=f"s3://{bucket}/lake/in/")
        assert run(place, job) == ["a", "b"]
    place.locations.close()


@pytest.mark.usefixtures("here")
def test_a_checkpoint_and_the_commits_behind_it_say_the_table(place: Place) -> None:
    write(place, "a", "gone")
    table = write(place, "b")
    table.delete("text = 'gone'")
    table.create_checkpoint()
    write(place, "c")
    for version in (0, 1):
        (place.bucket / "in" / "_delta_log" / f"{version:020}.json").unlink()

    assert run(place, over_table(place)) == ["a", "b", "c"]


@pytest.mark.usefixtures("here")
def test_every_page_reads_the_version_of_the_first_one(place: Place) -> None:
    for number in range(8):
        table = write(place, f"text {number}")
    job, duty = over_table(place), place.planning(**ONE_PAGE_A_TURN)

    assert turn(place, duty).yielded == 1
    assert place.job(job).plan_cursor.table_version == 7
    write(place, "later")
    table.delete("text = 'text 5'")
    assert plan(place, duty) > 1
    place.work_off()
    assemble(place)

    assert sorted(texts(place, place.job(job))) == [f"text {number}" for number in range(8)]


@pytest.mark.usefixtures("here")
def test_a_file_that_was_vacuumed_before_it_was_planned_fails_the_job_by_its_name(place: Place) -> None:
    write(place, "a")
    (file,) = (place.bucket / "in").glob("*.parquet")
    file.unlink()

    assert file.name in why_refused(place, over_table(place))


@pytest.mark.usefixtures("here")
def test_values_of_partition_columns_are_those_of_the_log(place: Place) -> None:
    days, langs = [date(2026, 1, 1), None, date(2026, 1, 3)], ["en x/y", "fr%", "d=e?"]
    table = pa.table({"n": [1, 2, 3], "day": days, "lang": langs, "is_new": [True, False, True]})
    folder = str(place.bucket / "in")
    deltalake.write_deltalake(folder, table, partition_by=["day", "lang", "is_new"])
    template = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "{{n}} {{day}} {{lang}} {{is_new}}"}],
    }
    if any(letter in str(name) for name in (place.bucket / "in").rglob("*") for letter in "*?"):
        pytest.fail("the library writes wildcards into names")

    assert run(place, over_table(place, template=template)) == [
        "1 2026-01-01 en x/y true",
        "2  fr% false",
        "3 2026-01-03 d=e? true",
    ]


@pytest.mark.usefixtures("here")
def test_partition_columns_of_times_are_refused_by_name(place: Place) -> None:
    table = pa.table({"text": ["a"], "at": [datetime(2026, 1, 1, 2)]})  # noqa: DTZ001
    deltalake.write_deltalake(str(place.bucket / "in"), table, partition_by=["at"])

    assert "partition column 'at' has neither texts" in why_refused(place, over_table(place))


def commit(place: Place, *actions: dict[str, Any]) -> None:
    """One more commit, as any tenant with the folder may write it."""
    log = place.bucket / "in" / "_delta_log"
    last = max(int(path.stem) for path in log.glob("*.json"))
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    (log / f"{last + 1:020}.json").write_text(lines)


def added(path: str, **more: Any) -> dict[str, Any]:
    about = {"partitionValues": {}, "size": 9, "modificationTime": 1, "dataChange": True}
    return {"add": {"path": path, **about, **more}}


PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7}
VECTOR = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "sizeInBytes": 40, "cardinality": 6}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("actions", "says"),
    [
        ([added("/etc/passwd")], "names '/etc/passwd', which does not lie in its folder"),
        ([added("file:///etc/passwd")], "does not lie in its folder"),
        ([added("s3://another-tenant/a.parquet")], "does not lie in its folder"),
        ([added("http://169.254.169.254/latest/a.parquet")], "does not lie in its folder"),
        ([added("../elsewhere.parquet")], "does not lie in its folder"),
        ([added("%2E%2E/%2E%2E/elsewhere.parquet")], "does not lie in its folder"),
        ([added("*.parquet")], "which is no name of a file"),
        ([added("%2A.parquet")], "which is no name of a file"),
        ([added("date=2026-01-01/a.parquet")], "do not name its values of partition columns"),
        ([added("a.parquet", deletionVector=VECTOR)], "deletion vectors"),
        (
            [
                {
                    "protocol": PROTOCOL
                    | {"readerFeatures": ["typeWidening"], "writerFeatures": ["typeWidening"]}
                }
            ],
            "typeWidening",
        ),
        ([{"add": "nonsense"}], "cannot be read"),
    ],
)
def test_what_its_files_alone_do_not_say_is_refused_before_anything_runs(
    place: Place, actions: list[dict[str, Any]], says: str
) -> None:
    write(place, "a")
    (place.bucket / "elsewhere.parquet").write_bytes(
        (next((place.bucket / "in").glob("*.parquet"))).read_bytes()
    )
    commit(place, *actions)

    message = why_refused(place, over_table(place))

    assert message.startswith(f"{place.uri('in/')} cannot be read as a Delta table: ")
    assert says in message


@pytest.mark.usefixtures("here")
def test_deletion_vectors_in_a_checkpoint_are_refused(place: Place) -> None:
    write(place, "a").create_checkpoint()
    (checkpoint,) = (place.bucket / "in" / "_delta_log").glob("*.checkpoint.parquet")
    rows = pq.read_table(checkpoint).to_pylist()
    for row in rows:
        if row["add"] is not None:
            row["add"]["deletionVector"] = VECTOR
    pq.write_table(pa.Table.from_pylist(rows), checkpoint)

    assert "deletion vectors" in why_refused(place, over_table(place))


@pytest.mark.usefixtures("here")
def test_a_link_out_of_the_tenants_places_is_not_followed(place: Place) -> None:
    write(place, "a")
    (file,) = (place.bucket / "in").glob("*.parquet")
    file.unlink()
    file.symlink_to("/etc/hostname")

    assert "may not name" in why_refused(place, over_table(place))


def test_a_damaged_log_ends_its_own_process_alone(place: Place) -> None:
    write(place, "a").create_checkpoint()
    (checkpoint,) = (place.bucket / "in" / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100] + b"\0" * 92 + b"\xff\xff\xff\x7fPAR1")

    assert "cannot be read as a Delta table" in why_refused(place, over_table(place))


@pytest.mark.usefixtures("here")
def test_a_log_that_is_too_long_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    write(place, "a")
    monkeypatch.setattr(delta, "LOG_BYTES_MAX", 100)

    assert "has more than 100 bytes: write a checkpoint" in why_refused(place, over_table(place))


@pytest.mark.usefixtures("here")
def test_without_the_library_the_extra_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "LIBRARY", "no_such_library")

    assert "pip install 'nightshift[delta]'" in why_refused(place, over_table(place))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("input", ["in/", ""])
@pytest.mark.parametrize("format", [None, "parquet"])
def test_the_folder_of_a_table_is_not_read_as_a_folder_of_files(
    place: Place, input: str, format: str | None
) -> None:
    write(place, "a", "gone").delete("text = 'gone'")

    message = why_refused(place, over_table(place, name=input, input_format=format))

    assert message.startswith(f"{place.uri('in/')} is a Delta table")
    assert "--input-format delta" in message
    everything = over_table(place, name="in/*.parquet", input_format=None)
    assert run(place, everything) == ["a", "a", "gone"]


def test_no_row_of_a_tables_folder_runs_whatever_its_files_are_called(place: Place) -> None:
    rows = pa.table({"Day": [str(day) for day in range(9)], "text": ["a"] * 9})  # listed before the log
    deltalake.write_deltalake(str(place.bucket / "in"), rows, partition_by=["Day"])
    job, duty = over_table(place, input_format=None), place.planning(**ONE_PAGE_A_TURN)

    turn(place, duty)

    assert place.job(job).state is JobState.FAILED
    assert place.shards(job) == []


@pytest.mark.usefixtures("here")
def test_a_folder_without_a_log_is_no_table(place: Place) -> None:
    (place.bucket / "in").mkdir()

    assert "It has no log in _delta_log/" in why_refused(place, over_table(place))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "spec",
    [
        {"input": "{bucket}/in"},
        {"input": "{bucket}/*/"},
        {"input": "file-abc"},
        {"input": "{bucket}/in/", "further_inputs": ("{bucket}/other/",)},
    ],
)
def test_a_table_is_named_by_its_folder_alone(place: Place, spec: dict[str, Any]) -> None:
    bucket = place.bucket.as_uri()
    named: Callable[[Any], Any] = lambda value: (  # noqa: E731
        value.format(bucket=bucket) if isinstance(value, str) else tuple(map(named, value))
    )
    wanted = request(place, input_format="delta", **{name: named(value) for name, value in spec.items()})

    with pytest.raises(InvalidRequest, match="a Delta table is named by its folder alone") as refused:
        submitter(place).check(wanted, PriorityClass.INTERACTIVE)

    assert refused.value.param == "input"


def commits(*versions: int) -> list[str]:
    return [f"{version:020}.json" for version in versions]


def checkpoint(version: int, part: int | None = None, parts: int = 2) -> str:
    middle = "" if part is None else f".{part:010}.{parts:010}"
    return f"{version:020}.checkpoint{middle}.parquet"


BOTH = [checkpoint(1, 1), checkpoint(1, 2)]
OTHERS = ["_last_checkpoint", "_sidecars/a.parquet", f"{0:020}.checkpoint.{'a' * 36}.json"]


@pytest.mark.parametrize(
    ("names", "version", "wanted"),
    [
        (commits(0, 1, 2), None, (commits(0, 1, 2), 2)),
        (commits(0, 1, 2), 1, (commits(0, 1), 1)),
        ([*commits(3, 4), checkpoint(3)], None, ([checkpoint(3), *commits(3, 4)], 4)),
        ([*commits(0, 1, 2, 3), checkpoint(2)], 1, (commits(0, 1), 1)),
        ([*commits(2), *BOTH], None, ([*BOTH, *commits(2)], 2)),
        ([*commits(0, 1, 2), BOTH[0]], None, (commits(0, 1, 2), 2)),  # half of one
        ([*commits(0), *OTHERS], None, (commits(0), 0)),
    ],
)
def test_the_latest_whole_checkpoint_and_the_commits_behind_it_are_read(
    names: list[str], version: int | None, wanted: tuple[list[str], int]
) -> None:
    assert log_names(names, version) == wanted


@pytest.mark.parametrize(
    ("names", "version"),
    [(commits(0, 2), None), (commits(3, 4), None), ([*commits(5), checkpoint(4)], 3), ([], None)],
)
def test_a_log_with_a_gap_says_no_version(names: list[str], version: int | None) -> None:
    with pytest.raises(UnreadableInput, match=r"commit \d is not there|has no log"):
        log_names(names, version)


def test_a_cursor_without_a_table_is_stored_as_before() -> None:
    at_table = PlanCursor(page=1, table_version=0)

    assert "table_version" not in FIRST_PAGE.to_json()
    assert PlanCursor.from_json(1, at_table.to_json()) == at_table
