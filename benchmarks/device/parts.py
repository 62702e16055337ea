"""Measures an engine on a device, a function for each part. Each yields its figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.device import speed
from benchmarks.device.limits import Limits, layers_flops
from benchmarks.fixtures.models import Shape
from benchmarks.fixtures.workloads import MIXED_SEED, mixed_items
from nightshift_engine import Engine, Request, SamplingParams

WHOLE_SEED = 1
NEW_PROMPTS = ((0, 0), (1, 64), (1, 256), (1, 512), (4, 256), (16, 256))
"""Prompts that each step carries beside sequences that decode, and their tokens."""
MIXED_STEPS, MIXED_WARM_UPS = 25, 4


@dataclass(frozen=True)
class Figure:
    """A measured value. `share` is that of the value that the device's own limits allow, if it is known."""

    model: str
    part: str
    case: str
    value: float
    unit: str
    share: float | None = None

    def __str__(self) -> str:
        of_limit = "" if self.share is None else f", {self.share:7.2%} of the roofline"
        return f"  {self.part:12} {self.case:38} {self.value:12,.2f} {self.unit}{of_limit}"


@dataclass(frozen=True)
class Subject:
    """An engine over random weights, and what is known of its device."""

    name: str
    engine: Engine
    shape: Shape
    limits: Limits
    device: torch.device
    itemsize: int
    batches: tuple[int, ...]
    quick: bool

    @property
    def prompt_length(self) -> int:
        return 32 if self.quick else 512

    @property
    def num_steps(self) -> int:
        return 8 if self.quick else 64

    def prompts(self, count: int, length: int, seed: int) -> list[list[int]]:
        return speed.random_prompts(self.shape, count, length, seed)

    def figure(self, part: str, case: str, value: float, unit: str, share: float | None = None) -> Figure:
        return Figure(self.name, part, case, value, unit, share)


def prompts(subject: Subject) -> Iterator[Figure]:
    length = subject.prompt_length
    for batch in subject.batches:
        drawn = subject.prompts(batch, length, seed=batch)
        speed.prefill_seconds(subject.engine, drawn, subject.device)  # to warm up
        seconds = speed.prefill_seconds(subject.engine, drawn, subject.device)
        least = subject.limits.prefill_seconds(subject.shape, subject.itemsize, batch, length)
        case = f"{batch} x {length}"
        yield subject.figure("prompts", case, batch * length / seconds, "tokens/s", least / seconds)


def decode(subject: Subject) -> Iterator[Figure]:
    for batch in subject.batches:
        drawn = subject.prompts(batch, subject.prompt_length, seed=batch)
        seconds = speed.decode_step_seconds(subject.engine, drawn, subject.num_steps, subject.device)
        context = subject.prompt_length + subject.num_steps / 2
        least = subject.limits.decode_seconds(subject.shape, subject.itemsize, batch, batch * context)
        case = f"{batch} sequences, context {context:.0f}"
        yield subject.figure("decode", case, batch / seconds, "tokens/s", least / seconds)


