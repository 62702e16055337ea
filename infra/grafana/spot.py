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
                    Query("count(nightshift_worker_draining == 0) or vector(0)", "at work"),
                    Query("count(nightshift_worker_draining == 1) or vector(0)", "draining"),
                    about="Draining: it hands its work back, after a notice, a drain or SIGTERM",
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
