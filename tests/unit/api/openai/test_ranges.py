"""The Range header, case by case."""

import pytest

from api.openai.ranges import Unsatisfiable, parse_range

LONG = "9" * 5000  # more digits than Python reads as a number


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=0-99", (0, 100)),
        ("bytes=0-1000", (0, 100)),
        ("bytes=90-", (90, 100)),
        ("bytes=-10", (90, 100)),
        ("bytes=-1000", (0, 100)),
        ("BYTES = 5 - 6", (5, 7)),
    ],
)
def test_a_range_that_can_be_had(header, expected):
    part = parse_range(header, 100)

    assert (part.start, part.end) == expected
    assert part.content_range == f"bytes {expected[0]}-{expected[1] - 1}/100"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes=",
        "bytes=-",
        "bytes=5-4",
        "bytes=0-1,3-4",
        "lines=0-1",
        "x",
        f"bytes={LONG}-",
        f"bytes=0-{LONG}",
        f"bytes=-{LONG}",
    ],
)
def test_what_may_be_ignored_means_the_whole_file(header):
    assert parse_range(header, 100) is None


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0"])
def test_a_range_beyond_the_end_is_unsatisfiable(header):
    with pytest.raises(Unsatisfiable):
        parse_range(header, 100)
