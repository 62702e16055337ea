"""The screen of `top` at any size, whatever it is told."""

import io
import unicodedata
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from nightshift.cli.top.screen import JOB_ORDERS, WORKER_ORDERS, View, screen
from nightshift.cli.top.snapshot import Snapshot
from tests.unit.nightshift.cli.top.samples import NOW_S, a_group, a_job, a_night, a_worker

WIDTHS = (40, 60, 80, 100, 160, 250)


def shown(
    snapshot: Snapshot, width: int = 100, height: int | None = None, view: View = View(), **console: Any
) -> str:
    out = io.StringIO()
    options = {"color_system": None, "highlight": False, "markup": False, "emoji": False} | console
    Console(file=out, width=width, **options).print(screen(snapshot, view, width, height))
    return out.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal_and_from_60_columns_on_what_matters_most_is_there(width):
    text = shown(a_night(), width)
    assert all(cell_len(line) <= width for line in text.splitlines())
    for word in ("4600", "10.8k", "93%", "120 ms", "400 ms", "interactive", "draining", "of 100k", "late"):
        assert width < 60 or word in text, word


def test_a_narrow_terminal_shows_each_jobs_progress_failures_and_times():
    (line,) = [line for line in shown(a_night(jobs=[a_job(1)]), 60).splitlines() if "nightly-1" in line]
    assert line.split() == ["nightly-1", "41.2k", "of", "100k", "12", "1h30", "5h33"]


def test_a_wide_terminal_shows_where_workers_run_and_on_what():
    text = shown(a_night(), 160)
    for word in ("gpu-1.example", "NVIDIA H100", "71.0 GiB", "spot", "on_demand", "qwen3-8b,(minilm)"):
        assert word in text, word


def test_figures_that_are_not_known_are_dashes_and_never_zeros():
    service = dict.fromkeys(("prompt_tokens_per_s", "generation_tokens_per_s", "rows_per_s", "busy_fraction"))
    night = a_night(
        workers=[a_worker(1, figures=None)],
        jobs=[a_job(1, eta_at=None, expires_at=None)],
        service=service | {"workers_ready": 1, "first_token_p50_s": {}, "first_token_p95_s": {}},
        history=[],
    )
    text = shown(night)
    assert "tokens/s out -  in -  rows/s -  busy -" in text
    assert "first token none in the last minute" in text
    (line,) = [line for line in text.splitlines() if line.startswith("wrk_01")]
    assert line.split()[1:6] == ["ready", "-", "-", "-", "-"]


def test_an_idle_service_says_so():
    text = shown(a_night(workers=[], jobs=[], service_queue=[], workers_=0))
    assert "queue (shards and requests of all tenants): empty" in text
    assert "workers: none was heard of in the last 30 s" in text
    assert "running jobs: none" in text


def test_without_the_service_queue_it_is_the_tenants_own():
    own = {
        "kind": "bulk",
        "priority": "standard",
        "model": None,
        "queued": 2,
        "running": 1,
        "paused": 1,
        "rows_left": 5,
    }
    text = shown(a_night(service_queue=None, queue=[own]))
    assert "queue (this tenant's jobs)" in text
    (line,) = [line for line in text.splitlines() if line.startswith("standard")]
    assert line.split() == ["standard", "-", "bulk", "2", "1", "5", "1"]


def test_a_job_that_will_miss_its_deadline_is_late_in_words_and_in_red():
    late = a_night(jobs=[a_job(1, eta_at=NOW_S + 30_000)])
    assert "8h20 late" in shown(late)
    assert "\x1b[1;31m8h20 late" in shown(late, color_system="standard", force_terminal=True)


def test_a_worker_whose_machine_goes_says_so_and_in_how_long():
    goes = {"kind": "interruption", "received_at": NOW_S - 5, "ends_at": NOW_S + 115}
    soon, at_risk = goes | {"ends_at": None}, goes | {"kind": "rebalance", "ends_at": None}
    workers = [a_worker(place, notice=notice) for place, notice in enumerate((goes, soon, at_risk))]

    text = shown(a_night(workers=workers))
    assert [word in text for word in ("machine goes in 1m", "machine at risk")] == [True, True]
    assert text.count("machine goes") == 2
    with_older_api = a_worker()
    del with_older_api["notice"]
    assert "ready" in shown(a_night(workers=[with_older_api]))


