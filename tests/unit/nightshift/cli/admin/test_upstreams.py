"""`nightshift upstreams probe` and the check of doctor, which ask the workers' own code."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from nightshift.cli.admin import upstreams
from nightshift.cli.doctor.checks import every_check, models
from nightshift.cli.doctor.examination import Status
from nightshift.cli.doctor.site import Site
from nightshift.process.settings import DataSettings
from nightshift.process.upstreams import read_upstreams
from tests.helpers.upstreams import simulated_upstream
from workers.upstreams.report import report

AWAY = "http://127.0.0.1:1/v1"


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def reports(entries: Sequence[str]) -> list[dict[str, Any]]:
        return asyncio.run(report(read_upstreams(entries)))

    for module in (upstreams, models):
        monkeypatch.setattr(module, "report_of_upstreams", reports)


def test_each_model_is_a_line_and_an_upstream_that_is_away_an_error(nightshift):
    with simulated_upstream() as upstream:
        ended = nightshift("upstreams", "probe", upstream.url, AWAY)
    head, line = ended.out.splitlines()
    assert head.split()[:5] == ["UPSTREAM", "MODEL", "ENGINE", "CONTEXT", "CHAT"]
    assert line.split()[1:6] == ["simulated", "vllm", "0.32.0", "4096", "yes"]
    assert ended.code == 1
    assert ended.err == "nightshift: The upstream '127.0.0.1:1' cannot be reached.\n"


@pytest.mark.usefixtures("in_this_process")
def test_no_table_is_printed_where_there_is_no_model(nightshift):
    ended = nightshift("upstreams", "probe", AWAY)
    assert (ended.code, ended.out) == (1, "")


@pytest.mark.usefixtures("in_this_process")
def test_upstreams_are_those_of_the_settings_where_none_is_named(nightshift, monkeypatch):
    assert "name an upstream, or set NIGHTSHIFT_UPSTREAMS" in nightshift("upstreams", "probe").err
    with simulated_upstream() as upstream:
        monkeypatch.setenv("NIGHTSHIFT_UPSTREAMS", upstream.url)
        ended = nightshift("upstreams", "probe", "--json")
    assert ended.code == 0
    assert [model["id"] for model in ended.json[0]["models"]] == ["simulated"]


@pytest.mark.usefixtures("in_this_process")
def test_doctor_looks_at_upstreams_in_place_of_models(monkeypatch):
    with simulated_upstream() as upstream:
        monkeypatch.setenv("NIGHTSHIFT_UPSTREAMS", upstream.url)
        checks = {check.id: check for check in every_check(Site(data=DataSettings()))}
        well = checks["upstreams"].look()
    away = checks["upstreams"].look()
    assert not {"gpu", "model.memory"} & checks.keys()
    assert (well.status, away.status) == (Status.OK, Status.ERROR)
    assert well.detail.endswith(": simulated")
    assert "nightshift upstreams probe" in away.advice
