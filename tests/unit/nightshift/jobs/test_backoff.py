from nightshift.jobs.backoff import Backoff


def test_delays_double_from_the_first_up_to_the_longest() -> None:
    backoff = Backoff(first_s=0.5, longest_s=30.0)
    delays_s = [backoff.delay_s(failures) for failures in (0, 1, 2, 3, 4, 7, 8, 1_000_000)]
    assert delays_s == [0.5, 0.5, 1.0, 2.0, 4.0, 30.0, 30.0, 30.0]
    assert Backoff(first_s=0.1, longest_s=30.0, factor=1.0).delay_s(9) == 0.1
