"""Measures the cost of the whole service over its bare engine: the same rows on the same cores.

    python -m benchmarks.service_overhead
    python -m benchmarks.service_overhead --medium 0 --demo 0 --encoder 3000 --lognormal
    python -m benchmarks.service_overhead --medium 0 --demo 0 --encoder 0 \
        --decoder 0.6b --even 6000 --uneven 4000 \
        --setting ENGINE_MAX_NUM_SEQS=256 --setting ENGINE_MAX_NUM_BATCHED_TOKENS=8192    # on a GPU

The service is its real processes with SQLite and a directory; its input and output are files. The engine
alone has the rows in memory and keeps its answers there; it runs before and after the service. Starting,
loading and some first rows are in neither figure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fixtures import checkpoints
from benchmarks.fixtures.workloads import OUTPUT_LENGTHS, PROMPTS, make_texts, make_texts_of_tokens
from benchmarks.measure import CpuTimes, cpu_times
from benchmarks.reliability.services import PRODUCTION
from benchmarks.report import Cell, others, percent, report, spread
from benchmarks.runners.bare_engine import BareRun
from benchmarks.runners.launch import LOGS_DIRECTORY, run_process
from nightshift.cli.demo import DEMO_MODEL_ID, LARGEST_NUMBER, demo_model_path
from nightshift.fleet.checkpoints import model_id
from nightshift.jobs import Job, JobState
from nightshift.jobs.part import SUCCESS_NAME
from nightshift_engine import limit_spinning
from tests.faults.kit.launch import running
from tests.faults.kit.service import Parts, Service

PARTS: Final = Parts(engine="demo", durable=True, are_forked=False)
WAIT_S: Final = 4 * 3600.0
POLL_S: Final = 0.5  # polling takes time of the engine's cores


@dataclass(frozen=True)
class Ended:
    """A job that ended with all its rows. Times are seconds since 1970."""

    job: Job
    submitted_s: float
    claimed_s: float
    """Its first shard."""
    success_s: float
    """`_SUCCESS` was there."""

    @property
    def after_claim_s(self) -> float:
        return self.success_s - self.claimed_s

    @property
    def after_submit_s(self) -> float:
        return self.success_s - self.submitted_s

    @property
    def assembly_s(self) -> float:
        """Seconds from the last shard's end, as the scheduler noticed it, to `_SUCCESS`."""
        assert self.job.finalizing_at is not None, "it has ended"
        return self.success_s - self.job.finalizing_at.timestamp()


@contextmanager
def service_with(model: Path | str, parts: Parts = PARTS, **settings: str) -> Iterator[Service]:
    """A service that has loaded `model`. `settings` as in `tests.faults.kit.launch.running`."""
    own = {"MODELS": str(model), "DETERMINISTIC": "false", "FAILPOINT_DIR": ""}  # a look at it for each row
    with tempfile.TemporaryDirectory(prefix="ns-bench-") as folder:
        with running(Path(folder), parts, **(PRODUCTION | own | settings)) as service:
            yield service


def run_job(service: Service, body: dict[str, Any], rows: int) -> Ended:
    """Submits a job whose output is a folder of this machine, and waits for its end.

    Raises AssertionError where a row is missing or failed.
    """
    with service.client() as client:
        job_id = client.submit_job(body).id
    ends_at_s = time.monotonic() + WAIT_S
    while not (job := _fetch(service, job_id)).state.is_terminal:
        assert time.monotonic() < ends_at_s, f"{job_id} has not ended in {WAIT_S:.0f} s"
        time.sleep(POLL_S)
    assert (job.state, job.counts.succeeded) == (JobState.SUCCEEDED, rows), f"{job.state}: {job.errors}"
    assert job.started_at is not None
    assert job.spec.output is not None
    success_s = (Path(job.spec.output.removeprefix("file://")) / SUCCESS_NAME).stat().st_mtime
    return Ended(job, job.created_at.timestamp(), job.started_at.timestamp(), success_s)


def _fetch(service: Service, job_id: str) -> Job:
    with service.store.snapshot() as tx:
        return tx.jobs.fetch(job_id)


WARM_UP: Final = 32  # rows
DEMO_TOKENS_MAX: Final = 64
TOKENS: Final = {"even": (128, 128), "uneven": (16, 240)}
"""The range of tokens of an answer."""
TIMEOUT_S: Final = 3600.0
SEED: Final = 7


