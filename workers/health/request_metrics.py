"""Histograms of requests and steps for Prometheus, by model and class; named after vLLM's."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric

from nightshift.process.metrics import engine
from nightshift.process.metrics import worker as declared
from nightshift.process.metrics.family import HistogramFamily
from nightshift_engine.core.histograms import ClassHistograms, Histogram
from workers.online.times import OnlineTimes, RequestTimes
from workers.serving.model_server import ModelServer

OF_ENGINE: Final[dict[HistogramFamily, Callable[[ClassHistograms], Histogram]]] = {
    declared.QUEUE_SECONDS: lambda each: each.queue_s,
    declared.PREFILL: lambda each: each.prefill_s,
    declared.INTER_TOKEN: lambda each: each.inter_token_s,
    declared.DECODE: lambda each: each.decode_s,
}
ONLINE: Final[dict[HistogramFamily, Callable[[RequestTimes], Histogram]]] = {
    declared.FIRST_TOKEN: lambda each: each.first_token_s,
    declared.REQUEST: lambda each: each.request_s,
}


def request_metrics(servers: Iterable[ModelServer], online: OnlineTimes) -> Iterator[Metric]:
    """As of now."""
    engines = [(server.model.id, server.histograms) for server in servers]
    batches, tokens = engine.BATCH_SIZE.collected(), engine.TOKENS_PER_STEP.collected()
    prompts, generated = declared.PROMPT_TOKENS.collected(), declared.GENERATION_TOKENS.collected()
    for model, histograms in engines:
        if histograms is None:
            continue
        _add(batches, (model,), histograms.batch_size)
        _add(tokens, (model,), histograms.tokens_per_step)
        for name, of_class in list(histograms.by_class.items()):
            prompts.add_metric((model, name), of_class.prompt_tokens)
            generated.add_metric((model, name), of_class.generation_tokens)
    yield from (batches, tokens, prompts, generated)
    for declaration, of_class_histogram in OF_ENGINE.items():
        family = declaration.collected()
        for model, histograms in engines:
            for name, of_class in list(histograms.by_class.items()) if histograms is not None else ():
                _add(family, (model, name), of_class_histogram(of_class))
        yield family
    for declaration, of_times in ONLINE.items():
        family = declaration.collected()
        for label, times in online:
            _add(family, label, of_times(times))
        yield family


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram) -> None:
    family.add_metric(labels, histogram.cumulative(), histogram.sum)
