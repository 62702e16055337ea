"""Whether the service is well, and how much it does."""

from typing import Final

from infra.grafana.panels import QUEUED, Dashboard, Query, Section, graph, number, quantiles, rates

_ANSWERED: Final = "sum(rate(nightshift_http_requests_total[$__rate_interval]))"
_FAILED: Final = 'sum(rate(nightshift_http_requests_total{status=~"5.."}[$__rate_interval]))'

DASHBOARD: Final = Dashboard(
    uid="nightshift-overview",
    title="overview",
    about="Whether the service is well, and how much it does.",
    sections=(
        Section(
            "Now",
            (
                number("Alerts firing", "short", 'count(ALERTS{alertstate="firing"}) or vector(0)', width=3),
                number("Database answers", "short", "min(nightshift_database_up)", "1: yes", width=3),
                number("Redis answers", "short", "min(nightshift_redis_up)", "1: yes", width=3),
                number(
                    "Schedulers leading", "short", "sum(nightshift_scheduler_leading)", "1 is right", width=3
                ),
                number(
                    "Workers ready",
                    "short",
                    'sum(max by (capacity) (nightshift_workers{state="ready"})) or vector(0)',
                ),
                number(
                    "Jobs unfinished", "short", "sum(max by (kind, state) (nightshift_jobs)) or vector(0)"
                ),
                number(
                    "Shards queued", "short", "sum(max by (kind) (nightshift_shards_queued)) or vector(0)"
                ),
            ),
        ),
        Section(
            "Throughput",
            (
                rates("Tokens generated", "wps", "nightshift_generation_tokens_total", "model"),
                rates("Tokens of prompts", "wps", "nightshift_prompt_tokens_total", "model"),
                graph(
                    "Engines busy",
                    "percentunit",
                    Query("avg by (model) (nightshift_engine_busy_fraction)", "{{model}}"),
                    about="Share of the last 10 seconds in which an engine was in a step; mean of workers",
                    max=1,
                ),
            ),
        ),
        Section(
            "Online requests",
            (
                quantiles("Time to first token", "nightshift_time_to_first_token_seconds", "model"),
                quantiles("Until the answer", "nightshift_request_seconds", "model"),
                graph(
                    "Queued, by class",
                    "short",
                    Query(f"sum by (class) ({QUEUED}) or vector(0)", "{{class}}"),
                    about="Shards and online requests that no worker has",
                    is_stacked=True,
                ),
                graph(
                    "Queued, by model",
                    "short",
                    Query(f"sum by (model) ({QUEUED}) or vector(0)", "{{model}}"),
                    is_stacked=True,
                ),
                graph(
                    "Waiting and running in engines",
                    "short",
                    Query("sum by (model) (nightshift_engine_sequences_waiting)", "{{model}} waiting"),
                    Query("sum by (model) (nightshift_engine_sequences_running)", "{{model}} running"),
                ),
            ),
        ),
        Section(
            "The API",
            (
                rates("Requests answered", "reqps", "nightshift_http_requests_total", "status"),
                graph(
                    "Share of requests answered with 5xx",
                    "percentunit",
                    Query(f"({_FAILED} or vector(0)) / {_ANSWERED}", "5xx"),
                    max=1,
                ),
                quantiles("Time of a request", "nightshift_http_request_seconds", "route"),
            ),
        ),
        Section(
            "Processes",
            (
                graph(
                    "Answer Prometheus",
                    "short",
                    Query('up{job=~"nightshift.*"}', "{{job}} {{instance}}"),
                    Query("nightshift_process_up", "{{process}} of nightshift up"),
                    max=1,
                ),
                graph(
                    "Memory",
                    "bytes",
                    Query("process_resident_memory_bytes", "{{job}} {{process}} {{instance}}"),
                ),
                graph(
                    "CPU",
                    "percentunit",
                    Query(
                        "rate(process_cpu_seconds_total[$__rate_interval])",
                        "{{job}} {{process}} {{instance}}",
                    ),
                ),
                graph(
                    "Disk of the data directory, used",
                    "percentunit",
                    Query("1 - min(nightshift_disk_free_bytes / nightshift_disk_bytes)", "used"),
                    max=1,
                ),
                graph("Open files", "short", Query("process_open_fds", "{{job}} {{process}} {{instance}}")),
            ),
        ),
    ),
)
