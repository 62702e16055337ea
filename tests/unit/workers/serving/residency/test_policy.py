"""Which lazy model is loaded next, and in place of which."""

from hypothesis import given
from hypothesis import strategies as st

from workers.serving.residency.policy import (
    ELSEWHERE_FIRST_S,
    Load,
    ResidencyConfig,
    Resident,
    Residents,
    Unload,
    Wanted,
    next_change,
)

CONFIG = ResidencyConfig(residency_s=60.0, idle_s=600.0)
NOW_S = 10_000.0
LONG_AGO_S = NOW_S - 3_600.0


def resident(bytes: int = 10, *, loaded_at_s: float = LONG_AGO_S, idle_s: float | None = 1.0) -> Resident:
    """Idle for `idle_s`; None: it runs something."""
    return Resident(bytes, loaded_at_s, None if idle_s is None else NOW_S - idle_s)


def want(bytes: int = 10, *, is_due: bool = False, waits_s: float = 1.0, **fields: object) -> Wanted:
    return Wanted(bytes, is_due, fields.pop("rank", 1), waits_s, **fields)  # type: ignore[arg-type]


def change(
    lazy: dict[str, Resident],
    wanted: dict[str, Wanted],
    busy: tuple[str, ...] | dict[str, int] = (),
    *,
    capacity: int = 10,
    swapped_at_s: float = LONG_AGO_S,
) -> Load | Unload | None:
    """The change where work of class 1 waits for those that are busy."""
    waiting = busy if isinstance(busy, dict) else dict.fromkeys(busy, 1)
    return next_change(Residents(lazy, capacity, swapped_at_s), wanted, waiting, NOW_S, CONFIG)


def test_a_model_that_fits_is_loaded_at_once() -> None:
    assert change({}, {"a": want()}) == Load("a")
    assert change({"b": resident()}, {"a": want()}, ("b", "pinned"), capacity=20) == Load("a")


def test_warm_work_goes_before_that_of_a_cold_model_that_does_not_fit_beside() -> None:
    assert change({"b": resident()}, {"a": want()}, ("b",)) is None
    assert change({"b": resident()}, {"a": want()}, ("pinned",)) is None
    assert change({"b": resident()}, {"a": want()}) == Load("a", ("b",))
    assert change({"b": resident()}, {"a": want(is_due=True)}, ("b",)) == Load("a", ("b",))
    assert change({"b": resident()}, {}) is None


def test_cold_work_of_a_better_class_than_all_that_is_warm_goes_first() -> None:
    assert change({"b": resident()}, {"a": want(rank=1)}, {"b": 2, "pinned": 2}) == Load("a", ("b",))
    assert change({"b": resident()}, {"a": want(rank=1)}, {"b": 2, "pinned": 1}) is None


def test_a_model_that_runs_something_goes_only_for_work_that_is_due() -> None:
    running = {"b": resident(idle_s=None)}

    assert change(running, {"a": want()}) is None
    assert change(running, {"a": want(is_due=True)}) == Load("a", ("b",))


def test_a_model_stays_for_its_residency() -> None:
    fresh = {"b": resident(loaded_at_s=NOW_S - 59)}

    assert change(fresh, {"a": want(is_due=True)}) is None
    assert change({"b": resident(loaded_at_s=NOW_S - 60)}, {"a": want(is_due=True)}) is not None


def test_there_is_one_swap_in_a_residency_time() -> None:
    lazy = {"b": resident()}

    assert change(lazy, {"a": want(is_due=True)}, swapped_at_s=NOW_S - 59) is None
    assert change({}, {"a": want(is_due=True)}, swapped_at_s=NOW_S - 59) == Load("a")  # no swap: it fits
    assert change(lazy, {"a": want(is_due=True)}, swapped_at_s=NOW_S - 60) == Load("a", ("b",))


def test_the_model_idle_for_longest_makes_room_and_no_more_than_needed_do() -> None:
    lazy = {"b": resident(4, idle_s=5), "c": resident(4, idle_s=50), "d": resident(8, idle_s=20)}

    assert change(lazy, {"a": want(4)}, capacity=16) == Load("a", ("c",))
    assert change(lazy, {"a": want(8)}, capacity=16) == Load("a", ("d",))
    assert change(lazy, {"a": want(12)}, capacity=16) == Load("a", ("c", "d"))


def test_due_work_is_first_then_the_better_class_then_the_older() -> None:
    wanted = {
        "old": want(waits_s=900.0),
        "better": want(rank=0),
        "due": want(is_due=True, rank=2),
    }
    assert change({}, wanted) == Load("due")
    del wanted["due"]
    assert change({}, wanted) == Load("better")
    del wanted["better"]
    assert change({}, wanted | {"young": want(waits_s=2.0)}) == Load("old")


def test_a_worker_that_has_it_warm_is_given_time_to_take_the_work() -> None:
    soon, late = (want(waits_s=s, is_due=True, is_warm_elsewhere=True) for s in (1.0, ELSEWHERE_FIRST_S))

    assert change({}, {"a": soon}) is None
    assert change({}, {"a": late}) == Load("a")
    assert change({}, {"a": soon, "b": want()}) == Load("b")


def test_a_model_without_work_is_unloaded_after_its_idle_time() -> None:
    assert change({"b": resident(idle_s=599)}, {}) is None
    assert change({"b": resident(idle_s=600)}, {}) == Unload("b")
    assert change({"b": resident(idle_s=600)}, {}, ("b",)) is None
    assert change({"b": resident(idle_s=None)}, {}) is None

    residents = Residents({"b": resident(idle_s=9_999)}, 10)
    assert next_change(residents, {}, {}, NOW_S, ResidencyConfig(idle_s=0)) is None, "0: it stays"


def test_a_model_that_cannot_fit_even_alone_moves_no_other() -> None:
    assert change({"b": resident()}, {"a": want(11, is_due=True)}) is None


@given(
    lazy=st.dictionaries(
        st.sampled_from("abcd"),
        st.builds(
            resident,
            st.integers(1, 8),
            loaded_at_s=st.floats(NOW_S - 100, NOW_S),
            idle_s=st.none() | st.floats(0, 90),
        ),
    ),
    wanted=st.dictionaries(
        st.sampled_from("wxyz"),
        st.builds(want, st.integers(1, 20), is_due=st.booleans(), waits_s=st.floats(0, 900)),
    ),
    busy=st.dictionaries(st.sampled_from("abcdp"), st.integers(0, 2)),
    swapped_s=st.floats(0, 120),
)
def test_what_is_loaded_fits_and_what_goes_was_allowed_to(
    lazy: dict[str, Resident], wanted: dict[str, Wanted], busy: dict[str, int], swapped_s: float
) -> None:
    residents = Residents(lazy, max(20, sum(resident.bytes for resident in lazy.values())), NOW_S - swapped_s)

    change = next_change(residents, wanted, busy, NOW_S, CONFIG)

    if not isinstance(change, Load):
        return
    gone = sum(lazy[id].bytes for id in change.in_place_of)
    assert wanted[change.model_id].bytes <= residents.free_bytes + gone
    if change.in_place_of:
        assert swapped_s >= CONFIG.residency_s
        assert wanted[change.model_id].is_due or wanted[change.model_id].rank < min(busy.values(), default=9)
        for id in change.in_place_of:
            assert NOW_S - lazy[id].loaded_at_s >= CONFIG.residency_s
            needless = gone - lazy[id].bytes + residents.free_bytes
            assert needless < wanted[change.model_id].bytes, f"{id} went for nothing"
