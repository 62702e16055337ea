"""Compares estimates with the run that they are of: the same input is estimated, run, and estimated again.

    python -m benchmarks.estimates
    python -m benchmarks.estimates --demo 0 --tiny 0 --encoder 0 --parquet-gb 10    # the survey alone

The service is its real processes with SQLite and a directory. A run is timed from its first claim to its end,
as an estimate has it. The decoder's rows are sorted by the length of their answers.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fixtures import checkpoints
from benchmarks.measure import cpu_times
from benchmarks.report import Cell, others, report, spread
from benchmarks.service_overhead import (
    PARTS,
    TOKENS,
    WARM_UP,
    Work,
    chats,
    embeddings,
    letters,
    random_lines,
    run_job,
    service_with,
)
from nightshift.cli.demo import DEMO_MODEL_ID, demo_model_path
from nightshift.client import Client

POLL_S: Final = 0.5
GROUP_ROWS: Final = 50_000  # in a row group of Parquet


def works(chosen: argparse.Namespace) -> Iterator[Work]:
    if chosen.demo:
        yield Work("demo", demo_model_path(), "chat", "auto", chats(chosen.demo))
    if chosen.tiny:
        path = checkpoints.ensure("tiny", "float32")
        lines = random_lines(path, chosen.tiny + WARM_UP, TOKENS["uneven"])
        by_length = sorted(lines, key=lambda line: int(line["body"]["max_tokens"]))
        yield Work("tiny, sorted", path, "completions", "float32", by_length)
    if chosen.encoder:
        yield embeddings("minilm-tiny", chosen.encoder, is_lognormal=True)


def estimated(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    """An estimate whose sample has ended."""
    answer = client.estimate_job({name: value for name, value in body.items() if name != "format"})
    while answer["status"] == "running":
        time.sleep(POLL_S)
        answer = client.get_estimate(answer["id"])
    assert not answer["problems"], answer["problems"]
    return answer


def measured(work: Work, threads: int) -> dict[str, Cell]:
    """The run, and estimates before and after it: the machine's pace changes from minute to minute."""
    before, count = cpu_times(), len(work.rows) - WARM_UP
    with service_with(work.checkpoint, replace(PARTS, threads=threads), DTYPE=work.dtype) as service:
        place = Path(service.location("").removeprefix("file://"))
        warm_up = work.write(work.rows[:WARM_UP], place / "warm-up" / "input")
        run_job(service, work.body(warm_up.as_uri(), service.location("warm-up/out/")), WARM_UP)
        source = work.write(work.rows[WARM_UP:], place / "rows" / "input")
        body = work.body(source.as_uri(), service.location("rows/out/"))
        with service.client() as client:
            answers = [estimated(client, body)]
            job = run_job(service, body, count).job
            answers.append(estimated(client, body))
    assert job.finished_at is not None
    assert job.started_at is not None
    real_s = (job.finished_at - job.started_at).total_seconds()
    etas_s = [answer["figures"]["eta_s"] for answer in answers]
    known = [answers[0]["figures"][name] or {"total": 0} for name in ("prompt_tokens", "completion_tokens")]
    return {
        "work": work.name,
        "rows": count,
        "sample, rows": answers[0]["sample"]["rows"],
        "estimates, s": spread(etas_s),
        "run, s": real_s,
        "estimate / run": mean(etas_s) / real_s,
        "tokens, estimate / run": sum(tokens["total"] for tokens in known) / job.usage.total_tokens,
        "others' CPU": others(cpu_times().other_share_since(before)),
    }


def surveyed(gigabytes: int) -> dict[str, Cell]:
    """The survey of a Parquet file of that size, whose sample is cancelled."""
    with service_with(demo_model_path()) as service:
        path = Path(service.location("").removeprefix("file://")) / "in" / "rows.parquet"
        path.parent.mkdir(parents=True)
        rows = _write(path, gigabytes * 10**9)
        template = {"model": DEMO_MODEL_ID, "messages": [{"role": "user", "content": "{{id}} {{text}}"}]}
        with service.client() as client:
            began_s = time.monotonic()
            answer = client.estimate_job({"endpoint": "chat", "input": path.as_uri(), "template": template})
            survey_s = time.monotonic() - began_s
            client.cancel_job(answer["id"])
    return {
        "size, GB": answer["input"]["size_bytes"] / 1e9,
        "rows": rows,
        "rows, estimate / file": answer["input"]["rows"] / rows,
        "rows read": answer["input"]["rows_read"],
        "survey, s": survey_s,
    }


def _write(path: Path, size_bytes: int) -> int:
    """Writes texts under numbers, group by group. Returns how many."""
    draw, rows = random.Random(1), 0
    texts = pa.array([2 * letters(draw) for _ in range(GROUP_ROWS)])
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        while path.stat().st_size < size_bytes:
            ids = pa.array(range(rows, rows + GROUP_ROWS))
            writer.write_table(pa.table([ids, texts], schema=schema), row_group_size=GROUP_ROWS)
            rows += GROUP_ROWS
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demo", type=int, default=40_000, metavar="ROWS", help="of the demo model; 0: none")
    parser.add_argument("--tiny", type=int, default=6_000, metavar="ROWS", help="of a decoder; 0: none")
    parser.add_argument("--encoder", type=int, default=40_000, metavar="ROWS", help="of an encoder; 0: none")
    parser.add_argument(
        "--parquet-gb", type=int, default=0, metavar="GB", help="of a file to survey; 0: none"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of torch")
    chosen = parser.parse_args(arguments)
    rows = []
    for work in works(chosen):
        print(f"{work.name}: {len(work.rows) - WARM_UP} rows …", flush=True)
        rows.append(measured(work, chosen.threads))
    if rows:
        report("estimates", rows, [f"{chosen.threads} threads, one worker."])
    if chosen.parquet_gb:
        report("survey", [surveyed(chosen.parquet_gb)], ["Much of the file is in the page cache."])


if __name__ == "__main__":
    main()
