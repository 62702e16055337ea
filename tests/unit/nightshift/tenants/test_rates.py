"""When a rate that was reached allows more, what headers say of it, and what a request counts for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.tenants.rates import WINDOW_S, Window, duration_text, tokens_asked

counts = st.integers(0, 1000)
windows = st.builds(
    lambda previous, current, rest_s: Window(previous, rest_s, current, rest_s + WINDOW_S),
    counts, counts, st.floats(0.01, WINDOW_S),
)  # fmt: skip


def later(window: Window, seconds: float) -> Window:
    """The same counts, if nothing else is taken."""
    if seconds < window.current_ttl_s - WINDOW_S:
        previous_ttl_s = max(0.0, window.previous_ttl_s - seconds)
        return Window(window.previous, previous_ttl_s, window.current, window.current_ttl_s - seconds)
    return Window(window.current, max(0.0, window.current_ttl_s - seconds), 0, 0.0)


@given(windows, st.integers(1, 1000), st.integers(0, 1000))
def test_after_the_time_that_a_refusal_names_the_request_fits_and_shortly_before_it_does_not(
    window: Window, limit: int, cost: int
) -> None:
    cost = min(cost, limit)
    wait_s = window.fits_in_s(cost, limit)

    assert later(window, wait_s).used + cost <= limit
    if wait_s > 0.01:
        assert later(window, wait_s - 0.01).used + cost > limit


def test_a_rate_that_nothing_was_taken_of_is_free_now() -> None:
    assert Window(0, 0.0, 0, 0.0).empty_in_s(10) == 0.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.12, "120ms"), (1, "1s"), (8.64, "8.64s"), (60, "1m0s"), (360, "6m0s"), (61.5, "1m1.5s")],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"model": "m"}, 100),
        ({"model": "m", "max_tokens": 7}, 107),
        ({"model": "m", "max_completion_tokens": 7, "max_tokens": 9}, 107),
        ({"model": "m", "max_output_tokens": 7}, 107),
        ({"model": "m", "max_tokens": 7, "n": 3}, 121),
        ({"model": "m", "max_tokens": 7, "prompt": ["a", "b"]}, 114),
        ({"model": "m", "max_tokens": 7, "prompt": [1, 2]}, 107),
        ({"model": "m", "max_tokens": "7", "n": True}, 100),
        ({"model": "m", "max_tokens": -7, "n": -1, "prompt": []}, 100),
        ({"input_file_id": "file-1"}, None),
    ],
)
def test_a_request_counts_a_quarter_of_its_bytes_and_the_answers_it_allows(
    body: dict[str, object], tokens: int | None
) -> None:
    assert tokens_asked(body, 400) == tokens
