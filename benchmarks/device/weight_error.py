"""Measures what weights in fewer bits do to answers whose truth is known, by transformers in float32.

    python -m benchmarks.device.weight_error

Linear layers' weights are rounded as `ENGINE_WEIGHT_DTYPE` rounds them, inputs are not. The demo model writes
numbers that it was not trained on, in words; the fraud example's classifier, trained here, scores
transactions; MiniLM looks for documents. A model without layers wide enough for groups keeps those.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from examples import fraud, search
from examples.demo_model import measure
from examples.harness.example import NotHere
from examples.harness.measures import auc
from nightshift.cli.demo import LARGEST_NUMBER, demo_model_path, is_held_out, number_in_words
from nightshift_engine.checkpoint.narrow.weight import Code, round_weight

CODES: tuple[Code | None, ...] = (None, "int8", "fp8", "int4")
NUMBERS = 2_000
"""Numbers that training never saw."""
TEXTS_PER_PASS = 64


def rounded(model: Any, code: Code | None) -> Any:
    """A copy of a model whose linear layers have rounded weights, but for the one that makes logits."""
    model = copy.deepcopy(model).eval()
    head = model.get_output_embeddings()
    for module in model.modules():
        if code is None or type(module) is not torch.nn.Linear or module is head:
            continue
        if (weight := round_weight(module.weight, code)) is not None:
            module.weight.data = weight.dequantized(torch.float32)
    return model


def exact_answers(code: Code | None) -> str:
    """The demo model's share of right answers."""
    path = demo_model_path()
    unseen = [number for number in range(LARGEST_NUMBER + 1) if is_held_out(number)][::10][:NUMBERS]
    with tempfile.TemporaryDirectory() as folder:
        rounded(AutoModelForCausalLM.from_pretrained(path), code).save_pretrained(folder)
        AutoTokenizer.from_pretrained(path).save_pretrained(folder)
        said = list(measure.answers(Path(folder), "float32", unseen))
    exact = sum(text == number_in_words(number) for number, text in said)
    return f"demo model: {exact:,} of {len(said):,} answers exact ({exact / len(said):.2%})"


def fraud_scores(directory: Path) -> Callable[[Code | None], str]:
    """Trains the fraud example's classifier; measures the area under the ROC curve of its scores."""
    fraud.train(directory)
    model = AutoModelForSequenceClassification.from_pretrained(directory)
    today = fraud.transactions(fraud.TRANSACTIONS, seed=3)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer([fraud.text_of(one) for one in today], return_tensors="pt")

    @torch.inference_mode()
    def measured(code: Code | None) -> str:
        logits = rounded(model, code)(**inputs).logits
        scores = (logits[:, 1] - logits[:, 0]).tolist()
        return f"fraud classifier: AUC {auc(scores, fraud.outcomes(today, seed=4)):.4f}"

    return measured


def recall() -> Callable[[Code | None], str]:
    """MiniLM's recall@5 over the documents of the search example. Raises NotHere."""
    [directory] = search.models(Path())
    pairs = list(search.readmes().values())
    model, tokenizer = AutoModel.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)

    @torch.inference_mode()
    def vectors(model: Any, texts: list[str]) -> Any:
        parts = []
        for start in range(0, len(texts), TEXTS_PER_PASS):
            some = texts[start : start + TEXTS_PER_PASS]
            inputs = tokenizer(some, padding=True, truncation=True, max_length=256, return_tensors="pt")
            mask = inputs["attention_mask"][..., None]
            hidden = model(**inputs).last_hidden_state * mask
            pooled = hidden.sum(1) / mask.sum(1)
            parts.append(torch.nn.functional.normalize(pooled, dim=-1))
        return torch.cat(parts).numpy()

    def measured(code: Code | None) -> str:
        narrow = rounded(model, code)
        questions, documents = (vectors(narrow, [pair[side] for pair in pairs]) for side in (0, 1))
        similarities = questions @ documents.T
        ranks = (similarities > np.diagonal(similarities)[:, None]).sum(axis=1)
        share = float((ranks < search.FIRST).mean())
        return f"MiniLM: recall@{search.FIRST} {share:.1%} over {len(pairs)} questions"

    return measured


def main() -> None:
    """Prints a line for each model and code."""
    with tempfile.TemporaryDirectory() as folder:
        measures = [exact_answers, fraud_scores(Path(folder))]
        try:
            measures.append(recall())
        except NotHere as error:
            print(f"MiniLM: not measured, {error}")
        for measured in measures:
            for code in CODES:
                print(f"{code or 'float32':8} {measured(code)}", flush=True)


if __name__ == "__main__":
    main()
