"""The same texts embedded from Parquet to Parquet, by Nightshift and by Ray Data.

Both have two processes with one torch thread each, which record what they compute.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import environments, records
from benchmarks.launch import LOGS_DIRECTORY, REPOSITORY
from benchmarks.service.running import PARTS, clock_offset_s, service_with, start_cli
from benchmarks.texts import make_texts
from nightshift.fleet.checkpoints import model_id
from nightshift.jobs.output_names import SUCCESS_NAME
from nightshift.settings import PREFIX
from tests.faults.kit.service import Service

PROCESSES: Final = 2
BATCH_ROWS: Final = 64
FILE_ROWS: Final = 1000
BLOCK_ROWS: Final = 512
"""Of Ray's: eight batches. Its actors then end within a second of each other."""
SEED: Final = 11
WAIT_S: Final = 4 * 3600.0


@dataclass(frozen=True)
class Texts:
    """An input, and the model that it is for."""

    checkpoint: Path
    rows: int
    texts: list[str] = field(repr=False)

    @classmethod
    def make(cls, checkpoint: Path, rows: int) -> Texts:
        return cls(checkpoint, rows, make_texts(rows, SEED))

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for number, start in enumerate(range(0, self.rows, FILE_ROWS)):
            texts = self.texts[start : start + FILE_ROWS]
            table = pa.table({"id": [f"row-{start + n}" for n in range(len(texts))], "text": texts})
            pq.write_table(table, folder / f"part-{number:04}.parquet")


@dataclass(frozen=True)
class Place:
    """Where a run reads and writes."""

    input: Path
    output: Path
    records: Path
    id_column: str
    """In the output."""

    @classmethod
    def make(cls, folder: Path, texts: Texts, written_to: Path, id_column: str) -> Place:
        place = cls(folder / "in", folder / "out", written_to, id_column)
        texts.write(place.input)
        return place

    @property
    def first_call_s(self) -> float:
        """CLOCK_MONOTONIC."""
        return records.calls_begun(self.records)[0].began_ns / 1e9

    def rows_begun(self) -> int:
        return sum(call.rows for call in records.calls_begun(self.records))

    def output_ids(self) -> Counter[str]:
        """How often each row is in the output."""
        found: Counter[str] = Counter()
        for path in sorted(self.output.rglob("*.parquet")):
            found.update(pq.read_table(path, columns=[self.id_column])[self.id_column].to_pylist())
        return found


class System(Protocol):
    """One way to embed the texts. `start` may be called again after its process was killed."""

    place: Place
    texts: Texts

    def start(self) -> subprocess.Popen[str]: ...

    def ended_s(self) -> float:
        """CLOCK_MONOTONIC when the output was complete, once the process has ended."""


@dataclass
class OnNightshift:
    service: Service
    texts: Texts
    place: Place

    def start(self) -> subprocess.Popen[str]:
        return start_cli(
            self.service,
            *(f"{self.place.input}/", "--output", f"{self.place.output}/", "--endpoint", "embeddings"),
            *("--model", model_id(str(self.texts.checkpoint)), "--input-column", "text"),
            *("--id-column", "id", "--format", "parquet", "--name", "embeddings"),
        )

    def ended_s(self) -> float:
        return (self.place.output / SUCCESS_NAME).stat().st_mtime - clock_offset_s()


@dataclass
class OnRay:
    texts: Texts
    place: Place
    folder: Path
    has_checkpoint: bool = False

    @property
    def _result(self) -> Path:
        return self.folder / "result.json"

    def start(self) -> subprocess.Popen[str]:
        python = environments.ensure(environments.ENVIRONMENTS["ray"])
        command = [str(python), "-m", "benchmarks.runners.ray_data", "--model", str(self.texts.checkpoint)]
        command += ["--input", str(self.place.input), "--output", str(self.place.output)]
        command += ["--actors", str(PROCESSES), "--batch-rows", str(BATCH_ROWS)]
        command += ["--block-rows", str(BLOCK_ROWS)]
        command += ["--folder", str(self.folder / "ray"), "--result", str(self._result)]
        if self.has_checkpoint:
            command += ["--checkpoint", str(self.folder / "checkpoint")]
        own = {
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # as ours; Ray's default is 15
            records.FOLDER: str(self.place.records),
        }
        LOGS_DIRECTORY.mkdir(parents=True, exist_ok=True)
        with (LOGS_DIRECTORY / "ray-data.log").open("a") as log:
            return subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=os.environ | own,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def ended_s(self) -> float:
        return float(json.loads(self._result.read_text())["ended_ns"]) / 1e9


@contextmanager
def on_nightshift(texts: Texts) -> Iterator[OnNightshift]:
    """A service with two workers that is ready."""
    parts = replace(PARTS, workers=PROCESSES, threads=1)
    with ExitStack() as stack:
        written_to = stack.enter_context(TemporaryDirectory(prefix="ns-bench-"))
        variables = {records.FOLDER.removeprefix(PREFIX): written_to}
        service = stack.enter_context(
            service_with(texts.checkpoint, parts, pool="RecordingPool", DTYPE="float32", **variables)
        )
        folder = Path(service.location("").removeprefix("file://"))
        place = Place.make(folder, texts, Path(written_to), "custom_id")
        yield OnNightshift(service, texts, place)


@contextmanager
def on_ray(texts: Texts, *, has_checkpoint: bool = False) -> Iterator[OnRay]:
    """Its cluster is started by each run."""
    with TemporaryDirectory(prefix="ns-bench-") as name:
        folder = Path(name)
        (folder / "records").mkdir()
        place = Place.make(folder, texts, folder / "records", "id")
        yield OnRay(texts, place, folder, has_checkpoint)


def wait_for_end(process: subprocess.Popen[str]) -> None:
    """Raises RuntimeError where it failed."""
    if status := process.wait(WAIT_S):
        raise RuntimeError(f"{process.args!r} ended with status {status}")


def kill_session(process: subprocess.Popen[str]) -> None:
    """End a process and what it has started in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
