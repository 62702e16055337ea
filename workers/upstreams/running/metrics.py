"""Counts of each upstream for Prometheus."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nightshift.process.metrics import upstreams as declared
from nightshift.process.metrics.family import CounterFamily, GaugeFamily
from workers.health.metrics import filled
from workers.upstreams.running.upstream import RunningUpstream

VALUES: Final[tuple[tuple[CounterFamily | GaugeFamily, Callable[[RunningUpstream], float]], ...]] = (
    (declared.AWAY, lambda upstream: upstream.is_away),
    (declared.IN_FLIGHT, lambda upstream: upstream.places.limit.in_flight),
    (declared.LIMIT, lambda upstream: upstream.places.limit.limit),
    (declared.REQUESTS, lambda upstream: upstream.counts.rows),
    (declared.PROMPT_TOKENS, lambda upstream: upstream.counts.prompt_tokens),
    (declared.GENERATION_TOKENS, lambda upstream: upstream.counts.completion_tokens),
    (declared.COST, lambda upstream: upstream.cost),
)


class UpstreamMetrics(Collector):
    """Reads what the loop's thread counts. One for all models of a worker: they share upstreams."""

    def __init__(self, upstreams: Sequence[RunningUpstream]) -> None:
        """`upstreams` may change."""
        self._upstreams = upstreams

    def collect(self) -> Iterator[Metric]:
        upstreams = [*self._upstreams]
        for family, value_of in VALUES:
            yield filled(family, {upstream.name: value_of(upstream) for upstream in upstreams})
        errors = {
            (upstream.name, _kind(error)): count
            for upstream in upstreams
            for error, count in [*upstream.counts.errors.items()]
        }
        yield filled(declared.ERRORS, errors)
        first_tokens = declared.FIRST_TOKEN.collected()
        for upstream in upstreams:
            histogram = upstream.counts.first_token_s
            first_tokens.add_metric((upstream.name,), histogram.cumulative(), histogram.sum)
        yield first_tokens


def _kind(error: str) -> str:
    """`key_refused` of KeyRefused."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", error.removesuffix("Error")).lower()
