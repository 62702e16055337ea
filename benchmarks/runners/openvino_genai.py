"""OpenVINO GenAI's ContinuousBatchingPipeline on token ids; KV in the precision that is computed in."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from benchmarks.runners import harness
from benchmarks.workloads import RECIPES, BenchRequest

MAX_NUM_BATCHED_TOKENS = 256

# With int8 weights it computes in the machine's best precision and keeps its own defaults.
HINTS = {
    "float32": {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"},
    "bfloat16": {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"},
    "int8": {},
}


class OpenVinoGenAi:
    def __init__(self, arguments: argparse.Namespace) -> None:
        import numpy
        import openvino
        import openvino_genai

        self._numpy, self._openvino, self._genai = numpy, openvino, openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = max(1, round(arguments.kv_cache_gib))
        scheduler.max_num_seqs = arguments.max_num_seqs
        scheduler.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
        # It costs a little where nothing is shared, so it is on only where it helps.
        scheduler.enable_prefix_caching = RECIPES[arguments.workload].num_shared_prefix_tokens > 0
        properties = {"INFERENCE_NUM_THREADS": arguments.threads, **HINTS[arguments.precision]}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            arguments.model, scheduler, "CPU", properties
        )
        self.pid = os.getpid()
        self.version = openvino_genai.__version__
        self.settings = {
            **properties,
            "max_num_seqs": arguments.max_num_seqs,
            "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
            "prefix_caching": scheduler.enable_prefix_caching,
        }

    def generate(self, requests: Sequence[BenchRequest]) -> dict[int, list[int]]:
        prompts, configs = [], []
        for request in requests:
            ids = self._numpy.array([request.prompt_token_ids], dtype=self._numpy.int64)
            prompts.append(self._openvino.Tensor(ids))
            config = self._genai.GenerationConfig()
            config.max_new_tokens = request.num_output_tokens
            config.ignore_eos = True
            config.do_sample = False
            configs.append(config)
        answers = self._pipeline.generate(prompts, configs)
        return {
            request.id: list(answer.m_generation_ids[0])
            for request, answer in zip(requests, answers, strict=True)
        }

    def close(self) -> None:
        """It ends with this process."""


if __name__ == "__main__":
    raise SystemExit(harness.run(OpenVinoGenAi, harness.argument_parser("Run a workload on OpenVINO GenAI.")))
