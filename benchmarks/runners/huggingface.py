"""transformers' static `generate` and its classification pipeline, and sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.runners import harness
from benchmarks.runners.harness import ENCODER_TOKENS_MAX, Loaded, Task, in_batches

Items = Sequence[tuple[Sequence[int], int]]


def generate(task: Task) -> Loaded:
    """Static batches in order of arrival, each as long as its longest request.

    Only the tokens that each request wants are counted: the rest is what static batching wastes.
    """
    import torch
    import transformers

    model = _decoder(task)
    model.generation_config.eos_token_id = None
    padding = model.config.pad_token_id

    def generate_batch(items: Items) -> list[list[int]]:
        width = max(len(prompt) for prompt, _ in items)
        ids = torch.full((len(items), width), padding)
        mask = torch.zeros_like(ids)
        for row, (prompt, _) in enumerate(items):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        with torch.inference_mode():
            answers = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max(num_output for _, num_output in items),
                do_sample=False,
                pad_token_id=padding,
            )
        return [
            answers[row, width : width + num_output].tolist() for row, (_, num_output) in enumerate(items)
        ]

    def run(items: Items) -> list[Any]:
        return in_batches(
            range(len(items)),
            task.batch_size,
            lambda indices: generate_batch([items[index] for index in indices]),
        )

    return Loaded(run, transformers.__version__)


def pipeline(task: Task) -> Loaded:
    """Text classification: batches in order of arrival, padded."""
    import torch
    import transformers

    torch.set_num_threads(task.threads)
    classify: Any = transformers.pipeline(
        "text-classification",
        model=task.model,
        dtype=getattr(torch, task.dtype),
        batch_size=task.batch_size,
        device="cpu",
    )
    labels = sorted(classify.model.config.label2id, key=classify.model.config.label2id.get)

    def run(texts: Sequence[str]) -> list[Any]:
        outputs = []
        for scores in classify(list(texts), top_k=None):
            by_label = {score["label"]: score["score"] for score in scores}
            outputs.append([by_label[label] for label in labels])
        return outputs

    return Loaded(run, transformers.__version__)


def sentence_transformers(task: Task) -> Loaded:
    import sentence_transformers
    import torch

    torch.set_num_threads(task.threads)
    model = sentence_transformers.SentenceTransformer(
        task.model, device="cpu", model_kwargs={"dtype": getattr(torch, task.dtype)}
    )
    model.max_seq_length = ENCODER_TOKENS_MAX

    def run(texts: Sequence[str]) -> Any:
        return model.encode(
            list(texts),
            batch_size=task.batch_size,
            show_progress_bar=False,
            normalize_embeddings=True,
            convert_to_numpy=True,
        )

    return Loaded(run, sentence_transformers.__version__)


def _decoder(task: Task) -> Any:
    import torch
    import transformers

    torch.set_num_threads(task.threads)
    return transformers.AutoModelForCausalLM.from_pretrained(
        task.model, dtype=task.dtype, attn_implementation="sdpa"
    ).eval()


if __name__ == "__main__":
    harness.main(
        {
            "generate": generate,
            "pipeline": pipeline,
            "sentence_transformers": sentence_transformers,
        }
    )
