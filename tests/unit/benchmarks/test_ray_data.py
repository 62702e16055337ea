"""Which rows a run computed twice, lost or wrote twice, with processes that stand for Ray's and ours."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.embedding_runs import FILE_ROWS, Place, Texts
from benchmarks.ray_data import measured

TEXTS = Texts(Path("minilm"), 4, ["a", "b", "c", "d"])
BEGINS_AND_HANGS = "open({record!r}, 'a').write('1000000000 0 3\\n'); import signal; signal.pause()"
BEGINS_ALL = "open({record!r}, 'a').write('2000000000 0 4\\n')"


@dataclass
class Scripted:
    """Each start runs the next script; every one but the last waits until it is killed."""

    place: Place
    scripts: Iterator[str]
    texts: Texts = TEXTS
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self) -> subprocess.Popen[str]:
        code = next(self.scripts).format(record=str(self.place.records / "1"))
        process = subprocess.Popen([sys.executable, "-c", code], text=True, start_new_session=True)
        self.started.append(process)
        return process

    def ended_s(self) -> float:
        return 5.0


def a_place(folder: Path, output: list[str]) -> Place:
    place = Place(folder / "in", folder / "out", folder / "records", "id")
    place.records.mkdir()
    place.output.mkdir()
    pq.write_table(pa.table({"id": output}), place.output / "part-0.parquet")
    return place


def test_a_driver_that_is_killed_is_started_again_and_what_it_began_counts(tmp_path: Path) -> None:
    system = Scripted(a_place(tmp_path, ["a", "b", "b", "c"]), iter((BEGINS_AND_HANGS, BEGINS_ALL)))

    @contextmanager
    def opened() -> Iterator[Scripted]:
        yield system

    run = measured("Ray Data", opened, "driver")

    assert [process.returncode for process in system.started] == [-9, 0]
    assert run.rows_begun - run.rows == 3
    assert (run.rows_missing, run.rows_double) == (1, 1)
    assert (run.first_s, run.ended_s, run.per_s) == (1.0, 5.0, 1.0)


def test_a_run_that_fails_has_no_figures(tmp_path: Path) -> None:
    system = Scripted(a_place(tmp_path, []), iter(("raise SystemExit(3)",)))

    @contextmanager
    def opened() -> Iterator[Scripted]:
        yield system

    with pytest.raises(RuntimeError, match="status 3"):
        measured("Ray Data", opened)


def test_a_run_that_ends_before_it_is_killed_has_no_figures(tmp_path: Path) -> None:
    system = Scripted(a_place(tmp_path, []), iter(("",)))

    @contextmanager
    def opened() -> Iterator[Scripted]:
        yield system

    with pytest.raises(RuntimeError, match="before it was to be killed"):
        measured("Ray Data", opened, "worker")


def test_the_input_is_several_files_whose_ids_differ(tmp_path: Path) -> None:
    rows = FILE_ROWS + 1
    Texts(Path("minilm"), rows, [f"text {row}" for row in range(rows)]).write(tmp_path / "in")

    files = sorted((tmp_path / "in").iterdir())
    ids = [id for path in files for id in pq.read_table(path)["id"].to_pylist()]
    assert len(files) == 2
    assert ids == [f"row-{row}" for row in range(rows)]
