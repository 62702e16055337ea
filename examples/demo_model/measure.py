"""Measure a demo checkpoint with transformers' own greedy `generate`, against the truth.

    python examples/demo_model/measure.py [--model DIR] [--every-number] [--dtype float32]

By default: all the numbers training never saw (about 20,000), then every number below 1,000 and every round
one. Exits 1 when fewer than 99 % of the unseen numbers are exact.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from nightshift.cli.demo import LARGEST_NUMBER, demo_model_path, is_held_out, number_in_words

EXACT_SHARE_MIN = 0.99
ROWS_PER_BATCH = 1_000
ANSWER_TOKENS_MAX = 24


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=demo_model_path())
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--every-number", action="store_true", help="all million numbers, which takes fifty times as long"
    )
    options = parser.parse_args()
    sys.exit(report(options.model, options.dtype, every_number=options.every_number))


def report(model_path: Path, dtype: str = "float32", *, every_number: bool = False) -> int:
    """Prints the exact-match figures; the exit code says whether the unseen numbers were good enough."""
    disable_progress_bar()
    everything = range(LARGEST_NUMBER + 1)
    unseen = [n for n in everything if is_held_out(n)]
    taught = [n for n in everything if n < 1_000 or n == int(str(n)[:2].ljust(len(str(n)), "0"))]
    share = _measure(f"held-out numbers ({dtype})", model_path, dtype, unseen)
    _measure(f"below 1,000 and round ({dtype})", model_path, dtype, taught)
    if every_number:
        _measure(f"every number ({dtype})", model_path, dtype, everything)
    return 0 if share >= EXACT_SHARE_MIN else 1


def answers(model_path: Path, dtype: str, numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Each number with the model's greedy answer, through the chat template."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype)
    waiting = iter(numbers)
    while batch := list(islice(waiting, ROWS_PER_BATCH)):
        chats = [[{"role": "user", "content": str(n)}] for n in batch]
        prompts = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            out = model.generate(**prompts, max_new_tokens=ANSWER_TOKENS_MAX, do_sample=False)
        texts = tokenizer.batch_decode(out[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
        yield from zip(batch, texts, strict=True)


def _measure(title: str, model_path: Path, dtype: str, numbers: Sequence[int]) -> float:
    started = time.monotonic()
    wrong = [(n, said) for n, said in answers(model_path, dtype, numbers) if said != number_in_words(n)]
    exact = len(numbers) - len(wrong)
    share = exact / len(numbers)
    seconds = time.monotonic() - started
    print(f"{title}: {exact:,} of {len(numbers):,} exact ({share:.3%}) in {seconds:.0f} s", flush=True)
    for n, said in wrong[:5]:
        print(f"  wrong: {n} was answered {said!r}", flush=True)
    return share


if __name__ == "__main__":
    main()
