"""Everything that is deployed rather than imported; `infra.grafana` makes the dashboards."""
