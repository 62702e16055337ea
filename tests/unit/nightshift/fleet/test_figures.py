"""Figures of workers as JSON, and of the service as their sums."""

import json
from math import inf, nan
from typing import Any

import pytest

from nightshift.fleet.durations import Durations
from nightshift.fleet.figures import (
    MODELS_MAX,
    DeviceFigures,
    ModelFigures,
    ServiceFigures,
    WorkerFigures,
)
from nightshift.fleet.workers import Worker, WorkerState
from nightshift.jobs.capacity.service_figures import PACE_WEIGHT, summed
from nightshift.jobs.priorities import PriorityClass
from tests.helpers.fakes import STARTS_AT, a_worker
from tests.unit.nightshift.jobs.capacity.test_demand import a_waiting_job

TIMES = Durations.from_counts((0.1, 0.5), [1, 2, 0])


def a_report(**figures: float) -> WorkerFigures:
    return WorkerFigures(models={"demo": ModelFigures(**figures)})  # type: ignore[arg-type]


def working(report: WorkerFigures | None, state: WorkerState = WorkerState.READY) -> Worker:
    return a_worker(state=state, figures=report)


def test_a_report_is_read_as_it_was_told() -> None:
    report = WorkerFigures(
        models={
            "demo": ModelFigures(
                running=3, busy_fraction=0.5, rows_per_s=1.25, first_token_s={"interactive": TIMES}
            )
        },
        device=DeviceFigures(kind="cuda", name="H100", memory_bytes=80_000, utilisation=0.25),
        memory_bytes=1000,
        shards=2,
    )

    assert WorkerFigures.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_what_is_not_known_is_absent_and_what_a_later_release_tells_besides_is_passed_over() -> None:
    told = WorkerFigures(models={"demo": ModelFigures(running=0)}, device=DeviceFigures(kind="cpu")).to_json()
    assert told == {"device": {"kind": "cpu"}, "models": {"demo": {"running": 0}}}
    figures = WorkerFigures.from_json(told)
    assert figures is not None
    assert figures.device is not None
    assert (figures.device.utilisation, figures.models["demo"].waiting) == (None, None)

    told = {"models": {"demo": {"running": 1, "colour": "red", "waiting": "many"}, "odd": 3}, "wings": 2}
    assert WorkerFigures.from_json(told) == WorkerFigures(models={"demo": ModelFigures(running=1)})
    assert WorkerFigures.from_json(None) is WorkerFigures.from_json([]) is None


@pytest.mark.parametrize(
    "odd", [nan, inf, -inf, -1, 10**400, "7", True, None, [], {}], ids=lambda odd: repr(odd)[:9]
)
def test_what_is_no_figure_is_neither_told_nor_read(odd: Any) -> None:
    """PostgreSQL refuses NaN in JSON, and with it the heartbeat that renews the worker's leases."""
    report = WorkerFigures(
        models={"demo": ModelFigures(busy_fraction=odd, running=2)},
        device=DeviceFigures(kind="cpu", utilisation=odd),
        memory_bytes=odd,
    )

    assert report.to_json() == {"device": {"kind": "cpu"}, "models": {"demo": {"running": 2}}}
    told = {"memory_bytes": odd, "models": {"demo": {"busy_fraction": odd, "running": 2, "request_s": odd}}}
    assert WorkerFigures.from_json(told) == WorkerFigures(models={"demo": ModelFigures(running=2)})
    recorded = {"rows_per_s": odd, "queued": {"standard": odd, "interactive": 1}}
    assert ServiceFigures.from_json(STARTS_AT, recorded) == ServiceFigures(
        at=STARTS_AT, queued={"interactive": 1}
    )


def test_a_report_has_a_bounded_number_of_models_the_busiest() -> None:
    models = {f"model-{n:03d}": ModelFigures(busy_fraction=n / 100) for n in range(MODELS_MAX + 5)}

    kept = WorkerFigures(models=models).limited().models

    assert sorted(kept) == sorted(models)[5:]


def test_the_service_is_the_sum_of_its_workers() -> None:
    reports = [
        a_report(generation_tokens_per_s=100.0, rows_per_s=2.0, busy_fraction=1.0),
        a_report(generation_tokens_per_s=50.0, rows_per_s=1.0, busy_fraction=0.5),
    ]

    service = summed(
        STARTS_AT,
        [*map(working, reports), working(None), working(None, WorkerState.STARTING)],
        [
            a_waiting_job(queued=3, leased=1, rows_left=400),
            a_waiting_job(priority=PriorityClass.BACKGROUND, queued=7, rows_left=400),
        ],
    )

    assert service.workers == 3
    assert (service.generation_tokens_per_s, service.rows_per_s, service.busy_fraction) == (150.0, 3.0, 0.75)
    assert service.prompt_tokens_per_s is None, "no worker tells it"
    assert service.queued == {"standard": 3, "background": 7}
    assert service.running == {"standard": 1}
    assert service.rows_left == {"standard": 400, "background": 400}


def test_what_is_paused_is_not_queued() -> None:
    service = summed(STARTS_AT, [], [a_waiting_job(is_paused=True, leased=1)])

    assert (service.queued, service.rows_left, service.running) == ({}, {}, {"standard": 1})


def test_quantiles_are_of_the_requests_of_all_workers() -> None:
    report = WorkerFigures(models={"demo": ModelFigures(first_token_s={"interactive": TIMES})})

    service = summed(STARTS_AT, [working(report)] * 2, [])

    assert service.first_token_p50_s == {"interactive": 0.2}
    assert set(service.first_token_p95_s) == {"interactive"}


def test_the_pace_of_a_model_follows_what_busy_workers_do_and_outlasts_an_idle_night() -> None:
    busy = summed(STARTS_AT, [working(a_report(rows_per_s=4.0, busy_fraction=0.5))], [])
    assert busy.rows_per_busy_s == {"demo": 8.0}

    faster = summed(STARTS_AT, [working(a_report(rows_per_s=10.0, busy_fraction=1.0))], [], busy)
    assert faster.rows_per_busy_s == {"demo": PACE_WEIGHT * 10.0 + (1 - PACE_WEIGHT) * 8.0}

    idle = summed(STARTS_AT, [working(a_report(rows_per_s=0.1, busy_fraction=0.01))], [], faster)
    assert idle.rows_per_busy_s == faster.rows_per_busy_s


def test_figures_of_the_service_are_read_as_they_were_recorded() -> None:
    service = summed(STARTS_AT, [working(a_report(rows_per_s=2.0, busy_fraction=1.0))], [a_waiting_job()])

    told = json.loads(json.dumps(service.to_json()))
    assert ServiceFigures.from_json(STARTS_AT, told) == service
    assert "prompt_tokens_per_s" not in told
