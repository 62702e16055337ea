"""Room for claims beside the shards that a worker holds."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.jobs.priorities import (
    HELD_MAX,
    ROOM_FOR_ALL,
    HeldShard,
    OnlineRoom,
    Room,
    online_room_beside,
    room_beside,
)

FULL_MAX = 3
MODELS = ("m", "other", "third")
SMALL, LARGE = 0.0, 1.0
SMALL_MAX, LARGE_MAX = 13, 8
"""Shards of one model that a tenant may have beside no other tenant."""


def held(count: int, tenant_id: str = "a", model: str = "m", load: float = LARGE) -> list[HeldShard]:
    return [HeldShard(tenant_id, model, load)] * count


def may(shards: Sequence[HeldShard], tenant_id: str, model: str = "m", *, is_small: bool = False) -> bool:
    """Whether a job's shard could be claimed."""
    room = room_beside(shards, [*MODELS, model], FULL_MAX)
    if room is None or model in room.full_models or (tenant_id, model) in room.full_pairs:
        return False
    return is_small or (tenant_id, model) not in room.loaded_pairs


def filled(
    shards: Sequence[HeldShard], tenant_id: str, model: str = "m", load: float = SMALL
) -> list[HeldShard]:
    """The held shards with as many more of a tenant as there may be."""
    shards = list(shards)
    while may(shards, tenant_id, model, is_small=load == SMALL):
        shards.append(HeldShard(tenant_id, model, load))
    return shards


def test_an_idle_worker_has_room_for_all_and_one_that_holds_all_it_may_has_none() -> None:
    assert room_beside([], MODELS, FULL_MAX) == ROOM_FOR_ALL
    assert ROOM_FOR_ALL.is_for_all
    assert not Room(full_models=frozenset({"m"})).is_for_all
    assert room_beside(held(HELD_MAX, load=SMALL), MODELS, FULL_MAX) is None


def test_a_model_has_the_rows_of_so_many_full_shards() -> None:
    full, few_rows = held(FULL_MAX), held(FULL_MAX, load=1 / 8)

    assert filled([], "a", load=LARGE) == full
    assert may(held(FULL_MAX - 1) + held(1, load=7 / 8), "a")
    assert filled(few_rows, "a", load=LARGE) == few_rows + full, "few rows leave their places"
    assert filled(full, "a", "other", LARGE) == full + held(FULL_MAX, model="other")
    assert not may(full, "a")
    assert may(full, "a", is_small=True), "a small job does not wait for the rows of large ones"


def test_a_tenant_may_always_have_the_rows_of_one_shard_of_a_model() -> None:
    shards = held(FULL_MAX)
    assert filled(shards, "b", load=LARGE) == [*shards, *held(1, "b")]
    assert may([*shards, *held(1, "b", load=7 / 8)], "b"), "its next one is read before the rows are run"


def test_a_tenant_leaves_places_to_others_and_to_another_model_whatever_it_has_waiting() -> None:
    few_rows = 1 / 8
    assert filled([], "a", load=few_rows) == held(LARGE_MAX, load=few_rows)
    shards = filled([], "a")
    assert shards == held(SMALL_MAX, load=SMALL)
    assert may(shards, "b")
    assert may(shards, "b", "other")
    assert may(shards, "a", "other")


def test_a_small_job_of_each_model_has_a_place_beside_large_jobs_of_all() -> None:
    shards: list[HeldShard] = []
    models = [f"model-{number}" for number in range(10)]
    for model in models:
        while may(shards, "a", model):
            shards += held(1, model=model)

    assert len(shards) == 22
    for model in models[:5]:
        assert may(shards, "a", model, is_small=True)
        shards += held(1, model=model, load=SMALL)
    assert may(shards, "b", models[0])


def test_each_new_tenant_finds_a_place_while_those_before_take_all_that_they_may() -> None:
    shards: list[HeldShard] = []
    for number in range(9):
        tenant_id = f"tenant-{number}"
        assert may(shards, tenant_id), f"{Counter(shard.tenant_id for shard in shards)}"
        shards = filled(shards, tenant_id)


def test_places_are_shared_again_as_they_become_free() -> None:
    shards = filled(filled([], "a"), "b")
    before = Counter(shard.tenant_id for shard in shards)
    assert before["a"] > before["b"]
    for _ in range(100):
        shards = shards[1:]  # the oldest ends
        for tenant_id in ("a", "b"):
            shards = filled(shards, tenant_id)

    after = Counter(shard.tenant_id for shard in shards)
    assert abs(after["a"] - after["b"]) <= 1


def test_hundreds_of_tenants_leave_places_for_other_models() -> None:
    shards: list[HeldShard] = []
    for number in range(300):
        if may(shards, f"tenant-{number}"):
            shards += held(1, f"tenant-{number}", load=SMALL)

    assert len(shards) == 56
    assert may(shards, "tenant-299", "other")


@pytest.mark.parametrize("full_shards_max", [1, 2, 8])
def test_an_engines_rows_follow_the_setting(full_shards_max: int) -> None:
    shards = held(full_shards_max)
    room = room_beside(shards, MODELS, full_shards_max)
    assert room == Room(loaded_pairs=frozenset({("a", "m")}))
    assert room_beside(shards[1:], MODELS, full_shards_max) == ROOM_FOR_ALL


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c", "d"]),
            st.sampled_from(MODELS),
            st.sampled_from([SMALL, 3 / 8, LARGE]),
            st.booleans(),
        ),
        max_size=200,
    )
)
def test_claims_and_ends_in_any_order_keep_the_bounds(steps: list[tuple[str, str, float, bool]]) -> None:
    shards: list[HeldShard] = []
    for tenant_id, model, load, ends in steps:
        if ends and shards:
            shards.pop(len(shards) // 2)
        elif may(shards, tenant_id, model, is_small=load == SMALL):
            shards.append(HeldShard(tenant_id, model, load))
        by_tenant = Counter(shard.tenant_id for shard in shards)
        assert may(shards, "e", model, is_small=True), "four tenants leave a place to a fifth"
        assert may(shards, "e", "fourth")
        assert max(by_tenant.values(), default=0) <= HELD_MAX // 3


@pytest.mark.parametrize("places", [4, 10, 256, 1000])
def test_a_tenant_with_any_number_of_slow_requests_leaves_places_for_others(places: int) -> None:
    first = 0
    while "first" not in (room := online_room_beside({"first": first}, places)).full_tenants:
        first += room.at_once

    assert places // 2 < first < places
    assert room.at_once > 0


@pytest.mark.parametrize("places", [1, 2, 3])
def test_few_places_for_requests_are_all_used(places: int) -> None:
    assert online_room_beside({}, places) == OnlineRoom(1)
    assert online_room_beside({"first": places - 1}, places) == OnlineRoom(1)
    assert online_room_beside({"first": places}, places).at_once == 0
