"""The metrics of all processes. Each is declared once, here: exporters, `docs/reference/metrics.md` and the
tests of dashboards and rules follow.
"""
