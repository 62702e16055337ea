"""Which row is charged with the loss of a worker."""

import pytest

from nightshift.fleet.workers import ExitCause
from nightshift.jobs.dead_letters import (
    CRASHES_MAX,
    READING_CRASHES_MAX,
    UNEXPLAINED_CRASHES_MAX,
    Charge,
    LostShard,
    charges,
)

UNWATCHED = LostShard()
WATCHED = LostShard(crashes=1, in_flight=(3, 4, 5))
WAITING = LostShard(crashes=1)  # watched, and none of its rows is in flight
ALONE = LostShard(crashes=2, in_flight=(4,), suspects={4: 2, 5: 2}, is_isolating=True)


@pytest.mark.parametrize(
    ("lost", "charge"),
    [
        pytest.param(UNWATCHED, Charge(shard=True), id="an unwatched shard, and no row of it"),
        pytest.param(
            WATCHED,
            Charge(shard=True, rows=(3, 4, 5), isolate=True),
            id="journalled rows, which run alone from then on",
        ),
        pytest.param(
            ALONE,
            Charge(shard=False, rows=(4,), dead_row=4, isolate=True),
            id="a row that ran alone at the third loss is dead, and its shard is not charged",
        ),
        pytest.param(
            LostShard(crashes=2, in_flight=(4,), suspects={4: 2}, is_isolating=True),
            Charge(shard=False, rows=(4,), dead_row=4, isolate=False),
            id="after the last suspect the rows run together again",
        ),
    ],
)
def test_a_crash_is_charged_to_what_may_have_caused_it(lost: LostShard, charge: Charge) -> None:
    assert charges(ExitCause.ABORTED, [lost]) == [charge]


@pytest.mark.parametrize(
    "among_others",
    [
        LostShard(9, in_flight=(4, 5), suspects={4: 9, 5: 9}, is_isolating=True),
        LostShard(9, in_flight=(4,), suspects={4: 9}, is_isolating=False),
        LostShard(9, in_flight=(4,), suspects={5: 9}, is_isolating=True),
    ],
)
def test_a_row_that_did_not_run_alone_is_never_dead(among_others: LostShard) -> None:
    assert charges(ExitCause.ABORTED, [among_others])[0].dead_row is None


@pytest.mark.parametrize(
    ("cause", "crashes_max"),
    [
        (ExitCause.ABORTED, CRASHES_MAX),
        (ExitCause.KILLED, UNEXPLAINED_CRASHES_MAX),
        (ExitCause.LEASE_EXPIRED, UNEXPLAINED_CRASHES_MAX),
        (ExitCause.UNREQUESTED_DRAIN, UNEXPLAINED_CRASHES_MAX),
    ],
)
def test_unexplained_losses_make_a_dead_letter_only_after_many_more(
    cause: ExitCause, crashes_max: int
) -> None:
    def dead_after(crashes: int) -> bool:
        alone = LostShard(2, in_flight=(4,), suspects={4: crashes - 1}, is_isolating=True)
        return charges(cause, [alone])[0].dead_row is not None

    assert not dead_after(crashes_max - 1)
    assert dead_after(crashes_max)


@pytest.mark.parametrize(
    "cause", [ExitCause.DRAIN_TOO_SLOW, ExitCause.QUEUE_CONNECTION_LOST, ExitCause.DRAINED]
)
def test_an_exit_that_is_no_crash_is_charged_to_nothing(cause: ExitCause) -> None:
    assert charges(cause, [ALONE, WATCHED]) == [
        Charge(shard=False, isolate=True),
        Charge(shard=False, isolate=False),
    ]


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ([ALONE, UNWATCHED, WATCHED], [True, False, False]),  # the row that ran alone
        ([ALONE, ALONE], [False, False]),  # one of them did not
        ([UNWATCHED, WATCHED, WAITING], [True, True, False]),  # what may have been in the engine
        ([WAITING, WAITING], [True, True]),  # nothing was: reading one of them crashed the worker
    ],
)
def test_of_all_that_a_worker_held_only_what_may_have_crashed_it_is_charged(
    held: list[LostShard], expected: list[bool]
) -> None:
    charged = charges(ExitCause.ABORTED, held)

    assert [bool(charge.shard or charge.rows) for charge in charged] == expected


def test_a_shard_that_crashes_its_readers_is_given_up_at_the_fifth_explained_loss() -> None:
    def gives_up(cause: ExitCause, crashes: int, in_flight: tuple[int, ...] = ()) -> bool:
        lost = LostShard(crashes, in_flight, crashes_in_a_row=crashes)
        return charges(cause, [lost])[0].give_up

    assert gives_up(ExitCause.SIGNAL, READING_CRASHES_MAX - 1)
    assert not gives_up(ExitCause.SIGNAL, READING_CRASHES_MAX - 2)
    assert not gives_up(ExitCause.KILLED, READING_CRASHES_MAX - 1), "machines are taken away"
    assert not gives_up(ExitCause.SIGNAL, READING_CRASHES_MAX - 1, (3,)), "a row had begun"


def test_a_request_that_waits_to_run_alone_is_not_charged_for_another_ones_loss() -> None:
    waiting = LostShard(2, suspects={0: 2}, is_isolating=True, is_waiting=True)

    charged = charges(ExitCause.STUCK_STEP, [waiting, waiting])

    assert charged == [Charge(shard=False, isolate=True)] * 2
