"""Machines that are taken away: what goes with them, and what that costs."""

from typing import Final

from infra.grafana.panels import Dashboard, Query, Section, graph

DASHBOARD: Final = Dashboard(
    uid="nightshift-spot",
    title="spot",
    about="Machines that are taken away: what goes with them, and what that costs.",
    sections=(
        Section(
            "Workers",
            (
                graph(
                    "Workers",
                    "short",
                    Query("max by (state, capacity) (nightshift_workers)", "{{capacity}} {{state}}"),
                    about="Draining: it hands its work back, after a notice, a drain or SIGTERM",
                    is_stacked=True,
                ),
                graph(
                    "Workers wanted",
                    "short",
                    Query(
                        "max by (model, capacity) (nightshift_workers_wanted) or vector(0)",
                        "{{model}} {{capacity}}",
                    ),
                    about="The fewest that end what waits before its deadlines, at the pace measured last",
                ),
                graph(
                    "Workers lost",
                    "short",
                    Query(
                        "max by (cause) (increase(nightshift_worker_crashes_total[$__rate_interval]))",
                        "{{cause}}",
                    ),
                    about="killed, lease_expired: machines were taken away. Others are the worker's own",
                ),
                graph("Leases held", "short", Query("sum by (kind) (nightshift_worker_leases)", "{{kind}}")),
                graph(
                    "Leases that ran out",
                    "short",
                    Query("max(increase(nightshift_leases_expired_total[$__rate_interval]))", "expired"),
                    about="Their workers died unseen, hang, or cannot reach the database",
                ),
                graph(
                    "Workers draining",
                    "short",
                    Query("sum(nightshift_worker_draining)", "draining"),
                ),
            ),
        ),
        Section(
            "What workers cost",
            (
                graph(
                    "Workers that hold bulk shards",
                    "short",
                    Query(
                        "sum by (capacity) (rate(nightshift_worker_shard_seconds_total[$__rate_interval]))",
                        "{{capacity}}",
                    ),
                    about="Mean number: the time that jobs are charged with",
                    is_stacked=True,
                ),
                graph(
                    "Cost per hour",
                    "short",
                    Query("3600 * sum(rate(nightshift_worker_cost_total[$__rate_interval]))", "cost"),
                    about="At WORKER_PRICE_PER_HOUR_SPOT and …_ON_DEMAND; missing where none is set",
                ),
            ),
        ),
        Section(
            "What losses cost",
            (
                graph(
                    "Tokens generated again",
                    "wps",
                    Query("max(rate(nightshift_tokens_redone_total[$__rate_interval]))", "redone"),
                ),
                graph(
                    "Share of tokens generated again",
                    "percentunit",
                    Query(
                        "max(rate(nightshift_tokens_redone_total[$__rate_interval])) / "
                        "clamp_min(sum(rate(nightshift_generation_tokens_total[$__rate_interval])), 1)",
                        "redone",
                    ),
                ),
                graph(
                    "Checkpoints refused",
                    "short",
                    Query("max(increase(nightshift_writes_fenced_total[$__rate_interval]))", "refused"),
                ),
            ),
        ),
    ),
)
