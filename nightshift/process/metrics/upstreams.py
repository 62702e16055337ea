"""Metrics of a worker's upstreams."""

from functools import partial
from typing import Final

from nightshift.process.metrics.family import CounterFamily, Family, GaugeFamily, HistogramFamily, Process

_UPSTREAM: Final = ("upstream",)
_gauge: Final = partial(GaugeFamily, process=Process.WORKER, labels=_UPSTREAM)
_counter: Final = partial(CounterFamily, process=Process.WORKER)

AWAY: Final = _gauge(
    name="nightshift_upstream_away",
    help="1 while a model there gets trials alone, since it failed again and again, or its key is refused",
    closer="it is 1: the worker's log and `nightshift upstreams probe` say why",
)
IN_FLIGHT: Final = _gauge(name="nightshift_upstream_requests_in_flight", help="Requests that it has")
LIMIT: Final = _gauge(
    name="nightshift_upstream_concurrency_limit",
    help="Requests that it is given at once, as measured",
    closer="requests wait, and it stays at `max_concurrency`",
)
REQUESTS: Final = _counter(
    name="nightshift_upstream_requests_total", help="Requests answered", labels=_UPSTREAM
)
PROMPT_TOKENS: Final = _counter(
    name="nightshift_upstream_prompt_tokens_total", help="Tokens read, by its `usage`", labels=_UPSTREAM
)
GENERATION_TOKENS: Final = _counter(
    name="nightshift_upstream_generation_tokens_total",
    help="Tokens generated, by its `usage`",
    labels=_UPSTREAM,
    closer="its rate falls while requests wait",
)
COST: Final = _counter(
    name="nightshift_upstream_cost_total",
    help="These tokens at its `price_per_million_input_tokens` and `price_per_million_output_tokens`",
    labels=_UPSTREAM,
    closer="its rate is more than was planned for",
)
ERRORS: Final = _counter(
    name="nightshift_upstream_errors_total",
    help="Requests without an answer, by kind: `overloaded` (429, 503), `timed_out`, `broken_off`, "
    "`no_answer`, `unavailable`, `key_refused`, `model_gone`, `cancelled`, `row_failed` (500)",
    labels=(*_UPSTREAM, "kind"),
    closer="a kind but `overloaded` and `cancelled` grows",
)
FIRST_TOKEN: Final = HistogramFamily(
    name="nightshift_upstream_first_token_seconds",
    help="From sending a streamed request to its first token",
    labels=_UPSTREAM,
    process=Process.WORKER,
    closer="it grows with the requests in flight: bulk rows take the chats' time",
)

SECTIONS: Final[dict[str, tuple[Family, ...]]] = {
    "Upstreams": (
        AWAY,
        IN_FLIGHT,
        LIMIT,
        REQUESTS,
        PROMPT_TOKENS,
        GENERATION_TOKENS,
        COST,
        ERRORS,
        FIRST_TOKEN,
    )
}
