"""Dashboards are what is declared of them; alerts say what is wrong, what to do about it, and are tested."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard

from infra.grafana import build
from infra.grafana.__main__ import FOLDER
from infra.grafana.catalogue import DASHBOARDS
from infra.grafana.panels import WIDTH_MAX, Dashboard
from tests.helpers.prometheus import RULES, minutes_as_seconds

ROOT = Path(__file__).resolve().parents[2]
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
]
TESTS = yaml.safe_load((RULES.parent / "rules.test.yml").read_text())["tests"]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")

by_uid = pytest.mark.parametrize("declared", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
by_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


def test_each_file_of_a_dashboard_is_what_is_declared() -> None:
    wanted = {f"{dashboard.uid}.json": build.as_json(dashboard) for dashboard in DASHBOARDS}

    files = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}

    assert files == wanted, "make them anew: python -m infra.grafana"


@by_uid
def test_a_dashboard_is_read_by_grafanas_own_types_without_loss(declared: Dashboard) -> None:
    written = json.loads(build.as_json(declared))

    read = json.loads(json.dumps(GrafanaDashboard.from_json(written), cls=build.JSONEncoder))

    for panel in (*written["panels"], *read["panels"]):
        panel.pop("targets", None)  # read as the data source's own, which only Grafana knows
        panel.pop("options", None)
        panel.get("fieldConfig", {}).get("defaults", {}).pop("custom", None)
    assert read == written


@by_uid
def test_panels_have_distinct_ids_and_lie_side_by_side(declared: Dashboard) -> None:
    panels = json.loads(build.as_json(declared))["panels"]
    ids = [panel["id"] for panel in panels]
    cells = [cell for panel in panels if panel["type"] != "row" for cell in covered(panel["gridPos"])]

    assert len(ids) == len(set(ids))
    assert len(cells) == len(set(cells)), "no two overlap"
    assert max(column for column, _ in cells) < WIDTH_MAX


def covered(place: dict[str, int]) -> list[tuple[int, int]]:
    columns = range(place["x"], place["x"] + place["w"])
    return [(column, row) for column in columns for row in range(place["y"], place["y"] + place["h"])]


@by_uid
def test_every_variable_that_an_expression_names_is_the_dashboards_or_grafanas(declared: Dashboard) -> None:
    known = {variable.name for variable in declared.variables} | {"__rate_interval"}
    expressions = [query.expr for panel in declared.panels for query in panel.queries]
    named = {name for expression in expressions for name in re.findall(r"\$\{?(\w+)", expression)}

    assert named <= known


@by_uid
def test_every_unit_is_one_that_grafana_knows(declared: Dashboard) -> None:
    known = {value for name, value in vars(units).items() if not name.startswith("_")}

    assert {panel.unit for panel in declared.panels} <= known


@by_alert
def test_an_alert_says_how_bad_it_is_and_what_to_do(alert: dict[str, Any]) -> None:
    name, notes = alert["alert"], alert["annotations"]

    assert alert["labels"]["severity"] in ("critical", "warning")
    assert notes.keys() == {"summary", "description", "runbook_url"}
    assert notes["runbook_url"] == f"docs/runbook.md#{name.lower()}"
    assert f"\n## {name}\n" in RUNBOOK


@by_alert
def test_an_alert_is_seen_to_fire_and_then_to_clear_by_promtool(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    [tested] = [test for test in TESTS if test["name"] == name]

    firing, clear = tested["promql_expr_test"]
    assert firing["expr"] == clear["expr"]
    assert f'ALERTS{{alertname="{name}", alertstate="firing"}}' in firing["expr"]
    assert [test["exp_samples"][0]["value"] for test in (firing, clear)] == [1, 0]
    assert int(firing["eval_time"][:-1]) < int(clear["eval_time"][:-1])


def test_the_runbook_has_no_section_of_an_alert_that_is_gone() -> None:
    sections = re.findall(r"^## (Nightshift\w+)$", RUNBOOK, re.MULTILINE)

    assert sections == [alert["alert"] for alert in ALERTS]


def test_each_command_of_the_runbook_exists() -> None:
    from typer.main import get_command

    from nightshift.cli.main import app

    for line in re.findall(r"^nightshift (\S+(?: [a-z]+)?)", RUNBOOK, re.MULTILINE):
        command: Any = get_command(app)
        for word in line.split():
            if not hasattr(command, "commands"):
                break
            assert word in command.commands, line
            command = command.commands[word]


def test_minutes_become_seconds_in_ranges_and_waits_alone() -> None:
    rules = 'expr: rate(a{b="5m"}[15m]) > 900\nfor: 2m\nsummary: "10m"\n'

    assert minutes_as_seconds(rules) == 'expr: rate(a{b="5m"}[15s]) > 900\nfor: 2s\nsummary: "10m"\n'
