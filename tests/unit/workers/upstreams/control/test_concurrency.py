"""The rules by which the limit moves. `test_simulated.py` has what comes of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.upstreams.control import ConcurrencyLimit
from workers.upstreams.control.concurrency import RETRY_AFTER_S_MAX


def full(initial: int, **options: int) -> ConcurrencyLimit:
    """A limit with all of its requests in flight, sent at 0 s."""
    limit = ConcurrencyLimit(initial, **options)
    for _ in range(limit.limit):
        limit.on_sent()
    return limit


def test_a_round_of_answers_doubles_the_first_limit():
    limit = full(8)
    for _ in range(8):
        limit.on_done(1.0, 0.0, 100)
        limit.on_sent()

    assert limit.limit == 16
    assert limit.pace == pytest.approx(800)


def test_an_upstream_that_refuses_one_holds_the_others_and_no_more():
    limit = full(64)
    limit.on_overload(1.0)

    assert (limit.limit, limit.in_flight) == (63, 63)
    assert limit.paused_until_s <= 1.0, "the next may be sent as soon as one ends"


def test_an_upstream_that_refuses_all_gets_one_request_at_a_time_and_then_most_of_what_it_had():
    limit = full(64)
    for _ in range(64):
        limit.on_overload(1.0)
    for _ in range(8):
        assert limit.limit == 1
        limit.on_sent()
        limit.on_overload(2.0)

    limit.on_sent()
    limit.on_done(4.0, 3.0, 100)
    assert limit.limit == int(0.7 * 64)


def test_an_answer_to_a_request_sent_before_the_refusal_brings_nothing_back():
    limit = full(64)
    for _ in range(60):
        limit.on_overload(1.0)
    limit.on_done(2.0, 0.0, 100)

    assert limit.limit == 4


def test_retry_after_is_obeyed_up_to_a_bound():
    limit = full(2)
    limit.on_overload(10.0, retry_after_s=7.5)
    assert limit.paused_until_s == 17.5
    limit.on_overload(10.0, retry_after_s=1e9)
    assert limit.paused_until_s == 10.0 + RETRY_AFTER_S_MAX


def test_requests_that_time_out_together_lower_the_limit_once():
    limit = full(100)
    for _ in range(50):
        limit.on_timeout(600.0, 0.0)
    assert limit.limit == 70

    limit.on_timeout(700.0, 650.0)
    assert limit.limit == 49


def test_a_limit_that_is_not_used_is_not_raised():
    limit = ConcurrencyLimit(8)
    for second in range(100):
        limit.on_sent()
        limit.on_done(second + 1.0, float(second), 100)

    assert limit.limit == 8


def test_a_higher_limit_that_is_tried_and_not_used_is_taken_back():
    limit = full(8)
    for _ in range(8):
        limit.on_done(1.0, 0.0, 100)
        limit.on_sent()
    assert limit.limit == 16
    for _ in range(5):
        limit.on_lost()
    for second in range(1, 100):
        limit.on_done(second + 1.0, float(second), 100)
        limit.on_sent()

    assert limit.limit == 8


def test_requests_without_tokens_and_without_a_duration_are_answers_too():
    limit = full(8)
    for _ in range(100):
        limit.on_done(1.0, 1.0, 0)
        limit.on_sent()

    assert limit.pace is not None
    assert math.isfinite(limit.pace)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["done", "overload", "timeout", "lost"]), st.floats(0, 10), st.integers(0, 5000)
    ),
    max_size=300,
)


@given(initial=st.integers(1, 64), most=st.integers(1, 64), events=EVENTS)
def test_the_limit_stays_between_one_and_the_most(
    initial: int, most: int, events: list[tuple[str, float, int]]
):
    limit = ConcurrencyLimit(initial, most)
    now_s = 0.0
    sent_s: list[float] = []
    for kind, seconds, tokens in events:
        while limit.in_flight < limit.limit:
            limit.on_sent()
            sent_s.append(now_s)
        now_s += seconds
        match kind:
            case "done":
                limit.on_done(now_s, sent_s.pop(0), tokens)
            case "overload":
                sent_s.pop()
                limit.on_overload(now_s, seconds)
            case "timeout":
                limit.on_timeout(now_s, sent_s.pop(0))
            case "lost":
                sent_s.pop(0)
                limit.on_lost()
        assert 1 <= limit.limit <= most
        assert limit.in_flight == len(sent_s)
        assert limit.paused_until_s <= now_s + RETRY_AFTER_S_MAX
