"""Who may give rows to the engine while one row has the worker to itself."""

from workers.suspicion import Isolation, Unwatched


def test_one_at_a_time_has_the_worker_to_itself() -> None:
    isolation, one, another = Isolation(), object(), object()

    assert isolation.take(one)
    assert isolation.take(one)
    assert not isolation.take(another)
    assert isolation.is_held
    isolation.give_up(another)
    assert not isolation.take(another)
    isolation.give_up(one)
    assert isolation.take(another)


def test_a_shard_above_suspicion_stands_back_meanwhile() -> None:
    isolation, suspected = Isolation(), object()
    watch = Unwatched(isolation)
    assert watch.may_admit(3)

    isolation.take(suspected)
    assert not watch.may_admit(3)

    isolation.give_up(suspected)
    assert watch.may_admit(3)
    assert watch.refuses(3) is None