def test_without_colour_nothing_is_coloured_and_nothing_is_missing(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(a_night(), color_system="auto", force_terminal=True)
    assert not any(f"\x1b[{code}" in text for code in ("31", "1;31", "32", "33", "36"))
    assert "8h20 late" in text


@pytest.mark.parametrize("height", [10, 24, 40])
def test_many_workers_and_jobs_fit_the_terminals_height(height):
    night = a_night(
        workers=[a_worker(number) for number in range(50)],
        jobs=[a_job(number) for number in range(50)],
        service_queue=[a_group(model=f"model-{number}") for number in range(50)],
    )
    lines = shown(night, 100, height).splitlines()
    assert len(lines) <= max(height, 24)
    assert sum("more)" in line for line in lines) == 3


def test_of_a_low_terminal_the_room_goes_to_what_needs_it():
    night = a_night(workers=[a_worker(1)], jobs=[a_job(number) for number in range(30)])
    lines = shown(night, 100, 40).splitlines()
    assert sum("nightly-" in line for line in lines) > 15


def test_a_problem_is_said_above_what_is_old_and_so_are_workers_that_are_wanted_and_not_there():
    text = shown(a_night(), 60, view=View(problem="trying again in 4 s; this is old: No answer"))
    assert "trying again in 4 s; this is old: No answer" in text
    assert "nightly-1" in text
    assert "more workers wanted: qwen3-8b 2 of 5 (any)\n" in shown(a_night())
    assert "more workers" not in shown(a_night(workers_wanted=None)), "the key is no administrator's"


def test_jobs_are_sorted_by_what_is_asked_for_and_sorting_goes_round():
    results = ((300, 1, 0), (100, 5, 3), (200, 9, 1))
    night = a_night(
        jobs=[
            a_job(n, expires_at=NOW_S + left, counts={"total": 10, "succeeded": succeeded, "failed": failed})
            for n, (left, succeeded, failed) in enumerate(results, start=1)
        ]
    )
    view, orders = View(), {}
    for name, *_ in JOB_ORDERS:
        text = shown(night, view=view)
        orders[name] = "".join(sorted("123", key=lambda n: text.index(f"nightly-{n}")))
        view = view.next_jobs()
    assert orders == {"deadline": "231", "failed rows": "231", "progress": "321", "name": "123"}
    for _ in WORKER_ORDERS:
        view = view.next_workers()
    assert view == View()


HOSTILE = [
    *("\x1b[2J\x1b[31mred", "\x1b]0;title\x07", "\x9b31m", "a\rb\nc"),
    *("\u202eevil\u202c", "\u2066x\u2069", "zero\u200bwidth\ufeff", "a" + "\u0301" * 500),
    *("漢字" * 40, "👩‍👩‍👧‍👦" * 10, "[bold red]markup[/]", ":boom:"),
    *("\udc80surrogate", "tab\there", "x" * 10_000),
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("width", [60, 160])
def test_a_hostile_name_anywhere_is_only_text(name, width):
    night = a_night(
        workers=[a_worker(1, id=name, models=[name], warm_models=[], host=name, capacity=name, status=name)],
        jobs=[a_job(1, name=name, model=name, priority=name), a_job(2, name=None, id=name)],
        service_queue=[a_group(model=name, priority=name, capacity=name)],
    )
    text = shown(night, width)
    acting = {character for character in text if character != "\n" and not is_harmless(character)}
    assert acting == set()
    for line in text.splitlines():
        assert cell_len(line) <= width
    plain = a_night(jobs=[a_job(1)] * 2, workers=[a_worker(1)], service_queue=[a_group()])
    assert len(text.splitlines()) == len(shown(plain, width).splitlines())


def is_harmless(character: str) -> bool:
    return unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def test_markup_in_a_name_is_shown_as_it_is():
    assert "[bold red]markup[/]" in shown(a_night(jobs=[a_job(1, name="[bold red]markup[/]")]))
