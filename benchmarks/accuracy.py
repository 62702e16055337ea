"""What a narrower precision costs on the trained demo model: exact answers and log-probabilities.

    .venv/bin/python -m benchmarks.accuracy [--rows 2000]

Every variant answers the same numbers that the demo model never saw. *Exact* compares with the truth, *same
tokens* with float32; the shift is that of the tokens' log-probabilities, as far as the answers agree.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from typing import Any

from nightshift.demo import LARGEST_NUMBER, demo_model_path, is_held_out, number_in_words
from workers.engine import Completion, Engine, EngineConfig, InvalidConfig, Request, SamplingParams

VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "float32, KV int8": {"dtype": "float32", "kv_cache_dtype": "int8"},
    "bfloat16, KV int8": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "float32, weights int8": {"dtype": "float32", "weight_dtype": "int8"},
    "bfloat16, weights int8": {"dtype": "bfloat16", "weight_dtype": "int8"},
}
ANSWER_TOKENS_MAX = 24


@dataclass(frozen=True)
class Accuracy:
    """One variant's answers against the truth and against float32's."""

    exact: float
    same_tokens: float
    mean_shift: float
    largest_shift: float

    @classmethod
    def of(cls, numbers: list[int], answers: list[Completion], reference: list[Completion]) -> Accuracy:
        """`answers` and `reference` are to `numbers`, in order, with log-probabilities."""
        exact = [answer.text == number_in_words(n) for n, answer in zip(numbers, answers, strict=True)]
        pairs = list(zip(answers, reference, strict=True))
        shifts = [shift for pair in pairs for shift in shifts_of(*pair)]
        return cls(
            exact=statistics.mean(exact),
            same_tokens=statistics.mean(mine.token_ids == theirs.token_ids for mine, theirs in pairs),
            mean_shift=statistics.mean(shifts),
            largest_shift=max(shifts),
        )


def shifts_of(answer: Completion, reference: Completion) -> list[float]:
    """Differences in log-probability of equal tokens, up to the first that differs."""
    shifts = []
    for number, (mine, theirs) in enumerate(zip(answer.logprobs, reference.logprobs, strict=False)):
        if answer.token_ids[number] != reference.token_ids[number]:
            break
        shifts.append(abs(mine.logprob - theirs.logprob))
    return shifts


def answer(numbers: list[int], settings: dict[str, Any]) -> list[Completion]:
    """The demo model's greedy answers, in order. Raises `InvalidConfig` for an unsupported precision."""
    engine = Engine.load(EngineConfig(str(demo_model_path()), device="cpu", **settings))
    sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS_MAX, logprobs=0)
    completions = {str(n): Completion(str(n)) for n in numbers}
    for n in numbers:
        prompt = engine.tokenizer.render_chat([{"role": "user", "content": str(n)}])
        engine.add(Request(str(n), prompt, sampling))
    while engine.has_work:
        for output in engine.step():
            completions[output.id].append(output)
    return [completions[str(n)] for n in numbers]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000, help="numbers to answer, at most 19,768")
    rows = parser.parse_args().rows
    if rows < 1:
        parser.error(f"--rows must be at least 1, got {rows}")
    numbers = [n for n in range(LARGEST_NUMBER + 1) if is_held_out(n)]
    numbers = numbers[:: max(1, len(numbers) // rows)][:rows]
    reference = answer(numbers, VARIANTS["float32"])
    print(f"{len(numbers)} numbers\n")
    print("| precision | exact | same tokens as float32 | mean shift of a log-probability | largest |")
    print("|---|--:|--:|--:|--:|")
    for name, settings in VARIANTS.items():
        try:
            found = Accuracy.of(numbers, answer(numbers, settings), reference)
        except InvalidConfig as error:
            print(f"| {name} | not here: {error} | | | |")
            continue
        shares = f"{found.exact:.2%} | {found.same_tokens:.2%}"
        print(f"| {name} | {shares} | {found.mean_shift:.1e} | {found.largest_shift:.1e} |", flush=True)


if __name__ == "__main__":
    main()
