"""One catalogue holds the metrics: documents, dashboards and rules name only what is exported."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.process.metrics import catalogue
from tests.helpers.promql import metric_names

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "infra" / "grafana").rglob("*.json"))
RULES = sorted(path for kind in ("*.yml", "*.yaml") for path in (ROOT / "infra" / "prometheus").rglob(kind))

# What Prometheus itself makes of scraping a process, and of alerts.
OF_PROMETHEUS = {"up", "ALERTS", "scrape_duration_seconds", "scrape_samples_scraped"}


def expressions(node: Any, names: tuple[str, ...] = ("expr", "query", "definition")) -> Iterator[str]:
    """Every expression in a dashboard or a file of rules. A dashboard's choice of a data source is none."""
    if isinstance(node, dict) and node.get("type") == "datasource":
        return
    if isinstance(node, dict):
        for name, value in node.items():
            if name in names and isinstance(value, str) and value:
                yield value
            else:
                yield from expressions(value, names)
    elif isinstance(node, list):
        for element in node:
            yield from expressions(element, names)


def recorded(document: Any) -> set[str]:
    """The names that recording rules make."""
    groups = document.get("groups", []) if isinstance(document, dict) else []
    return {rule["record"] for group in groups for rule in group.get("rules", []) if "record" in rule}


def loaded(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    return [json.loads(text)] if path.suffix == ".json" else list(yaml.safe_load_all(text))


def test_no_metric_is_declared_twice_and_none_by_tenant_or_job() -> None:
    names = [family.name for family in catalogue.EVERY]

    assert len(names) == len(set(names))
    labels = {label for family in catalogue.EVERY for label in family.labels}
    assert not labels & {"tenant", "tenant_id", "job", "job_id", "key", "custom_id", "url"}


def test_names_say_their_unit_and_type_as_prometheus_asks() -> None:
    """https://prometheus.io/docs/practices/naming/"""
    for family in catalogue.EVERY:
        assert re.fullmatch(r"(nightshift|process)_[a-z0-9_]+", family.name)
        assert (family.type == "counter") == family.name.endswith("_total"), family.name
        assert not re.search(r"_(ms|millis|minutes|mb|kb|percent)(_|$)", family.name), family.name
        assert "\n" not in family.help + family.closer


@pytest.mark.parametrize("path", [*DASHBOARDS, *RULES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_dashboards_and_rules_name_metrics_that_are_exported(path: Path) -> None:
    made = {name for rules in RULES for document in loaded(rules) for name in recorded(document)}
    known = catalogue.sample_names() | OF_PROMETHEUS | made

    for document in loaded(path):
        for expression in expressions(document):
            assert metric_names(expression) <= known, expression


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_asks_for_something(path: Path) -> None:
    assert any(metric_names(expression) for document in loaded(path) for expression in expressions(document))


def test_every_metric_that_a_document_names_is_exported() -> None:
    named: set[str] = set()
    for document in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        named |= set(re.findall(r"`(nightshift_[a-z0-9_]+)[`{]", document.read_text(encoding="utf-8")))

    assert named <= catalogue.sample_names() | {family.name for family in catalogue.EVERY}


# -- expressions


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("up == 0", {"up"}),
        ("sum by (model) (rate(a_total{class=\"x\", model=~'y.*'}[5m])) / on(model) b", {"a_total", "b"}),
        ("histogram_quantile(0.95, sum(rate(h_bucket[$__rate_interval])) by (le, model))", {"h_bucket"}),
        ("a offset 5m unless on (x) group_left (y) b and c or d", {"a", "b", "c", "d"}),
        ('{__name__="a", model="b"} + {"c", x="d"}', {"a", "c"}),
        ("max_over_time(a[1h:5m]) > bool 1e3 # metric b", {"a"}),
        ('label_values(a{model="$model"}, model)', {"a"}),
        ("job:a:rate5m > ${limit} or -a ^ 2 == +Inf", {"job:a:rate5m", "a"}),
    ],
)
def test_the_metrics_of_an_expression_are_found(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names
