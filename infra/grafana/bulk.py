"""Bulk jobs on their way: what waits, what is done, what is lost, and the duties that move it."""

from typing import Final

from infra.grafana.panels import Dashboard, Query, Section, graph, rates

_PASSES: Final = "sum by (le, duty) (rate(nightshift_duty_pass_seconds_bucket[$__rate_interval]))"

DASHBOARD: Final = Dashboard(
    uid="nightshift-bulk",
    title="bulk and nightly",
    about="Bulk jobs on their way: what waits, what is done, what is lost, and the duties that move it.",
    sections=(
        Section(
            "Jobs",
            (
                graph(
                    "Unfinished jobs",
                    "short",
                    Query("max by (kind, state) (nightshift_jobs) or vector(0)", "{{kind}} {{state}}"),
                    is_stacked=True,
                ),
                graph(
                    "Rows left",
                    "short",
                    Query(
                        "sum by (model) (max by (kind, model, class, capacity) "
                        '(nightshift_queue_rows_left{kind="bulk"})) or vector(0)',
                        "{{model}}",
                    ),
                    is_stacked=True,
                ),
                graph(
                    "Shards queued",
                    "short",
                    Query(
                        "sum by (class) (max by (kind, model, class, capacity) "
                        '(nightshift_queue_queued{kind="bulk"})) or vector(0)',
                        "{{class}}",
                    ),
                    is_stacked=True,
                ),
                graph(
                    "Time to the nearest deadline, at the measured pace",
                    "s",
                    Query("min by (class) (nightshift_deadline_slack_seconds)", "{{class}}"),
                    about="Of a job's predicted end; below 0 it will be late",
                    min=None,
                ),
                graph(
                    "The oldest that waits",
                    "s",
                    Query(
                        'max by (class) (nightshift_queue_oldest_seconds{kind="bulk"}) or vector(0)',
                        "{{class}}",
                    ),
                ),
                graph("Leases held", "short", Query("sum by (kind) (nightshift_worker_leases)", "{{kind}}")),
            ),
        ),
        Section(
            "Rows",
            (
                rates("Rows ended", "cps", "nightshift_worker_rows_total", "model"),
                rates(
                    "Tokens of bulk rows",
                    "wps",
                    'nightshift_generation_tokens_total{class!="interactive"}',
                    "class",
                ),
                graph(
                    "Rows that had the result of an equal one",
                    "cps",
                    Query("max(rate(nightshift_rows_reused_total[$__rate_interval]))", "reused"),
                ),
                graph(
                    "Rows that are run no more",
                    "short",
                    Query("max(increase(nightshift_rows_dead_total[$__rate_interval]))", "dead"),
                    about="They end the workers that run them",
                ),
                graph(
                    "Tokens generated again",
                    "wps",
                    Query("max(rate(nightshift_tokens_redone_total[$__rate_interval]))", "redone"),
                    about="Generated and lost with a worker",
                ),
                graph(
                    "Checkpoints refused",
                    "short",
                    Query("max(increase(nightshift_writes_fenced_total[$__rate_interval]))", "refused"),
                    about="Their lease was lost; each is harmless",
                ),
                graph(
                    "Objects that nothing refers to, deleted",
                    "short",
                    Query("max(increase(nightshift_objects_collected_total[$__rate_interval]))", "deleted"),
                ),
            ),
        ),
        Section(
            "The object store",
            (
                rates("Bytes", "Bps", "nightshift_worker_storage_bytes_total", "direction"),
                graph(
                    "Threads that wait for it",
                    "short",
                    Query(
                        "sum by (direction) (rate("
                        "nightshift_worker_storage_seconds_total[$__rate_interval]))",
                        "{{direction}}",
                    ),
                    about="Mean number; high while engines starve: the store is slow",
                ),
                graph(
                    "Engines starved",
                    "percentunit",
                    Query(
                        "avg by (model) (rate(nightshift_engine_starved_seconds_total[$__rate_interval]))",
                        "{{model}}",
                    ),
                    about="Share of the time without a step although a shard was held",
                    max=1,
                ),
            ),
        ),
        Section(
            "The scheduler",
            (
                graph(
                    "Time of a pass, p95",
                    "s",
                    Query(f"histogram_quantile(0.95, {_PASSES})", "{{duty}}"),
                ),
                graph(
                    "Passes that raised",
                    "short",
                    Query(
                        "sum by (duty) (increase(nightshift_duty_failures_total[$__rate_interval]))",
                        "{{duty}}",
                    ),
                ),
                graph(
                    "Since a pass ended well",
                    "s",
                    Query(
                        "time() - max by (duty) (nightshift_duty_last_success_timestamp_seconds)", "{{duty}}"
                    ),
                ),
                graph("Rings not sent", "short", Query("max(nightshift_outbox_rings)", "rings")),
                graph(
                    "Messages in Redis' queues that were not ours",
                    "short",
                    Query("max(increase(nightshift_messages_dropped_total[$__rate_interval]))", "dropped"),
                ),
            ),
        ),
    ),
)
