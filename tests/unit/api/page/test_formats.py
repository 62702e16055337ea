"""How numbers, times and texts are shown."""

from datetime import UTC, datetime, timedelta

import pytest

from api.page.formats import TEXT_CHARS_MAX, ago, duration, number, price, rough, shown
from api.page.views.overview import HOURS, columns, every
from nightshift.fleet.figures import ServiceFigures

NOW = datetime(2026, 11, 25, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.02, "0.1 s"),
        (0.25, "0.2 s"),
        (59, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (90_000, "1 d 1 h"),
        (-90, "-1 min 30 s"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "now"), (90, "1 min ago"), (-7200, "in 2 h"), (200_000, "2 d ago")]
)
def test_a_time_is_told_from_the_databases_now(seconds: int, text: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == text


def test_numbers_are_grouped_or_rough() -> None:
    assert number(1234567) == "1,234,567"
    assert [rough(value) for value in (0, 0.1234, 12, 999, 1000, 1_234_567, 2.5e9)] == [
        "0", "0.123", "12", "999", "1 k", "1.23 M", "2.5 G",
    ]  # fmt: skip


def test_a_price_has_cents_or_two_digits() -> None:
    assert [price(value) for value in (0, 1234.5, 0.011, 0.00423, 0.00001)] == [
        "0.00", "1,234.50", "0.01", "0.0042", "< 0.0001",
    ]  # fmt: skip


def test_a_long_text_is_cut_and_says_how_much_is_missing() -> None:
    cut = shown("x" * 10_000_000)

    assert len(cut) < TEXT_CHARS_MAX + 50
    assert cut.endswith("… (9,998,000 more characters)")
    assert shown("a\x00b\x1b[0m\nc") == "a\ufffdb\ufffd[0m\nc"


def test_a_chart_has_a_gap_where_nothing_was_told() -> None:
    figures = [
        ServiceFigures(at=NOW + timedelta(seconds=15 * place), busy_fraction=0.5)
        for place in range(200)
        if not 100 <= place < 110
    ]

    drawn = columns(figures, hours=2)

    assert drawn["at"] == sorted(drawn["at"])
    assert drawn["at"][-1] == figures[-1].at.timestamp()
    assert [place for place, busy in enumerate(drawn["busy"]) if busy is None] == [100]
    assert columns([], hours=2)["at"] == []


def test_any_time_is_drawn_with_about_as_many_points() -> None:
    assert [every(hours) for hours in HOURS] == [1, 6, 24]
