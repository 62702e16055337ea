"""transformers' `generate`: static batches in order of arrival, each as long as its longest request.

Only the tokens that each request asked for are counted: the rest is what static batching wastes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from benchmarks.runners import harness
from benchmarks.workloads import BenchRequest

BATCH_SIZE = 16


class TransformersGenerate:
    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch
        import transformers

        torch.set_num_threads(arguments.threads)
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            arguments.model, dtype=arguments.precision, attn_implementation="sdpa"
        ).eval()
        self._model.generation_config.eos_token_id = None
        self._padding = self._model.config.pad_token_id
        self.pid = os.getpid()
        self.version = transformers.__version__
        self.settings = {"attention": "sdpa", "batch_size": BATCH_SIZE}

    def generate(self, requests: Sequence[BenchRequest]) -> dict[int, list[int]]:
        return harness.in_batches(requests, BATCH_SIZE, self._generate_batch)

    def _generate_batch(self, requests: Sequence[BenchRequest]) -> dict[int, list[int]]:
        width = max(len(request.prompt_token_ids) for request in requests)
        ids = self._torch.full((len(requests), width), self._padding)
        mask = self._torch.zeros_like(ids)
        for row, request in enumerate(requests):
            start = width - len(request.prompt_token_ids)
            ids[row, start:] = self._torch.tensor(request.prompt_token_ids)
            mask[row, start:] = 1
        with self._torch.inference_mode():
            answers = self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max(request.num_output_tokens for request in requests),
                do_sample=False,
                pad_token_id=self._padding,
            )
        return {
            request.id: answers[row, width : width + request.num_output_tokens].tolist()
            for row, request in enumerate(requests)
        }

    def close(self) -> None:
        """Nothing to stop."""


if __name__ == "__main__":
    raise SystemExit(
        harness.run(
            TransformersGenerate, harness.argument_parser("Run a workload on transformers' generate.")
        )
    )
