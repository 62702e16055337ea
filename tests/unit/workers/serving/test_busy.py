"""The share of time that an engine was busy: over the last seconds, whatever came before."""

import pytest

from workers.serving.busy import WINDOW_S, RecentShare


def test_it_is_the_share_of_time_in_steps() -> None:
    busy = RecentShare(100.0)
    busy.note(102.0, 1.0)

    assert busy.at(104.0, 3.0) == pytest.approx(0.75)


def test_the_step_under_way_counts() -> None:
    assert RecentShare(0.0).at(4.0, 4.0) == 1.0


def test_an_engine_that_has_become_idle_is_idle() -> None:
    busy = RecentShare(0.0)
    for second in range(1, 101):
        busy.note(float(second), float(second))

    assert busy.at(100.0, 100.0) == pytest.approx(1.0)
    assert busy.at(100.0 + WINDOW_S, 100.0) == 0.0
    assert busy.at(100.0 + WINDOW_S / 2, 100.0) == pytest.approx(0.5, abs=0.1)


def test_an_engine_that_was_idle_is_busy_at_once() -> None:
    busy = RecentShare(0.0)
    busy.note(1000.0, 0.0)

    assert busy.at(1000.0 + WINDOW_S, WINDOW_S) == pytest.approx(1.0)


def test_a_share_is_of_the_last_seconds_of_its_clock() -> None:
    share = RecentShare()
    assert share.at(0.0, 0.0) is None
    assert share.at(0.1, 0.05) == pytest.approx(0.5)

    for second in range(1, 101):
        share.note(float(second), 0.8 * min(second, 50) + 0.2 * max(0, second - 50))

    assert share.at(100.0, 50.0) == pytest.approx(0.2)
    assert share.at(100.0 + WINDOW_S, 50.0 + 12.0) > 0.2 * 2, "more than its clock: it is not cut"
