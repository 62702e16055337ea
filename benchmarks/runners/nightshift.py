"""Our own engines, called as a worker calls them: add, then step until nothing is left."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.runners import harness
from benchmarks.runners.harness import ENCODER_TOKENS_MAX, KV_CACHE_GIB, Loaded, Task

if TYPE_CHECKING:
    from nightshift_engine import Engine, EngineConfig

VERSION = "this checkout"


class InvalidSettingError(ValueError):
    """An unknown option or a refused value; the message names it."""


def load_engine(config: EngineConfig, threads: int) -> Engine:
    """The decoder's engine on `threads` threads of torch's pool, which wait as a worker's do."""
    _limit_threads(threads)
    from nightshift_engine import Engine

    return Engine.load(config)


def decoder(task: Task) -> Loaded:
    from nightshift_engine import EngineConfig, Request, SamplingParams

    engine = load_engine(EngineConfig(**engine_settings(task)), task.threads)

    def run(items: Sequence[tuple[Sequence[int], int]]) -> list[list[int]]:
        for number, (prompt, num_output) in enumerate(items):
            sampling = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
            engine.add(
                Request(str(number), tuple(prompt), sampling, priority="background", group="benchmark")
            )
        outputs: list[list[int]] = [[] for _ in items]
        while engine.has_work:
            for output in engine.step():
                outputs[int(output.id)].extend(output.token_ids)
        return outputs

    return Loaded(run, VERSION)


def engine_settings(task: Task) -> dict[str, Any]:
    """EngineConfig fields from a runner's arguments. Raises InvalidSettingError."""
    from nightshift_engine import EngineConfig

    known = {field.name for field in dataclasses.fields(EngineConfig)}
    settings: dict[str, Any] = {
        "model": task.model,
        "device": "cpu",
        "dtype": task.dtype,
        "max_num_seqs": task.max_num_seqs,
        "kv_cache_bytes": KV_CACHE_GIB * 2**30,
        "speculation": "auto" if task.work.get("drafts") else "off",
    }
    for assignment in task.settings:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InvalidSettingError(f"--set takes FIELD=VALUE, got {assignment!r}")
        if name not in known:
            raise InvalidSettingError(
                f"this engine has no setting {name!r}; it has {', '.join(sorted(known))}"
            )
        settings[name] = _parsed(value)
    return settings


def embeddings(task: Task) -> Loaded:
    _limit_threads(task.threads)
    from nightshift_engine.models import EncoderModel

    dtype: Any = task.dtype
    model = EncoderModel.load(task.model, dtype, "cpu", max_length=ENCODER_TOKENS_MAX)
    encode = encoding(model)
    return Loaded(lambda texts: [vectors[0] for vectors in encode(model.tokenize_all(texts))], VERSION)


def classification(task: Task) -> Loaded:
    score = _scoring(task)
    return Loaded(lambda texts: score([(text,) for text in texts], is_ranking=False), VERSION)


def rerank(task: Task) -> Loaded:
    score = _scoring(task)

    def run(queries: Sequence[tuple[str, Sequence[str]]]) -> list[list[float]]:
        pairs = [[(query, document, ENCODER_TOKENS_MAX) for document in texts] for query, texts in queries]
        return [[scores[0] for scores in score(one, is_ranking=True)] for one in pairs]

    return Loaded(run, VERSION)


def _scoring(task: Task) -> Callable[..., list[Any]]:
    """Scores of texts or pairs of texts by a classifier, which are the arguments of `PairText`."""
    _limit_threads(task.threads)
    from nightshift_engine.encoders import PairText, activated
    from nightshift_engine.models import load_scorer

    dtype: Any = task.dtype
    model = load_scorer(task.model, dtype, "cpu", ENCODER_TOKENS_MAX)
    encode = encoding(model)

    def score(pairs: Sequence[Any], *, is_ranking: bool) -> list[Any]:
        activation = model.labels.ranking_activation if is_ranking else model.labels.activation
        tokens = model.tokenize_all([PairText(*pair) for pair in pairs])
        return [activated(logits[0], activation) for logits in encode(tokens)]

    return score


def encoding(model: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """Runs tokenized inputs, each a request of its own, and returns their vectors or logits in order."""
    from nightshift_engine.encoders import EncoderEngine, EncodeRequest
    from nightshift_engine.errors import EncodeQueueFull

    engine = EncoderEngine(model)

    def encode(inputs: Sequence[Any]) -> list[Any]:
        outputs: list[Any] = [None] * len(inputs)

        def step() -> None:
            for output in engine.step():
                outputs[int(output.id)] = output.embeddings

        for number, tokens in enumerate(inputs):
            request = EncodeRequest(str(number), [tokens], "background")
            while True:
                try:
                    engine.add(request)
                    break
                except EncodeQueueFull:
                    step()
        while engine.has_work:
            step()
        return outputs

    return encode


def _limit_threads(threads: int) -> None:
    from nightshift_engine import limit_spinning

    limit_spinning(os.environ)
    import torch

    torch.set_num_threads(threads)


def _parsed(value: str) -> Any:
    """Numbers, true, false and null as such, anything else as text."""
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


LOADERS = {
    "decoder": decoder,
    "embeddings": embeddings,
    "classification": classification,
    "rerank": rerank,
}

if __name__ == "__main__":
    try:
        harness.main(LOADERS)
    except InvalidSettingError as error:
        raise SystemExit(str(error)) from None
