"""Grafana's dashboards, each declared in a module of its own; `python -m infra.grafana` writes their JSON."""
