"""Counts of each upstream for Prometheus."""

import re
from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nightshift.process.metrics import upstreams as declared
from workers.health.metrics import filled
from workers.upstreams.running.upstream import RunningUpstream


class UpstreamMetrics(Collector):
    """Reads what the loop's thread counts. One for all models of a worker: they share upstreams."""

    def __init__(self, upstreams: Sequence[RunningUpstream]) -> None:
        """`upstreams` may change."""
        self._upstreams = upstreams

    def collect(self) -> Iterator[Metric]:
        upstreams = {upstream.name: upstream for upstream in [*self._upstreams]}
        counts = {name: upstream.counts for name, upstream in upstreams.items()}
        limits = {name: upstream.places.limit for name, upstream in upstreams.items()}
        yield filled(declared.AWAY, {name: upstream.is_open for name, upstream in upstreams.items()})
        yield filled(declared.IN_FLIGHT, {name: limit.in_flight for name, limit in limits.items()})
        yield filled(declared.LIMIT, {name: limit.limit for name, limit in limits.items()})
        yield filled(declared.REQUESTS, {name: counted.rows for name, counted in counts.items()})
        yield filled(
            declared.PROMPT_TOKENS, {name: counted.prompt_tokens for name, counted in counts.items()}
        )
        yield filled(
            declared.GENERATION_TOKENS, {name: counted.completion_tokens for name, counted in counts.items()}
        )
        yield filled(declared.COST, {name: counted.cost for name, counted in counts.items()})
        errors = {
            (name, _kind(error)): count
            for name, counted in counts.items()
            for error, count in [*counted.errors.items()]
        }
        yield filled(declared.ERRORS, errors)
        first_tokens = declared.FIRST_TOKEN.collected()
        for name, counted in counts.items():
            histogram = counted.first_token_s
            first_tokens.add_metric((name,), histogram.cumulative(), histogram.sum)
        yield first_tokens


def _kind(error: str) -> str:
    """`key_refused` of KeyRefused."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", error.removesuffix("Error")).lower()
