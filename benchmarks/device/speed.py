"""How fast a device is, how fast we are on it, and how fast transformers' continuous batching is beside."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.device.limits import Limits
from benchmarks.fixtures.models import Shape
from nightshift_engine import Engine, Request, SamplingParams


def measure_limits(device: torch.device, dtype: torch.dtype, *, quick: bool) -> Limits:
    """Bandwidth of a large copy, reads and writes together, and GEMM rate of a large square, of `device`."""
    num_bytes, side = (1 << 24, 512) if quick else (1 << 32, 8192)
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    copying = best_seconds(lambda: target.copy_(source), device)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    multiplying = best_seconds(lambda: a @ b, device)
    return Limits(2 * num_bytes / copying, 2 * side**3 / multiplying)


def best_seconds(function: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    """The shortest of some runs, after two to warm up."""
    seconds = []
    for _ in range(repeats + 2):
        synchronize(device)
        start = time.perf_counter()
        function()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[2:])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_prompts(shape: Shape, count: int, length: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(shape.vocab_size) for _ in range(length)] for _ in range(count)]


def prefill_seconds(engine: Engine, prompts: list[list[int]], device: torch.device) -> float:
    """Seconds from the first prompt going in to the first token of the last."""
    synchronize(device)
    start = time.perf_counter()
    _add(engine, prompts, 1, GREEDY)
    while engine.has_work:
        engine.step()
    synchronize(device)
    return time.perf_counter() - start


GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
WAYS_TO_SAMPLE = {
    "temperature": SamplingParams(ignore_eos=True),
    "top-k 20, top-p 0.95": SamplingParams(top_k=20, top_p=0.95, ignore_eos=True),
    "top-p 0.95": SamplingParams(top_p=0.95, ignore_eos=True),
    "min-p 0.1": SamplingParams(min_p=0.1, ignore_eos=True),
    "penalties": replace(GREEDY, repetition_penalty=1.1, presence_penalty=0.5),
    "logprobs 0": replace(GREEDY, logprobs=0),
    "logprobs 20": replace(GREEDY, logprobs=20),
}
"""Sampling whose cost is measured: a step's time beside that of a greedy one."""


def decode_step_seconds(
    engine: Engine,
    prompts: list[list[int]],
    num_steps: int,
    device: torch.device,
    sampling: SamplingParams = GREEDY,
) -> float:
    """Mean time of `num_steps` steps in which every sequence decodes, its first ones left out."""
    warm_up = 4
    # The first to start decode in every step in which others still have prompts: one at most for each.
    _add(engine, prompts, num_steps + warm_up + 4 + len(prompts), sampling)
    started: set[str] = set()
    while len(started) < len(prompts):
        started |= {output.id for output in engine.step() if output.token_ids}
    for _ in range(warm_up):
        engine.step()
    synchronize(device)
    start = time.perf_counter()
    num_tokens = sum(len(output.token_ids) for _ in range(num_steps) for output in engine.step())
    synchronize(device)
    seconds = time.perf_counter() - start
    while engine.has_work:
        engine.step()
    assert num_tokens == num_steps * len(prompts), f"{num_tokens} tokens in {num_steps} steps"
    return seconds / num_steps


def whole_tokens_per_s(engine: Engine, requests: list[Request], device: torch.device) -> float:
    """Output tokens per second, from the first prompt going in to the last token coming out."""
    synchronize(device)
    start = time.perf_counter()
    for request in requests:
        engine.add(request)
    num_tokens = 0
    while engine.has_work:
        num_tokens += sum(len(output.token_ids) for output in engine.step())
    seconds = time.perf_counter() - start
    wanted = sum(request.sampling.max_tokens or 0 for request in requests)
    assert num_tokens == wanted, f"{num_tokens} tokens came out, and not {wanted}"
    return num_tokens / seconds


def greedy_requests(prompts: list[list[int]], max_tokens: int) -> list[Request]:
    return _requests(prompts, max_tokens, GREEDY)


def _requests(prompts: list[list[int]], max_tokens: int, sampling: SamplingParams) -> list[Request]:
    params = replace(sampling, max_tokens=max_tokens)
    return [Request(str(number), prompt, params) for number, prompt in enumerate(prompts)]


def nano_vllm_requests(count: int = 256, longest: int = 1024, highest_id: int = 10_000) -> list[Request]:
    """The requests of nano-vllm's bench.py: all prompts are drawn first, then the limits of the answers."""
    rng = random.Random(0)
    shortest = min(100, longest)
    prompts = [
        [rng.randint(0, highest_id) for _ in range(rng.randint(shortest, longest))] for _ in range(count)
    ]
    limits = [rng.randint(shortest, longest) for _ in range(count)]
    return [
        Request(str(number), prompt, SamplingParams(temperature=0.6, max_tokens=limit, ignore_eos=True))
        for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]


def _add(engine: Engine, prompts: list[list[int]], max_tokens: int, sampling: SamplingParams) -> None:
    for request in _requests(prompts, max_tokens, sampling):
        engine.add(request)


class PeerFailed(Exception):
    """An error: transformers' continuous batching is missing or does not run; the message says why."""


@dataclass(frozen=True)
class PeerSpeed:
    """The speed of transformers' continuous batching."""

    tokens_per_second: float
    includes_setup: bool
    """It makes its memory and graphs anew within the time: it has no setting to keep them."""


def transformers_speed(model: Any, prompts: list[list[int]], max_tokens: int) -> PeerSpeed:
    """Output tokens per second of `generate_batch`, its second time over the same requests."""
    import transformers

    if not hasattr(model, "generate_batch"):
        raise PeerFailed("this transformers has no generate_batch")
    model.set_attn_implementation("sdpa")
    settings = transformers.GenerationConfig(
        max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    wanted: dict[str, Any] = {"progress_bar": False, "persistent_manager": True}
    if model.device.type == "cpu" and hasattr(transformers, "ContinuousBatchingConfig"):
        # It would take a share of all memory there is, and zero it.
        wanted["continuous_batching_config"] = transformers.ContinuousBatchingConfig(
            num_blocks=8, max_batch_tokens=64
        )
    known = inspect.signature(model.generate_batch).parameters
    options = {name: value for name, value in wanted.items() if name in known}

    def run() -> float:
        synchronize(model.device)
        start = time.perf_counter()
        results = model.generate_batch(inputs=prompts, generation_config=settings, **options)
        seconds = time.perf_counter() - start
        num_tokens = sum(len(result.generated_tokens) for result in results.values())
        if num_tokens != len(prompts) * max_tokens:
            raise PeerFailed(f"it gave {num_tokens} tokens instead of {len(prompts) * max_tokens}")
        return num_tokens / seconds

    try:
        run()
        return PeerSpeed(run(), includes_setup="persistent_manager" not in options)
    except Exception as error:
        raise PeerFailed(f"{type(error).__name__}: {error}") from error
    finally:
        if hasattr(model, "destroy_cached_continuous_batching_manager"):
            model.destroy_cached_continuous_batching_manager()
