"""Workloads are the same for everyone: equal for equal seeds, with the sizes that figures are about."""

from __future__ import annotations

import pytest

from benchmarks.workloads import (
    NUM_SPECIAL_TOKENS,
    RECIPES,
    make_workload,
    warm_up_requests,
)


@pytest.mark.parametrize("name", RECIPES)
def test_the_same_seed_gives_the_same_workload_and_another_seed_another(name: str) -> None:
    assert make_workload(name, seed=7) == make_workload(name, seed=7)
    assert make_workload(name, seed=7) != make_workload(name, seed=8)


@pytest.mark.parametrize("name", RECIPES)
def test_lengths_and_ids_stay_in_their_ranges(name: str) -> None:
    workload, recipe = make_workload(name), RECIPES[name]
    for request in workload.requests:
        own_prompt = request.prompt_token_ids[workload.num_shared_prefix_tokens :]
        assert recipe.prompt.low <= len(own_prompt) <= recipe.prompt.high
        assert recipe.output.low <= request.num_output_tokens <= recipe.output.high
        assert all(NUM_SPECIAL_TOKENS <= id < RECIPES[name].vocab_size for id in request.prompt_token_ids)


def test_the_default_seed_gives_the_totals_that_figures_are_published_for() -> None:
    medium = make_workload("medium")
    assert (len(medium.requests), medium.num_prompt_tokens, medium.num_output_tokens) == (64, 6_027, 4_888)


def test_a_shared_prefix_changes_no_length_and_is_in_front_of_every_prompt() -> None:
    plain, shared = make_workload("small"), make_workload("small-shared")
    prefixes = {request.prompt_token_ids[:256] for request in shared.requests}
    assert len(prefixes) == 1
    for one, other in zip(plain.requests, shared.requests, strict=True):
        assert len(one.prompt_token_ids) + 256 == len(other.prompt_token_ids)
        assert one.num_output_tokens == other.num_output_tokens


def test_warming_up_leaves_no_prefix_of_the_workload_in_any_cache() -> None:
    workload = make_workload("small-shared")
    warm = {request.prompt_token_ids[:32] for request in warm_up_requests(workload)}
    assert warm.isdisjoint(request.prompt_token_ids[:32] for request in workload.requests)


@pytest.mark.parametrize(
    ("arguments", "named"), [({"name": "huge"}, "workload"), ({"num_requests": 0}, "num_requests")]
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make_workload(**({"name": "small"} | arguments))  # type: ignore[arg-type]
