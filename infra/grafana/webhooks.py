"""Events owed to receivers, and how their deliveries go."""

from typing import Final

from infra.grafana.panels import Dashboard, Query, Section, graph, number, rates

_DUTY: Final = '{duty="webhook_delivery"}'
_PASSES: Final = f"sum by (le) (rate(nightshift_duty_pass_seconds_bucket{_DUTY}[$__rate_interval]))"
_ATTEMPTS: Final = "sum by (le) (rate(nightshift_webhook_attempt_seconds_bucket[$__rate_interval]))"

DASHBOARD: Final = Dashboard(
    uid="nightshift-webhooks",
    title="webhooks",
    about="Events owed to receivers, and how their deliveries go.",
    sections=(
        Section(
            "Deliveries",
            (
                number("Pending", "short", 'max(nightshift_deliveries{state="pending"}) or vector(0)'),
                number("Given up", "short", 'max(nightshift_deliveries{state="dead"}) or vector(0)'),
                graph(
                    "By state",
                    "short",
                    Query("max by (state) (nightshift_deliveries)", "{{state}}"),
                    width=16,
                    about="Pending ones grow: a receiver is away. Dead ones were given up",
                ),
            ),
        ),
        Section(
            "Attempts",
            (
                rates("By what became of them", "cps", "nightshift_webhook_attempts_total", "state"),
                graph(
                    "Until the receiver's answer",
                    "s",
                    Query(f"histogram_quantile(0.5, {_ATTEMPTS})", "p50"),
                    Query(f"histogram_quantile(0.95, {_ATTEMPTS})", "p95"),
                ),
                graph(
                    "Age of the oldest that is owed",
                    "s",
                    Query("max(nightshift_deliveries_oldest_seconds)", "age"),
                ),
            ),
        ),
        Section(
            "The duty that sends them",
            (
                graph(
                    "Time of a pass",
                    "s",
                    Query(f"histogram_quantile(0.5, {_PASSES})", "p50"),
                    Query(f"histogram_quantile(0.95, {_PASSES})", "p95"),
                ),
                graph(
                    "Passes that raised",
                    "short",
                    Query(
                        f"sum(increase(nightshift_duty_failures_total{_DUTY}[$__rate_interval]))",
                        "raised",
                    ),
                ),
                graph(
                    "Since a pass ended well",
                    "s",
                    Query(f"time() - max(nightshift_duty_last_success_timestamp_seconds{_DUTY})", "seconds"),
                ),
            ),
        ),
    ),
)
