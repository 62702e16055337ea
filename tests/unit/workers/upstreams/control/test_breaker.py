import math
from itertools import pairwise

from workers.upstreams.control import Breaker
from workers.upstreams.control.breaker import FAULTS_IN_A_ROW, RETRY_S_MAX, RETRY_S_MIN


def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(FAULTS_IN_A_ROW):
        breaker.on_fault(0.0)
    return breaker


def test_faults_in_a_row_open_it_and_an_answer_between_them_does_not():
    breaker = Breaker()
    for _ in range(2):
        for _ in range(FAULTS_IN_A_ROW - 1):
            breaker.on_fault(0.0)
        assert breaker.wait_s(0.0) == 0
        breaker.on_success()

    assert opened().wait_s(0.0) >= RETRY_S_MIN
    assert opened().is_open


def test_one_request_is_let_through_once_the_time_is_over():
    breaker = opened()
    now_s = breaker.wait_s(0.0)
    assert breaker.wait_s(now_s) == 0
    breaker.on_sent(now_s)
    assert breaker.wait_s(now_s) >= RETRY_S_MIN


def test_an_answer_closes_it():
    breaker = opened()
    breaker.on_sent(10.0)
    breaker.on_success()
    assert breaker.wait_s(10.0) == 0
    assert not breaker.is_open


def test_each_failed_trial_doubles_the_time_up_to_its_bound():
    breaker, now_s, waits_s = opened(), 0.0, []
    for _ in range(12):
        waits_s.append(breaker.wait_s(now_s))
        now_s += waits_s[-1]
        breaker.on_sent(now_s)
        breaker.on_fault(now_s)

    assert all(1.4 * before < after for before, after in pairwise(waits_s[:3]))
    assert all(RETRY_S_MIN <= wait_s <= RETRY_S_MAX for wait_s in waits_s)
    assert waits_s[-1] >= 0.75 * RETRY_S_MAX
    assert breaker.is_open


def test_faults_of_requests_sent_before_it_opened_do_not_lengthen_the_time():
    breaker = opened()
    before_s = breaker.wait_s(0.0)
    for _ in range(250):
        breaker.on_fault(0.0)
    assert breaker.wait_s(0.0) == before_s


def test_a_trial_that_is_lost_does_not_keep_it_open():
    breaker = opened()
    breaker.on_sent(5.0)
    assert breaker.wait_s(5.0 + RETRY_S_MAX) == 0


def test_workers_try_at_different_times():
    waits_s = set()
    for _ in range(2):
        breaker = opened()
        for _ in range(2):
            breaker.on_sent(100.0)
            breaker.on_fault(100.0)
        waits_s.add(breaker.wait_s(100.0))
    assert len(waits_s) == 2


def test_a_refused_key_opens_it_for_good():
    breaker = Breaker()
    breaker.on_key_refused()
    breaker.on_success()
    assert breaker.wait_s(1e12) == math.inf
    assert breaker.is_open
