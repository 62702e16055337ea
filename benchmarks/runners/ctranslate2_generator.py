"""CTranslate2's Generator: static batches that each request leaves at its own length, by a step callback."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.runners import harness
from benchmarks.workloads import RECIPES, BenchRequest

BATCH_SIZE = 32


class CTranslate2Generator:
    def __init__(self, arguments: argparse.Namespace) -> None:
        import ctranslate2

        self._generator: Any = ctranslate2.Generator(
            arguments.model,
            device="cpu",
            compute_type="int8" if arguments.precision == "int8" else arguments.precision,
            inter_threads=1,
            intra_threads=arguments.threads,
        )
        self._vocabulary: list[str] = json.loads((Path(arguments.model) / "vocabulary.json").read_text())
        self._num_shared = RECIPES[arguments.workload].num_shared_prefix_tokens
        self.pid = os.getpid()
        self.version = ctranslate2.__version__
        self.settings = {"batch_size": BATCH_SIZE, "compute_type": self._generator.compute_type}

    def generate(self, requests: Sequence[BenchRequest]) -> dict[int, list[int]]:
        return harness.in_batches(requests, BATCH_SIZE, self._generate_batch)

    def _generate_batch(self, requests: Sequence[BenchRequest]) -> dict[int, list[int]]:
        outputs: dict[int, list[int]] = {request.id: [] for request in requests}

        def take(step: Any) -> bool:
            """Keep a token; True ends its sequence, and the batch goes on without it."""
            request = requests[int(step.batch_id)]
            tokens = outputs[request.id]
            if len(tokens) < request.num_output_tokens:
                tokens.append(step.token_id)
            return len(tokens) >= request.num_output_tokens

        prefixes = {request.prompt_token_ids[: self._num_shared] for request in requests}
        # The warm-up's prompts share nothing; then there is no prefix to compute once.
        num_shared = self._num_shared if len(prefixes) == 1 else 0
        longest = max(request.num_output_tokens for request in requests)
        self._generator.generate_batch(
            [self._words(request.prompt_token_ids[num_shared:]) for request in requests],
            static_prompt=self._words(requests[0].prompt_token_ids[:num_shared]) or None,
            cache_static_prompt=True,
            max_length=longest,
            min_length=longest,
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
            end_token="</s>",
            callback=take,
            max_batch_size=0,
        )
        return outputs

    def _words(self, token_ids: Sequence[int]) -> list[str]:
        return [self._vocabulary[token_id] for token_id in token_ids]

    def close(self) -> None:
        """It ends with this process."""


if __name__ == "__main__":
    raise SystemExit(
        harness.run(CTranslate2Generator, harness.argument_parser("Run a workload on CTranslate2."))
    )
