"""Histograms of requests and steps for Prometheus, by model and class; named after vLLM's."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from workers.engine.histograms import ClassHistograms, Histogram
from workers.online.times import OnlineTimes, RequestTimes
from workers.serving.model_server import ModelServer


@dataclass(frozen=True)
class _OfClass:
    of: Callable[[ClassHistograms], Histogram]
    name: str
    help: str


@dataclass(frozen=True)
class _Online:
    of: Callable[[RequestTimes], Histogram]
    name: str
    help: str


ENGINE: Final = (
    _OfClass(
        lambda each: each.queue_s,
        "nightshift_queue_seconds",
        "From a request's arrival at the engine to the first step with some of it",
    ),
    _OfClass(lambda each: each.prefill_s, "nightshift_prefill_seconds", "From then to its first token"),
    _OfClass(
        lambda each: each.inter_token_s, "nightshift_inter_token_seconds", "Between two tokens of a sequence"
    ),
    _OfClass(
        lambda each: each.decode_s,
        "nightshift_decode_seconds",
        "From a sequence's first token to its last",
    ),
)
ONLINE: Final = (
    _Online(
        lambda each: each.first_token_s,
        "nightshift_time_to_first_token_seconds",
        "From the submit of an online request to its first token",
    ),
    _Online(
        lambda each: each.request_s,
        "nightshift_request_seconds",
        "From the submit of an online request to its answer",
    ),
)
BY_CLASS: Final = ("model", "class")


def request_metrics(servers: Iterable[ModelServer], online: OnlineTimes) -> Iterator[Metric]:
    """As of now."""
    engines = [(server.model.id, server.histograms) for server in servers]
    batches = HistogramMetricFamily(
        "nightshift_batch_size", "Sequences or inputs of a step", labels=("model",)
    )
    tokens = HistogramMetricFamily(
        "nightshift_tokens_per_step", "Tokens of a step, padding not counted", labels=("model",)
    )
    prompts = CounterMetricFamily("nightshift_prompt_tokens", "Tokens of requests begun", labels=BY_CLASS)
    generated = CounterMetricFamily("nightshift_generation_tokens", "Tokens generated", labels=BY_CLASS)
    for model, histograms in engines:
        if histograms is None:
            continue
        _add(batches, (model,), histograms.batch_size)
        _add(tokens, (model,), histograms.tokens_per_step)
        for name, of_class in list(histograms.by_class.items()):
            prompts.add_metric((model, name), of_class.prompt_tokens)
            generated.add_metric((model, name), of_class.generation_tokens)
    yield from (batches, tokens, prompts, generated)
    for each in ENGINE:
        family = HistogramMetricFamily(each.name, each.help, labels=BY_CLASS)
        for model, histograms in engines:
            for name, of_class in list(histograms.by_class.items()) if histograms is not None else ():
                _add(family, (model, name), each.of(of_class))
        yield family
    for one in ONLINE:
        family = HistogramMetricFamily(one.name, one.help, labels=BY_CLASS)
        for label, times in online:
            _add(family, label, one.of(times))
        yield family


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram) -> None:
    family.add_metric(labels, histogram.cumulative(), histogram.sum)
