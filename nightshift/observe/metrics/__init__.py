"""The metrics of all processes. Each is declared once, here: exporters, `docs/metrics.md` and the tests of
dashboards and rules follow.
"""