def mixed(subject: Subject) -> Iterator[Figure]:
    """Steps that carry new prompts beside sequences that decode: 200 of 256."""
    engine, device = subject.engine, subject.device
    cases = ((0, 0), (1, 16)) if subject.quick else NEW_PROMPTS
    count = max(1, max(subject.batches) * 200 // 256)
    steps = MIXED_STEPS + MIXED_WARM_UPS
    limit = len(cases) * steps + 64 + count
    for request in speed.greedy_requests(subject.prompts(count, subject.prompt_length, MIXED_SEED), limit):
        engine.add(request)
    started = set[str]()
    while len(started) < count:
        started |= {output.id for output in engine.step() if output.token_ids}
    for per_step, length in cases:
        seconds = _mixed_step_seconds(subject, per_step, length)
        context = count * (subject.prompt_length + limit / 2)
        least = subject.limits.decode_seconds(subject.shape, subject.itemsize, count, context)
        least += per_step * layers_flops(subject.shape, 0, length) / subject.limits.flops_per_second
        case = f"{count} decoding + {per_step} x {length}"
        yield subject.figure("mixed step", case, 1000 * seconds, "ms", least / seconds)
    for id in started:
        engine.abort(id)
    while engine.has_work:
        engine.step()
    speed.synchronize(device)


def _mixed_step_seconds(subject: Subject, per_step: int, length: int) -> float:
    """Mean time of a step, the first `MIXED_WARM_UPS` left out. Each new prompt is answered by one token."""
    one_token = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    new = iter(subject.prompts(per_step * (MIXED_STEPS + MIXED_WARM_UPS), length, seed=length))
    for number in range(MIXED_WARM_UPS + MIXED_STEPS):
        if number == MIXED_WARM_UPS:
            speed.synchronize(subject.device)
            began_s = time.perf_counter()
        for place in range(per_step):
            subject.engine.add(Request(f"new {length} {number} {place}", next(new), one_token))
        subject.engine.step()
    speed.synchronize(subject.device)
    return (time.perf_counter() - began_s) / MIXED_STEPS


def requests(subject: Subject) -> Iterator[Figure]:
    """1,024 requests of mixed lengths, twice, as the rows of a shard."""
    count, longest = (8, 16) if subject.quick else (1024, 512)
    for run in (1, 2):
        tokens_per_s = speed.whole_tokens_per_s(
            subject.engine, mixed_requests(subject.shape, count, longest), subject.device
        )
        case = f"{count} of {longest // 16}-{longest} in, {longest // 8}-{longest} out, run {run}"
        yield subject.figure("requests", case, tokens_per_s, "tokens/s")


def mixed_requests(shape: Shape, count: int, longest: int) -> list[Request]:
    """Greedy requests for the lengths of `mixed_items`, of one group of rows."""
    return [
        Request(
            str(number),
            prompt,
            SamplingParams(temperature=0.0, max_tokens=num_out, ignore_eos=True),
            priority="background",
            group="benchmark",
        )
        for number, (prompt, num_out) in enumerate(mixed_items(shape.vocab_size, count, longest))
    ]


def even(subject: Subject) -> Iterator[Figure]:
    """Prompts in, all tokens out, of equal lengths."""
    drawn, max_tokens = even_prompts(subject.shape, subject.quick)
    requests = speed.greedy_requests(drawn, max_tokens)
    speed.whole_tokens_per_s(subject.engine, requests[:2], subject.device)
    tokens_per_s = speed.whole_tokens_per_s(subject.engine, requests, subject.device)
    yield subject.figure("even", f"{len(drawn)} of {len(drawn[0])} + {max_tokens}", tokens_per_s, "tokens/s")


def even_prompts(shape: Shape, quick: bool) -> tuple[list[list[int]], int]:
    """The prompts, and the tokens of each answer."""
    count, length, max_tokens = (4, 16, 8) if quick else (256, 256, 128)
    return speed.random_prompts(shape, count, length, WHOLE_SEED), max_tokens


def nano(subject: Subject) -> Iterator[Figure]:
    """nano-vllm's benchmark: prompts and answers of 100 to 1,024 tokens, drawn at temperature 0.6."""
    requests = speed.nano_vllm_requests(*((4, 16, 100) if subject.quick else ()))
    tokens_per_s = speed.whole_tokens_per_s(subject.engine, requests, subject.device)
    yield subject.figure("nano", f"nano-vllm's {len(requests)} requests", tokens_per_s, "tokens/s")


def sampling(subject: Subject) -> Iterator[Figure]:
    """Share of a greedy decoding step that each way to sample adds to it."""
    engine, device, batch = subject.engine, subject.device, max(subject.batches)
    drawn = subject.prompts(batch, 32, seed=batch)
    greedy_s = speed.decode_step_seconds(engine, drawn, subject.num_steps, device)
    for name, params in speed.WAYS_TO_SAMPLE.items():
        speed.decode_step_seconds(engine, drawn, 4, device, params)  # to warm up
        step_s = speed.decode_step_seconds(engine, drawn, subject.num_steps, device, params)
        yield subject.figure("sampling", f"{batch} sequences, {name}", 100 * (step_s / greedy_s - 1), "%")


def shared(subject: Subject) -> Iterator[Figure]:
    """Decoding after prompts of 700 tokens, of which 512 are the same, over that after different prompts.

    The engine finds prefixes.
    """
    engine, device, steps = subject.engine, subject.device, subject.num_steps
    batch = max(subject.batches)
    num_shared, num_own = (32, 12) if subject.quick else (512, 188 - steps // 2)
    prefix = subject.prompts(1, num_shared, seed=2)[0]
    ends = subject.prompts(batch, num_own, seed=3)
    speed.prefill_seconds(engine, [[*prefix, 1]], device)  # the others find it
    together_s = speed.decode_step_seconds(engine, [prefix + end for end in ends], steps, device)
    apart = subject.prompts(batch, num_shared + num_own, seed=4)
    apart_s = speed.decode_step_seconds(engine, apart, steps, device)
    case = f"{batch} sequences, {num_shared} of {num_shared + num_own} tokens"
    yield subject.figure("shared", case, batch / together_s, "tokens/s")
    yield subject.figure("shared", f"{case}, over apart", apart_s / together_s, "")


def transformers(model: Any, name: str, shape: Shape, quick: bool) -> Iterator[Figure]:
    """The requests of `even` by transformers' continuous batching, on the same weights."""
    drawn, max_tokens = even_prompts(shape, quick)
    theirs = speed.transformers_speed(model, drawn, max_tokens)
    note = ", its set-up included" if theirs.includes_setup else ""
    case = f"{len(drawn)} of {len(drawn[0])} + {max_tokens}{note}"
    yield Figure(name, "transformers", case, theirs.tokens_per_second, "tokens/s")


OF_ENGINE: Mapping[str, Callable[[Subject], Iterator[Figure]]] = {
    "decode": decode,
    "prompts": prompts,
    "mixed": mixed,
    "requests": requests,
    "even": even,
    "nano": nano,
    "sampling": sampling,
}
"""Parts that share one engine, by name, in their order."""
