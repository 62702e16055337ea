from nightshift.jobs.backoff import Backoff


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.5, longest_s=30.0)
    delays_s = [backoff.delay_s(failures) for failures in (1, 2, 3, 4, 7, 8)]
    assert delays_s == [0.5, 1.0, 2.0, 4.0, 30.0, 30.0]


def test_what_never_stops_failing_waits_the_longest() -> None:
    assert Backoff(first_s=0.5, longest_s=30.0).delay_s(1_000_000) == 30.0


def test_before_the_first_failure_the_delay_is_the_first() -> None:
    assert Backoff(first_s=0.5, longest_s=30.0).delay_s(0) == 0.5


def test_a_factor_of_one_keeps_the_delay() -> None:
    assert Backoff(first_s=0.1, longest_s=30.0, factor=1.0).delay_s(9) == 0.1
