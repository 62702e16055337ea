"""Workloads are the same for everyone: equal for equal seeds, with the sizes that figures are about."""

from __future__ import annotations

import pytest

from benchmarks.fixtures.workloads import DOCUMENTS, NUM_SPECIAL_TOKENS, RECIPES, make_queries, make_workload


@pytest.mark.parametrize("name", RECIPES)
def test_a_seed_gives_one_workload_whose_lengths_and_ids_stay_in_their_ranges(name: str) -> None:
    assert make_workload(name, seed=7) == make_workload(name, seed=7)
    assert make_workload(name, seed=7) != make_workload(name, seed=8)
    workload, recipe = make_workload(name), RECIPES[name]
    for prompt, num_output in workload.items:
        own_prompt = prompt[workload.num_shared_prefix_tokens :]
        assert recipe.prompt.low <= len(own_prompt) <= recipe.prompt.high
        assert recipe.output.low <= num_output <= recipe.output.high
        assert all(NUM_SPECIAL_TOKENS <= id < recipe.vocab_size for id in prompt)


def test_batches_have_items_of_their_own_and_run_them_after_their_prompts() -> None:
    workload = make_workload("decoding")
    parts = workload.parts()

    assert [len(part.items) for part in parts] == [1, 8, 32]
    assert tuple(item for part in parts for item in part.items) == workload.items
    assert sum(part.amount for part in parts) == workload.amount
    for part in parts:
        assert [prompt for prompt, _ in part.warm_up] == [prompt for prompt, _ in part.items]
        assert part.only_decodes
    assert [len(part.items) for part in make_workload("decoding", count=3).parts()] == [1, 2]
    assert make_workload("medium").parts() == [make_workload("medium")]


def test_the_default_seed_gives_the_totals_that_figures_are_published_for() -> None:
    medium = make_workload("medium")
    prompt_tokens = sum(len(prompt) for prompt, _ in medium.items)
    assert (len(medium.items), prompt_tokens, medium.amount) == (64, 6_027, 4_888)


def test_a_shared_prefix_changes_no_length_and_is_in_front_of_every_prompt() -> None:
    plain, shared = make_workload("small"), make_workload("small-shared")
    assert len({prompt[:256] for prompt, _ in shared.items}) == 1
    for one, other in zip(plain.items, shared.items, strict=True):
        assert (len(one[0]) + 256, one[1]) == (len(other[0]), other[1])


def test_warming_up_leaves_no_prefix_of_the_workload_in_any_cache() -> None:
    workload = make_workload("small-shared")
    warm = {prompt[:32] for prompt, _ in workload.warm_up}
    assert warm.isdisjoint(prompt[:32] for prompt, _ in workload.items)


@pytest.mark.exhaustive
def test_texts_and_queries_count_their_tokens_rows_and_documents() -> None:
    texts, rerank = make_workload("embeddings", count=3), make_workload("rerank", count=2)

    assert make_workload("classification", count=3).amount == len(texts.items) == 3
    assert 3 * 8 <= texts.amount <= 3 * 512
    assert rerank.amount == 2 * DOCUMENTS == sum(len(documents) for _, documents in rerank.items)


def test_queries_have_so_many_documents_each_and_none_has_two_queries() -> None:
    texts = [f"text {number}" for number in range(10)]

    queries = make_queries(texts, num_documents=4, seed=1)

    assert [documents for _, documents in queries] == [texts[:4], texts[4:8]]
    assert queries == make_queries(texts, num_documents=4, seed=1)
