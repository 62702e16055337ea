import pytest

from nightshift.cli.top import formats


@pytest.mark.parametrize(
    ("shown", "texts"),
    [
        (formats.rate, {None: "-", 0.0: "0", 3.24: "3.2", 9.0: "9", 120.4: "120", 48_210.0: "48.2k"}),
        (formats.count, {None: "-", 0: "0", 9_999: "9999", 10_000: "10.0k", 250_000: "250k"}),
        (formats.count, {1_250_000: "1.2M", 3_000_000_000: "3.0G"}),
        (formats.seconds, {None: "-", 0.008: "8 ms", 0.24: "240 ms", 1.26: "1.3 s", 90.0: "90 s"}),
        (formats.span, {0: "0s", 45.9: "45s", 720: "12m", 11_100: "3h05", 187_200: "2d04h", -61: "-1m"}),
    ],
)
def test_a_figure_is_short(shown, texts):
    assert {value: shown(value) for value in texts} == texts


@pytest.mark.parametrize(
    ("text", "cells", "shown"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("漢字漢字", 5, "漢字…"),
        ("漢字漢字", 4, "漢…"),
        ("  x  ", 5, "x"),
    ],
)
def test_names_are_cut_by_the_cells_they_take(text, cells, shown):
    assert formats.name(text, cells) == shown


def test_a_sparkline_is_as_high_as_its_highest():
    assert formats.sparkline([0, 50, 100, None], 10) == "▁▅█ "
    assert formats.sparkline([0, 0], 10) == "▁▁"
    assert formats.sparkline([1, 2, 3, 4], 2) == "▆█"
    assert formats.sparkline([1, 2], 0) == ""


def test_a_bar_is_never_longer_than_it_may_be():
    assert formats.bar(5, 10, 4) == "██░░"
    assert formats.bar(20, 10, 4) == "████"
    assert formats.bar(0, 0, 4) == formats.bar(3, None, 4) == ""