@dataclass(frozen=True)
class Work:
    """Rows for a model, the first `WARM_UP` of which are not counted."""

    name: str
    checkpoint: Path
    endpoint: str
    dtype: str
    rows: Sequence[Any]
    """Lines of an OpenAI batch, or texts to embed."""

    @property
    def is_embedding(self) -> bool:
        return self.endpoint == "embeddings"

    def body(self, uri: str, output: str) -> dict[str, Any]:
        """The body of the job over an input."""
        places: dict[str, Any] = {"endpoint": self.endpoint, "input": uri, "output": output}
        if not self.is_embedding:
            return places
        template = {"model": model_id(str(self.checkpoint)), "input": "{{text}}"}
        return places | {"template": template, "id_column": "id", "format": "parquet"}

    def write(self, rows: Sequence[Any], path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.is_embedding:
            path = path.with_suffix(".parquet")
            pq.write_table(pa.table({"id": [f"row-{n}" for n in range(len(rows))], "text": rows}), path)
        else:
            path = path.with_suffix(".jsonl")
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path


def works(chosen: argparse.Namespace) -> Iterator[Work]:
    if chosen.medium:
        path = checkpoints.ensure(chosen.decoder, chosen.dtype)
        yield Work(chosen.decoder, path, "completions", chosen.dtype, _completions(path, chosen.medium))
    for name, count in (("even", chosen.even), ("uneven", chosen.uneven)):
        if count:
            path = checkpoints.ensure(chosen.decoder, chosen.dtype)
            rows = random_lines(path, count + WARM_UP, TOKENS[name])
            yield Work(f"{chosen.decoder}-{name}", path, "completions", chosen.dtype, rows)
    if chosen.demo:
        yield Work("demo", demo_model_path(), "chat", "auto", chats(chosen.demo))
    if chosen.encoder:
        yield embeddings(chosen.encoder_model, chosen.encoder, is_lognormal=chosen.lognormal)


def embeddings(shape: str, count: int, *, is_lognormal: bool) -> Work:
    """Sentences, or texts of 8 to 512 tokens."""
    path, rows = checkpoints.ensure_encoder(shape), count + WARM_UP
    if not is_lognormal:
        return Work(shape, path, "embeddings", "auto", make_texts(rows, SEED))
    return Work(f"{shape}-lognormal", path, "embeddings", "auto", make_texts_of_tokens(path, rows, SEED))


def _completions(path: Path, count: int) -> list[dict[str, Any]]:
    draw = random.Random(SEED)
    return [
        _line(number, "/v1/completions", {
            "model": model_id(str(path)),
            "prompt": text,
            "max_tokens": OUTPUT_LENGTHS.draw(draw),
            "temperature": 0,
            "ignore_eos": True,
        })
        for number, text in enumerate(make_texts(count + WARM_UP, SEED, PROMPTS))
    ]  # fmt: skip


def random_lines(path: Path, count: int, tokens: tuple[int, int]) -> list[dict[str, Any]]:
    """Lines with prompts of letters and answers of a number of tokens in that range."""
    draw = random.Random(SEED)
    return [
        _line(number, "/v1/completions", {
            "model": model_id(str(path)),
            "prompt": letters(draw),
            "max_tokens": draw.randint(*tokens),
            "temperature": 0,
            "ignore_eos": True,
        })
        for number in range(count)
    ]  # fmt: skip


def letters(draw: random.Random) -> str:
    """A text of 100 to 300 letters and spaces, most of which are a token each."""
    return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz     ", k=draw.randint(100, 300)))


def chats(count: int) -> list[dict[str, Any]]:
    """Lines of chats with the demo model."""
    numbers = random.Random(SEED).sample(range(LARGEST_NUMBER + 1), count + WARM_UP)
    return [
        _line(number, "/v1/chat/completions", {
            "model": DEMO_MODEL_ID,
            "messages": [{"role": "user", "content": str(number_asked)}],
            "max_tokens": DEMO_TOKENS_MAX,
            "temperature": 0,
        })
        for number, number_asked in enumerate(numbers)
    ]  # fmt: skip


def _line(number: int, route: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": f"row-{number}", "method": "POST", "url": route, "body": body}


def run_bare(work: Work, threads: int, folder: Path, settings: Mapping[str, str]) -> BareRun:
    source = work.write(work.rows, folder / "bare")
    result = folder / "result.json"
    command = [sys.executable, "-m", "benchmarks.runners.bare_engine", "--model", str(work.checkpoint)]
    command += ["--input", str(source), "--dtype", work.dtype, "--threads", str(threads)]
    command += ["--warm-up", str(WARM_UP), "--result", str(result)]
    variables = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    variables |= {f"NIGHTSHIFT_{name}": value for name, value in settings.items()}
    limit_spinning(variables)  # as a worker's threads wait, whichever module imports torch first
    LOGS_DIRECTORY.mkdir(parents=True, exist_ok=True)
    run_process(command, variables, LOGS_DIRECTORY / f"bare-{work.name}.log", TIMEOUT_S)
    return BareRun.read(result)


def run_service(work: Work, threads: int, settings: Mapping[str, str]) -> tuple[Ended, CpuTimes]:
    """The job, and CPU times while the service's processes still run: they count as ours until then."""
    parts = replace(PARTS, threads=threads)
    with service_with(work.checkpoint, parts, DTYPE=work.dtype, **settings) as service:
        place = Path(service.location("").removeprefix("file://"))
        for name, rows in (("warm-up", work.rows[:WARM_UP]), ("rows", work.rows[WARM_UP:])):
            source = work.write(rows, place / name / "input")
            body = work.body(source.as_uri(), service.location(f"{name}/out/"))
            ended = run_job(service, body, len(rows))
        return ended, cpu_times()


def measured(work: Work, threads: int, settings: Mapping[str, str]) -> dict[str, Cell]:
    before = cpu_times()
    with tempfile.TemporaryDirectory(prefix="ns-bench-") as name:
        bare = [run_bare(work, threads, Path(name), settings)]
        service, after = run_service(work, threads, settings)
        bare.append(run_bare(work, threads, Path(name), settings))
    usage, rows = service.job.usage, bare[0].rows
    if not work.is_embedding:
        made = {usage.completion_tokens, *(run.output_tokens for run in bare)}
        assert len(made) == 1 or work.dtype == "auto", f"other tokens than the engine alone: {made}"
    speeds = [run.rows / run.seconds for run in bare]
    alone, claimed, submitted = mean(speeds), rows / service.after_claim_s, rows / service.after_submit_s
    tokens = usage.prompt_tokens if work.is_embedding else usage.completion_tokens
    bare_tokens = bare[0].prompt_tokens if work.is_embedding else bare[0].output_tokens
    return {
        "work": f"{work.name}, {work.dtype}",
        "rows": rows,
        "engine alone, rows/s": spread(speeds),
        "service, first claim to _SUCCESS": claimed,
        "cost": percent(alone - claimed, alone),
        "submit to _SUCCESS": submitted,
        "cost of that": percent(alone - submitted, alone),
        "tok/s alone": bare_tokens / rows * alone,
        "tok/s service": tokens / service.after_claim_s,
        "others' CPU": others(after.other_share_since(before)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--medium", type=int, default=1024, metavar="ROWS", help="of the decoder; 0: none")
    parser.add_argument("--demo", type=int, default=20_000, metavar="ROWS", help="of the demo model; 0: none")
    parser.add_argument("--encoder", type=int, default=20_000, metavar="ROWS", help="of the encoder; 0: none")
    parser.add_argument("--even", type=int, default=0, metavar="ROWS", help="of the decoder, 128 tokens each")
    parser.add_argument(
        "--uneven", type=int, default=0, metavar="ROWS", help="of the decoder, 16 to 240 tokens"
    )
    parser.add_argument("--decoder", default="medium", choices=checkpoints.DECODERS)
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the worker")
    parser.add_argument("--encoder-model", default="minilm", choices=["minilm", "minilm-tiny"])
    parser.add_argument("--lognormal", action="store_true", help="texts of 8 to 512 tokens for the encoder")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"], help="of the decoder")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of torch")
    chosen = parser.parse_args(arguments)
    rows = []
    for work in works(chosen):
        print(f"{work.name}: {len(work.rows) - WARM_UP} rows …", flush=True)
        rows.append(measured(work, chosen.threads, dict(setting.split("=", 1) for setting in chosen.setting)))
    notes = [f"{chosen.threads} threads. Tokens: generated, of an encoder read."]
    report("service-overhead", rows, notes)


if __name__ == "__main__":
    main()
