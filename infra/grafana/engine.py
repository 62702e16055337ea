"""Panels about a model's engine: its time, its steps and its memory."""

from typing import Final

from infra.grafana.panels import MODEL, Dashboard, Panel, Query, Section, graph, quantiles, rates

_OF_MODEL: Final = '{model=~"$model"}'


def _mean(title: str, histogram: str, about: str) -> Panel:
    def rate(part: str) -> str:
        return f"sum by (model) (rate({histogram}_{part}{_OF_MODEL}[$__rate_interval]))"

    return graph(title, "short", Query(f"{rate('sum')} / {rate('count')}", "{{model}}"), about=about)


def _by_class(title: str, histogram: str, about: str) -> Panel:
    return quantiles(title, histogram, "class", _OF_MODEL, about)


def _rates(title: str, counter: str, about: str = "") -> Panel:
    return rates(title, "cps", counter + _OF_MODEL, "model", about)


DASHBOARD: Final = Dashboard(
    uid="nightshift-engine",
    title="engine",
    about="What a model's engine does with its time, its steps and its memory.",
    variables=(MODEL,),
    sections=(
        Section(
            "Steps",
            (
                graph(
                    "Busy",
                    "percentunit",
                    Query(f"avg by (model) (nightshift_engine_busy_fraction{_OF_MODEL})", "{{model}}"),
                    about="Below 1 while rows remain: the engine waits for its input or its store",
                    max=1,
                ),
                graph(
                    "Fraction of the roofline",
                    "percentunit",
                    Query(
                        f"sum by (model) (rate(nightshift_engine_roofline_seconds_total{_OF_MODEL}"
                        "[$__rate_interval])) / sum by (model) (rate("
                        f"nightshift_worker_step_seconds_total{_OF_MODEL}[$__rate_interval]))",
                        "{{model}}",
                    ),
                    Query(
                        f"max by (model) (nightshift_engine_roofline_fraction{_OF_MODEL})",
                        "{{model}}, the best worker",
                    ),
                    about="Of the time in steps, what reads and arithmetic take at the device's best",
                ),
                graph(
                    "Starved",
                    "percentunit",
                    Query(
                        f"avg by (model) (rate(nightshift_engine_starved_seconds_total{_OF_MODEL}"
                        "[$__rate_interval]))",
                        "{{model}}",
                    ),
                    about="Share of the time without a step although a shard was held: it waits for rows",
                    max=1,
                ),
                _mean("Sequences of a step", "nightshift_batch_size", "Mean; inputs, where it is an encoder"),
                _mean("Tokens of a step", "nightshift_tokens_per_step", "Mean; padding not counted"),
                _rates("Steps", "nightshift_engine_steps_total"),
                graph(
                    "Sequences",
                    "short",
                    Query(
                        f"sum by (model) (nightshift_engine_sequences_running{_OF_MODEL})", "{{model}} run"
                    ),
                    Query(
                        f"sum by (model) (nightshift_engine_sequences_waiting{_OF_MODEL})", "{{model}} wait"
                    ),
                ),
                graph(
                    "Age of the step under way",
                    "s",
                    Query(f"max by (model) (nightshift_worker_step_age_seconds{_OF_MODEL})", "{{model}}"),
                    about="A worker ends itself after STEP_TIMEOUT_S",
                ),
            ),
        ),
        Section(
            "Tokens",
            (
                rates("Computed", "wps", f"nightshift_engine_tokens_computed_total{_OF_MODEL}", "model"),
                rates("Generated", "wps", f"nightshift_generation_tokens_total{_OF_MODEL}", "class"),
                rates("Of prompts", "wps", f"nightshift_prompt_tokens_total{_OF_MODEL}", "class"),
                _rates("Found instead of computed", "nightshift_engine_tokens_reused_total", "Prefix hits"),
                graph(
                    "Prefix hits among queries",
                    "percentunit",
                    Query(
                        f"sum by (model) (rate(nightshift_engine_tokens_reused_total{_OF_MODEL}"
                        "[$__rate_interval])) / sum by (model) (rate("
                        f"nightshift_engine_prefix_queries_total{_OF_MODEL}[$__rate_interval]))",
                        "{{model}}",
                    ),
                    about="Of the tokens looked for in KV memory",
                    max=1,
                ),
                _rates(
                    "Computed again",
                    "nightshift_engine_tokens_recomputed_total",
                    "After a preemption: what preemptions cost",
                ),
                _rates(
                    "Drafted tokens accepted",
                    "nightshift_engine_spec_decode_num_accepted_tokens_total",
                    "Tokens that need no step of their own, where ENGINE_SPECULATION is auto",
                ),
                _rates(
                    "Drafted tokens",
                    "nightshift_engine_spec_decode_num_draft_tokens_total",
                    "What is tried for those that are accepted",
                ),
                _rates("Padding", "nightshift_engine_tokens_padded_total", "Of an encoder's passes"),
            ),
        ),
        Section(
            "Where the time of a request goes",
            (
                _by_class("Waiting in the engine", "nightshift_queue_seconds", "Until its first step"),
                _by_class("Its prompt", "nightshift_prefill_seconds", "From there to its first token"),
                _by_class("Between two tokens", "nightshift_inter_token_seconds", ""),
                _by_class("Its answer", "nightshift_decode_seconds", "From its first token to its last"),
                _by_class(
                    "Time to first token", "nightshift_time_to_first_token_seconds", "From a client's submit"
                ),
                _by_class("Until the answer", "nightshift_request_seconds", "From a client's submit"),
            ),
        ),
        Section(
            "Memory",
            (
                graph(
                    "KV blocks held",
                    "percentunit",
                    Query(
                        f"sum by (model) (nightshift_engine_kv_blocks_used{_OF_MODEL}) / "
                        f"sum by (model) (nightshift_engine_kv_blocks{_OF_MODEL})",
                        "{{model}}",
                    ),
                    max=1,
                ),
                _rates("Preemptions", "nightshift_engine_preemptions_total", "More KV memory is needed"),
                _rates("Steps out of memory", "nightshift_engine_steps_out_of_memory_total"),
                graph(
                    "Tokens a step may have",
                    "short",
                    Query(f"min by (model) (nightshift_engine_step_tokens_max{_OF_MODEL})", "{{model}}"),
                    about="Fewer for a while after a step ran out of memory",
                ),
                _rates("Waits for a prefix", "nightshift_engine_prefix_deferrals_total"),
            ),
        ),
        Section(
            "Devices",
            (
                graph(
                    "Device memory used",
                    "percentunit",
                    Query(
                        "nightshift_worker_device_memory_used_bytes / nightshift_worker_device_memory_bytes",
                        "{{worker}} {{instance}} {{device}}",
                    ),
                    about="By all processes on it; a CPU's too",
                    max=1,
                ),
                graph(
                    "GPU utilisation",
                    "percentunit",
                    Query("nightshift_worker_device_utilisation", "{{worker}} {{instance}} {{device}}"),
                    about="Share of the last second in which a kernel ran",
                    needs_gpu=True,
                    max=1,
                ),
            ),
        ),
        Section(
            "Upstreams",
            (
                rates("Tokens generated", "wps", "nightshift_upstream_generation_tokens_total", "upstream"),
                graph(
                    "Requests in flight, and the limit",
                    "short",
                    Query("sum by (upstream) (nightshift_upstream_requests_in_flight)", "{{upstream}}"),
                    Query(
                        "sum by (upstream) (nightshift_upstream_concurrency_limit)", "{{upstream}} at most"
                    ),
                    about="The limit is measured; of all workers",
                ),
                quantiles("Time to first token", "nightshift_upstream_first_token_seconds", "upstream"),
                rates("Errors", "cps", "nightshift_upstream_errors_total", "kind", is_stacked=True),
                graph(
                    "Away",
                    "short",
                    Query("max by (upstream) (nightshift_upstream_away)", "{{upstream}}"),
                    max=1,
                ),
                graph(
                    "Cost of an hour",
                    "short",
                    Query(
                        "sum by (upstream) (rate(nightshift_upstream_cost_total[$__rate_interval])) * 3600",
                        "{{upstream}}",
                    ),
                ),
            ),
        ),
        Section(
            "Lazy models",
            (
                graph("Loaded", "short", Query("sum by (model) (nightshift_worker_model_warm)", "{{model}}")),
                graph(
                    "Loads, swaps and refusals",
                    "short",
                    Query("sum(increase(nightshift_worker_model_loads_total[$__rate_interval]))", "loads"),
                    Query("sum(increase(nightshift_worker_model_swaps_total[$__rate_interval]))", "swaps"),
                    Query(
                        "sum(increase(nightshift_worker_model_refusals_total[$__rate_interval]))", "refusals"
                    ),
                ),
                graph(
                    "Share of the time in which models are loaded",
                    "percentunit",
                    Query(
                        "sum(rate(nightshift_worker_model_load_seconds_total[$__rate_interval]))", "loading"
                    ),
                ),
            ),
        ),
    ),
)
