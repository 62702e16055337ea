"""A report as rows of a table and as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from conformance.outcomes import Outcome, Report

HEADINGS: Final = ("AREA", "CHECK", "OUTCOME", "WHAT WAS WRONG")


def table_rows(report: Report) -> Sequence[Sequence[str]]:
    """One row per check, under HEADINGS."""
    return [(result.area, result.statement, result.outcome, result.detail) for result in report.results]


def summary(report: Report) -> str:
    counts = ", ".join(f"{report.count(outcome)} {outcome}" for outcome in Outcome)
    node = f" and openai {report.node_client_version} for Node" if report.node_client_version else ""
    return f"{len(report.results)} checks with openai {report.client_version}{node}: {counts}"


def skipped(report: Report) -> Mapping[str, int]:
    """The reasons why checks were skipped, with their numbers."""
    return Counter(result.detail for result in report.results if result.outcome is Outcome.SKIPPED)


def as_json(report: Report) -> dict[str, Any]:
    """The table, its counts and what was left behind, for `--json`."""
    return {
        "client_version": report.client_version,
        "node_client_version": report.node_client_version,
        "counts": {outcome.name.lower(): report.count(outcome) for outcome in Outcome},
        "results": [
            {
                "area": result.area,
                "check": f"{result.area}.{result.name}",
                "statement": result.statement,
                "outcome": result.outcome.name.lower(),
                "detail": result.detail or None,
                "seconds": round(result.seconds, 3),
            }
            for result in report.results
        ],
        "left_behind": list(report.left_behind),
    }
