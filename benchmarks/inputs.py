"""What reading an input costs: CPU time a row, and memory beyond an idle process.

python -m benchmarks.inputs --rows 100000
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.reliability.figures import Figure, show
from nightshift.jobs import NewShard
from nightshift.objectstore import MIB, DirectoryStore
from nightshift.rows.inputs import format_of, iter_rows

ROUNDS = 3
SEED = 1


def texts(rows: int) -> list[str]:
    """Of about 400 characters."""
    numbers = random.Random(SEED)
    words = ["".join(numbers.choices("abcdefghijklmnopqrst", k=6)) for _ in range(5000)]
    return [" ".join(numbers.choices(words, k=60)) for _ in range(rows)]


def flat(rows: int) -> pa.Table:
    return pa.table({"id": range(rows), "text": texts(rows)})


def conversations(rows: int) -> pa.Table:
    system = {"role": "system", "content": "You are helpful."}
    return pa.Table.from_pylist([{"messages": [system, {"role": "user", "content": t}]} for t in texts(rows)])


def wide(rows: int) -> pa.Table:
    numbers = random.Random(SEED)
    return pa.table({f"c{n}": [numbers.random() for _ in range(rows)] for n in range(200)})


def write_csv(table: pa.Table, path: Path) -> None:
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        pyarrow.csv.write_csv(table, file)


INPUTS: dict[str, tuple[Callable[[int], pa.Table], Callable[[pa.Table, Path], Any], float]] = {
    "flat.parquet": (flat, pq.write_table, 1.0),
    "conversations.parquet": (conversations, pq.write_table, 1.0),
    "wide.parquet": (wide, pq.write_table, 0.1),
    "flat.csv.zst": (flat, write_csv, 1.0),
}


def memory_bytes(field: str) -> int:
    """Of this process, by proc(5)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def read(path: Path) -> tuple[int, float, int]:
    """Rows, the least seconds of CPU time of some rounds, and the bytes of memory that it took."""
    store = DirectoryStore(path.parent)
    shard = NewShard(shard_no=0, uri=path.name, format=format_of(path.name), start=0, end=None)
    Path("/proc/self/clear_refs").write_text("5")  # the most memory so far is forgotten
    before = memory_bytes("VmRSS")
    seconds, rows = [], 0
    for _ in range(ROUNDS):
        began_s = time.process_time()
        rows = sum(1 for _ in iter_rows(store, path.name, shard, line_bytes_max=4 * MIB))
        seconds.append(time.process_time() - began_s)
    return rows, min(seconds), memory_bytes("VmHWM") - before


def measure(rows: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="nightshift-inputs-") as folder:
        for name, (make, write, share) in INPUTS.items():
            path = Path(folder) / name
            write(make(int(rows * share)), path)
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                count, seconds, size_bytes = pool.submit(read, path).result()
            about = f"{name}, {path.stat().st_size // MIB} MiB"
            yield Figure(f"{about}: CPU time a row", seconds / count * 1e6, "us")
            yield Figure(f"{about}: memory", size_bytes / MIB, "MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    show("inputs", list(measure(parser.parse_args().rows)))


if __name__ == "__main__":
    main()
