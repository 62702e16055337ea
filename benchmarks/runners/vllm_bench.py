"""Runs `vllm bench serve` many times in one process of vLLM's environment: its import takes a while.

A line of input has the command's options as JSON, a line of output the rows answered and the seconds taken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.runners.environments import BENCH_DIRECTORY, REPOSITORY

LOG = BENCH_DIRECTORY / "logs" / "vllm-bench-serve.log"


class BenchServe:
    """`vllm bench serve` with the same server each time."""

    def __init__(self, process: subprocess.Popen[str], options: Sequence[str]) -> None:
        self._process, self._options = process, options
        self.pid = process.pid

    def rows_per_s(self, rows: Path, count: int, concurrency: int) -> float:
        """The speed of the first rows of a custom dataset (JSONL). Raises RuntimeError where one failed."""
        options = [*self._options, "--dataset-path", str(rows), "--num-prompts", str(count)]
        options += ["--max-concurrency", str(concurrency)]
        assert self._process.stdin is not None, "it is a pipe"
        assert self._process.stdout is not None, "it is a pipe"
        print(json.dumps(options), file=self._process.stdin, flush=True)
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"vllm bench serve failed: see {LOG}")
        completed, seconds = json.loads(said)
        if completed != count:
            raise RuntimeError(f"{completed} of {count} rows were answered: see {LOG}")
        return count / float(seconds)


@contextmanager
def bench_serve(python: Path, url: str, model: str, tokenizer: Path) -> Iterator[BenchServe]:
    """The command for completions of one server, as fast as its `--max-concurrency` allows."""
    options = ["--backend", "vllm", "--base-url", url.removesuffix("/v1"), "--endpoint", "/v1/completions"]
    options += ["--model", model, "--tokenizer", str(tokenizer), "--dataset-name", "custom"]
    options += ["--custom-output-len", "-1", "--skip-chat-template", "--disable-shuffle", "--disable-tqdm"]
    options += ["--request-rate", "inf", "--temperature", "0", "--ignore-eos"]
    variables = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    LOG.parent.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-m", "benchmarks.runners.vllm_bench"]
    pipe = subprocess.PIPE
    with (
        LOG.open("w") as log,
        subprocess.Popen(
            command, cwd=REPOSITORY, env=variables, stdin=pipe, stdout=pipe, stderr=log, text=True
        ) as process,
    ):
        try:
            yield BenchServe(process, options)
        finally:
            process.kill()


def main() -> None:
    from vllm.benchmarks import serve

    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            result = serve.main(parser.parse_args(json.loads(line)))
        print(json.dumps([result["completed"], result["duration"]]), flush=True)


if __name__ == "__main__":
    main()
