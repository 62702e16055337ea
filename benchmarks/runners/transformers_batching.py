"""transformers' continuous batching, by its manager: `generate_batch` has one length for all requests."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from typing import Any

from benchmarks.runners import harness
from benchmarks.workloads import RECIPES, BenchRequest

PAGE_TOKENS = 256
POLL_SECONDS = 1.0


class TransformersBatching:
    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch
        import transformers
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        torch.set_num_threads(arguments.threads)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            arguments.model, dtype=arguments.precision, attn_implementation="sdpa"
        ).eval()
        # By default it takes 60 % of the memory. Enough for every running request, but no more: the masks
        # of its dense attention are sized by it.
        pages_per_request = math.ceil(_longest_request(arguments) / PAGE_TOKENS)
        num_pages = arguments.max_num_seqs * pages_per_request
        self._batching = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS, num_blocks=num_pages, max_requests_per_batch=arguments.max_num_seqs
        )
        self._generation = transformers.GenerationConfig(
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=self._model.config.pad_token_id,
            max_new_tokens=RECIPES[arguments.workload].output.high,
        )
        self.pid = os.getpid()
        self.version = transformers.__version__
        self.settings = {
            "attention": "sdpa",
            "page_size": PAGE_TOKENS,
            "num_blocks": num_pages,
            "max_requests_per_batch": arguments.max_num_seqs,
        }

    def generate(self, requests: Sequence[BenchRequest]) -> dict[int, list[int]]:
        outputs: dict[int, list[int]] = {}
        session = self._model.continuous_batching_context_manager(
            generation_config=self._generation,
            continuous_batching_config=self._batching,
            persistent_manager=True,
        )
        with session as manager:
            for request in requests:
                manager.add_request(
                    list(request.prompt_token_ids),
                    request_id=str(request.id),
                    max_new_tokens=request.num_output_tokens,
                    eos_token_id=-1,
                )
            while len(outputs) < len(requests):
                result = manager.get_result(timeout=POLL_SECONDS)
                if result is not None and result.is_finished():
                    outputs[int(result.request_id)] = list(result.generated_tokens)
                elif result is None and not manager.is_running():
                    raise RuntimeError("transformers' generation thread ended early")
        return outputs

    def close(self) -> None:
        self._model.destroy_cached_continuous_batching_manager()


def _longest_request(arguments: argparse.Namespace) -> int:
    """Tokens of the longest request that the workload may have, prompt and output."""
    recipe = RECIPES[arguments.workload]
    return recipe.num_shared_prefix_tokens + recipe.prompt.high + recipe.output.high


if __name__ == "__main__":
    raise SystemExit(
        harness.run(
            TransformersBatching, harness.argument_parser("Run a workload on transformers' batching.")
        )
    )
