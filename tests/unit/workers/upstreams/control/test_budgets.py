import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.upstreams.control import RateBudget
from workers.upstreams.control.budgets import period_s


def spent_by(budget: RateBudget, end_s: float, tokens: int = 1) -> int:
    """Number of requests that the budget lets pass one after the other."""
    count, now_s = 0, 0.0
    while (now_s := now_s + budget.wait_s(now_s)) < end_s:
        budget.spend(now_s, tokens)
        count += 1
    return count


def test_no_budget_lets_all_pass():
    budget = RateBudget()
    budget.spend(0.0, 10**9)
    assert budget.wait_s(0.0) == 0


@pytest.mark.parametrize("per_minute", [1, 7, 60, 600, 30_000])
def test_a_minute_has_its_requests_and_loses_few(per_minute: int):
    count = spent_by(RateBudget(requests_per_minute=per_minute), 60.0 - 1e-6)
    assert 0.95 * per_minute <= count <= per_minute


def test_bulk_rows_leave_requests_for_the_minutes_end():
    budget = RateBudget(requests_per_minute=600)
    spent_by(budget, 5.0)
    assert budget.wait_s(5.0) <= 0.11


def test_tokens_that_were_not_used_are_given_back():
    budget = RateBudget(tokens_per_minute=6100)
    budget.spend(0.0, 1100)
    assert budget.wait_s(0.0) == pytest.approx(10.0)
    budget.settle(0.0, 1100, 300)
    assert budget.wait_s(0.0) == pytest.approx(2.0)


def test_what_idle_time_has_forgiven_is_not_given_back_too():
    budget = RateBudget(tokens_per_minute=61)
    budget.spend(0.0, 100)
    budget.spend(200.0, 10)
    budget.settle(0.0, 100, 1)
    assert budget.wait_s(200.0) == pytest.approx(9.0)


@pytest.mark.parametrize("amount", [100, 10**9])
def test_a_request_of_more_than_a_minutes_tokens_is_followed_by_a_minute_of_silence(amount: int):
    budget = RateBudget(tokens_per_minute=10)
    budget.spend(0.0, amount)
    assert budget.wait_s(0.0) == 60
    budget.settle(0.0, amount, 2**31)
    assert budget.wait_s(60.0) == 0
    budget.spend(60.0, 1)
    assert budget.wait_s(60.0) == pytest.approx(5.1)


def test_what_an_upstream_told_ends_with_its_reset():
    budget = RateBudget()
    budget.on_headers(0.0, {"x-ratelimit-remaining-tokens": "10", "x-ratelimit-reset-tokens": "6s"})
    budget.spend(0.0, 10**6)
    assert budget.wait_s(0.0) == 6


SENDS = st.lists(st.tuples(st.floats(0, 90), st.integers(0, 900), st.floats(0, 2)), max_size=60)


@given(requests=st.integers(1, 50), tokens=st.integers(1, 3000), sends=SENDS)
def test_no_minute_has_more_than_the_budget(
    requests: int, tokens: int, sends: list[tuple[float, int, float]]
):
    budget = RateBudget(requests, tokens)
    now_s = 0.0
    log: list[tuple[float, int]] = []
    to_settle: tuple[float, int, int] | None = None
    for pause_s, estimate, used in sends:
        now_s += pause_s
        if to_settle is not None:
            budget.settle(*to_settle)
        now_s += budget.wait_s(now_s)
        budget.spend(now_s, estimate)
        actual = min(estimate, int(estimate * used))  # what exceeds an estimate is known too late
        to_settle = (now_s, estimate, actual)
        log.append((now_s, actual))
    for start_s, _ in log:
        minute = [used for sent_s, used in log if start_s <= sent_s < start_s + 60 - 1e-6]
        assert len(minute) <= requests
        assert sum(minute[:-1]) <= tokens


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1), ("6m0s", 360), ("20ms", 0.02), ("2m59.56s", 179.56), ("1h2m3s", 3723), ("12", 12),
        ("0.5", 0.5), ("1s20ms", 1.02), (" 7s ", 7), ("0", 0),
    ],
)  # fmt: skip
def test_periods_are_read_as_vendors_write_them(text: str, seconds: float):
    assert period_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "-1",
        "1e5",
        "nan",
        "inf",
        "1x",
        "1s2h",
        "1767225600",
        "2026-01-01T00:00:00Z",
        "٣",
        "9" * 9999,
    ],
)
def test_other_periods_are_ignored(text: str):
    assert period_s(text) is None


@pytest.mark.parametrize(
    "names",
    [
        ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
        ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
        ("x-ratelimit-remaining-tokens-minute", "x-ratelimit-reset-tokens-minute"),
        ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ],
)
def test_nothing_is_sent_before_the_reset_where_nothing_remains(names: tuple[str, str]):
    budget = RateBudget()
    budget.on_headers(5.0, dict(zip(names, ("0", "6m0s"), strict=True)))
    assert budget.wait_s(5.0) == 360


def test_what_remains_is_spent_evenly_until_the_reset():
    budget = RateBudget()
    budget.on_headers(0.0, {"x-ratelimit-remaining-requests": "20", "x-ratelimit-reset-requests": "40s"})
    assert spent_by(budget, 40.0) == 20


@pytest.mark.parametrize("remaining", ["", "-1", "x", "1.5", "9" * 9999])
@pytest.mark.parametrize("reset", ["", "soon", "1s"])
def test_malformed_headers_are_ignored(remaining: str, reset: str):
    budget = RateBudget()
    budget.on_headers(0.0, {"x-ratelimit-remaining-requests": remaining, "x-ratelimit-reset-requests": reset})
    budget.spend(0.0, 1)
    assert budget.wait_s(0.0) == 0
