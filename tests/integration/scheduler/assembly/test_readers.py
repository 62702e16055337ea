"""An output's folder is read as data by the readers that people use, in their plainest form.

pyarrow and DuckDB read it here. A reader that is not installed is represented by the rule by which it chooses
files, and the files that it would choose are read.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from nightshift.jobs import JobState, JsonObject
from scheduler.output import manifests
from tests.integration.scheduler.assembly.conftest import TEXTS, a_native_job, assembled, ids
from tests.integration.scheduler.scheduling import Place

Reader = Callable[[Path], list[str]]  # a folder's rows, by their ids

ROWS = [*TEXTS, "bad"]  # the last one fails


def _with_duckdb(function: str, pattern: str) -> Reader:
    """`function` reads the files of a pattern, which hides no name."""

    def read(folder: Path) -> list[str]:
        with duckdb.connect() as connection:
            rows = connection.execute(f"select custom_id from {function}('{folder}/{pattern}')").fetchall()
        return [row[0] for row in rows]

    return read


def _rows_in(files: Iterator[Path]) -> list[str]:
    """Rows of files that a reader has chosen. One that is no data fails, as it does there."""
    custom_ids: list[str] = []
    for file in files:
        if file.suffix == ".parquet":
            custom_ids += pq.read_table(file)["custom_id"].to_pylist()
        else:
            custom_ids += ids([json.loads(line) for line in file.read_text().splitlines()])
    return custom_ids


def _of_spark(folder: Path) -> Iterator[Path]:
    """Hides names with a leading `_` or `.`, at any depth; `_metadata` and `_common_metadata` are footers."""
    for file in folder.rglob("*"):
        parts = file.relative_to(folder).parts
        if file.is_file() and not any(part.startswith(("_", ".")) for part in parts):
            yield file


def _of_ray(folder: Path) -> Iterator[Path]:
    """Excludes paths in the folder that begin with `.` or `_`."""
    for file in folder.rglob("*"):
        if file.is_file() and not str(file.relative_to(folder)).startswith((".", "_")):
            yield file


def _of_polars(folder: Path) -> Iterator[Path]:
    """`scan_parquet(folder, hidden_file_prefix="_")`: leaves empty files out, and refuses a folder whose
    other files differ in their ending.
    """
    files = [
        file for file in folder.rglob("*") if file.is_file() and file.stat().st_size and file.name[0] != "_"
    ]
    assert len({file.suffix for file in files}) == 1
    yield from files


READERS: dict[str, dict[str, Reader]] = {
    "parquet": {
        # pandas.read_parquet hands a folder to the first of these.
        "pyarrow.parquet.read_table": lambda folder: pq.read_table(folder)["custom_id"].to_pylist(),
        "pyarrow.dataset.dataset": lambda folder: ds.dataset(folder).to_table()["custom_id"].to_pylist(),
        "duckdb": _with_duckdb("read_parquet", "*.parquet"),
        "duckdb, all below": _with_duckdb("read_parquet", "**/*.parquet"),
    },
    "jsonl": {
        "pyarrow.dataset.dataset": lambda folder: (
            ds.dataset(folder, format="json").to_table()["custom_id"].to_pylist()
        ),
        "duckdb": _with_duckdb("read_json", "*.jsonl"),
        "duckdb, all below": _with_duckdb("read_json", "**/*.jsonl"),
    },
}
RULES: dict[str, Callable[[Path], Iterator[Path]]] = {
    "spark": _of_spark,
    "ray": _of_ray,
    "polars": _of_polars,
    "a shell's *": lambda folder: folder.glob("[!_]*"),
}


@pytest.mark.parametrize("format", READERS)
@pytest.mark.parametrize(
    "inputs_max",
    [0, pytest.param(1000, marks=pytest.mark.exhaustive)],
    ids=["inputs in a file", "inputs in the manifest"],
)
def test_every_reader_finds_each_row_of_an_output_once_and_nothing_else(
    place: Place, monkeypatch: pytest.MonkeyPatch, format: str, inputs_max: int
) -> None:
    """Rows that failed, too: their files have the same columns, and `outcome` tells them apart."""
    monkeypatch.setattr(manifests, "INPUTS_MAX", inputs_max)
    job = a_native_job(place, ROWS, format=format, id_column="text", part_rows=4)
    place.work_off()
    assert assembled(place, job).state is JobState.SUCCEEDED

    folder = place.bucket / "out"
    read = {name: sorted(reader(folder)) for name, reader in READERS[format].items()}
    chosen = {name: sorted(_rows_in(rule(folder))) for name, rule in RULES.items()}
    assert read == dict.fromkeys(READERS[format], sorted(ROWS))
    assert chosen == dict.fromkeys(RULES, sorted(ROWS))


@pytest.mark.parametrize("format", READERS)
def test_a_folder_is_read_while_its_second_run_writes_beside_the_first(place: Place, format: str) -> None:
    for texts, shards in ((["old"], 1000), (ROWS, 1)):
        job = a_native_job(place, texts, format=format, id_column="text", part_rows=1)
        duty = place.output_parts()
        place.work_off(shards=shards)
        for _ in range(2):  # the second lists what the first has written
            place.write_parts(duty)
        if texts == ["old"]:
            assembled(place, job)

    folder = place.bucket / "out"
    assert len(list(folder.glob("_manifest*.json"))) == 2
    so_far = {file["name"] for path in folder.glob("_manifest*.json") for file in _listed_in(path)}
    assert so_far == {path.name for path in folder.glob("[pe]*")}
    rows = sorted(_rows_in(folder.glob("[pe]*")))
    assert len(rows) > len(["old"])
    assert [sorted(reader(folder)) for reader in READERS[format].values()] == [rows] * len(READERS[format])
    assert [sorted(_rows_in(rule(folder))) for rule in RULES.values()] == [rows] * len(RULES)


def _listed_in(manifest: Path) -> list[JsonObject]:
    said = json.loads(manifest.read_text())
    return [*said["parts"], *said["errors"]]
