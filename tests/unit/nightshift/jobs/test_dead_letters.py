"""Who is to blame for the death of a worker, as far as can be told."""

import pytest

from nightshift.fleet.workers import ExitCause
from nightshift.jobs.dead_letters import (
    ALONE_MAX,
    ALONE_TO_BURY,
    AMONG_OTHERS_MAX,
    CRASHES_TO_BURY,
    CRASHES_WITHOUT_SUSPECT_MAX,
    Judgement,
    judge,
)

TWICE = AMONG_OTHERS_MAX  # what a row has cost that was there at the first two losses


def test_the_first_worker_lost_makes_nobody_a_suspect() -> None:
    judged = judge(ExitCause.ABORTED, 0, (), {}, is_isolating=False)

    assert judged == Judgement(charge=True)


def test_rows_that_were_under_way_when_the_second_was_lost_are_suspects() -> None:
    judged = judge(ExitCause.ABORTED, 1, (3, 4, 5), {}, is_isolating=False)

    assert judged == Judgement(charge=True, blamed=(3, 4, 5), isolate=True)


def test_a_row_that_was_alone_when_the_third_was_lost_is_dead_and_the_shard_is_not_charged() -> None:
    judged = judge(ExitCause.OUT_OF_MEMORY, 2, (4,), {4: TWICE, 5: TWICE}, is_isolating=True)

    assert judged == Judgement(charge=False, blamed=(4,), dead=(4,), isolate=True)


def test_after_the_last_suspect_the_rows_run_together_again() -> None:
    assert not judge(ExitCause.ABORTED, 2, (4,), {4: TWICE}, is_isolating=True).isolate


def test_a_row_that_was_first_seen_after_the_shard_was_watched_dies_of_its_third_as_well() -> None:
    crashes = 0
    judged = judge(ExitCause.ABORTED, 2, (90,), {}, is_isolating=False)
    while not judged.dead:
        crashes += 1
        judged = judge(ExitCause.ABORTED, 2, (90,), {90: crashes}, is_isolating=True)

    assert crashes + 1 == CRASHES_TO_BURY


def test_a_row_beside_others_is_never_dead() -> None:
    assert judge(ExitCause.ABORTED, 9, (4, 5), {4: 9, 5: 9}, is_isolating=True).dead == ()
    assert judge(ExitCause.ABORTED, 9, (4,), {4: 9}, is_isolating=False).dead == ()
    assert judge(ExitCause.ABORTED, 9, (4,), {5: 9}, is_isolating=True).dead == ()


@pytest.mark.parametrize("cause", [ExitCause.KILLED, ExitCause.LEASE_EXPIRED, ExitCause.UNREQUESTED_DRAIN])
def test_a_row_dies_of_deaths_nobody_explains_only_after_many_while_it_ran_alone(cause: ExitCause) -> None:
    assert alone_until_dead(cause, lost_elsewhere=0) == ALONE_TO_BURY > CRASHES_TO_BURY


def test_where_workers_are_lost_everywhere_it_takes_as_many_more_but_not_for_ever() -> None:
    assert alone_until_dead(ExitCause.KILLED, lost_elsewhere=3) == ALONE_TO_BURY + 3
    assert alone_until_dead(ExitCause.KILLED, lost_elsewhere=1000) == ALONE_MAX
    assert alone_until_dead(ExitCause.ABORTED, lost_elsewhere=1000) == CRASHES_TO_BURY - TWICE


def alone_until_dead(cause: ExitCause, lost_elsewhere: int) -> int:
    """How many workers a row costs that runs alone in them."""
    alone, judged = 0, Judgement(charge=True)
    while not judged.dead:
        judged = judge(cause, 2, (4,), {4: TWICE + alone}, is_isolating=True, lost_elsewhere=lost_elsewhere)
        alone += 1
    return alone


@pytest.mark.parametrize(
    "cause", [ExitCause.DRAIN_TOO_SLOW, ExitCause.QUEUE_CONNECTION_LOST, ExitCause.DRAINED]
)
def test_an_end_that_is_no_crash_is_not_charged(cause: ExitCause) -> None:
    judged = judge(cause, 2, (4,), {4: TWICE}, is_isolating=True)

    assert judged == Judgement(charge=False, isolate=True)


def test_a_shard_whose_reading_kills_is_given_up() -> None:
    last = CRASHES_WITHOUT_SUSPECT_MAX - 1

    assert judge(ExitCause.SIGNAL, last, (), {}, is_isolating=False).give_up
    assert not judge(ExitCause.SIGNAL, last - 1, (), {}, is_isolating=False).give_up
    assert not judge(ExitCause.SIGNAL, last, (4,), {}, is_isolating=False).give_up
    assert not judge(ExitCause.KILLED, 100, (), {}, is_isolating=False).give_up
