"""The whole service, as a user calls it: a batch uploaded, run by one worker, and its output downloaded."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import openai

from benchmarks.runners import harness
from benchmarks.workloads import BenchRequest
from examples.harness.service import running

POLL_S = 0.05


class NightshiftService:
    """`nightshift up` with one model. `arguments`: those of the harness."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        settings = {
            "NIGHTSHIFT_MODELS": str(Path(arguments.model).resolve()),
            "NIGHTSHIFT_DTYPE": arguments.precision,
            "NIGHTSHIFT_ENGINE_MAX_NUM_SEQS": str(arguments.max_num_seqs),
        }
        os.environ |= settings
        self._opened = ExitStack()
        folder = self._opened.enter_context(tempfile.TemporaryDirectory(prefix="nightshift-bench-"))
        service = self._opened.enter_context(running(Path(folder)))
        self._client = self._opened.enter_context(
            openai.OpenAI(base_url=service.base_url, api_key=service.api_key)
        )
        self._model = next(iter(self._client.models.list())).id
        self.pid = service.process.pid
        self.version = "this checkout"
        self.settings = settings

    def generate(self, requests: Sequence[BenchRequest]) -> dict[int, list[int]]:
        """From the upload to the downloaded output. Raises RuntimeError where the batch does not complete."""
        lines = "".join(json.dumps(self._line(request)) + "\n" for request in requests)
        uploaded = self._client.files.create(file=("requests.jsonl", lines.encode()), purpose="batch")
        batch = self._client.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/completions", completion_window="24h"
        )
        while batch.status in ("validating", "in_progress", "finalizing"):
            time.sleep(POLL_S)
            batch = self._client.batches.retrieve(batch.id)
        if batch.status != "completed" or batch.output_file_id is None:
            raise RuntimeError(f"the batch ended as {batch.status}: {batch.errors or batch.request_counts}")
        output = self._client.files.content(batch.output_file_id).text
        answers = [json.loads(line) for line in output.splitlines()]
        return {int(answer["custom_id"]): _unknown_tokens(answer["response"]["body"]) for answer in answers}

    def close(self) -> None:
        self._opened.close()

    def _line(self, request: BenchRequest) -> dict[str, object]:
        body = {
            "model": self._model,
            "prompt": request.prompt_token_ids,
            "max_tokens": request.num_output_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        return {"custom_id": str(request.id), "method": "POST", "url": "/v1/completions", "body": body}


def _unknown_tokens(answer: dict[str, dict[str, int]]) -> list[int]:
    """As many as the answer counts: it has a text, no token ids."""
    return [harness.UNKNOWN_TOKEN] * answer["usage"]["completion_tokens"]


if __name__ == "__main__":
    raise SystemExit(harness.run(NightshiftService, harness.argument_parser(__doc__ or "")))
