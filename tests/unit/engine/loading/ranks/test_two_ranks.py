"""A model on two ranks gives the text of one device, family by family and whatever the engine does."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nightshift_engine import Engine, Request, SamplingParams
from nightshift_engine.core.batcher import Chunk
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.execution.parallel.group import Group
from nightshift_engine.guidance.grammar import Grammar
from nightshift_engine.loading.model import LoadedModel, load_part
from nightshift_engine.loading.ranks.processes import Step
from nightshift_engine.loading.runner import make_model_runner
from tests.unit.engine.execution.test_step_graphs import Replays
from tests.unit.engine.loading.test_model_families import CASES as FAMILIES
from tests.unit.engine.loading.test_model_families import GPT2_NAMES
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import (
    CONTEXT,
    VOCAB_SIZE,
    complete,
    engine_config,
    greedy,
    greedy_answers,
    load_engine,
    load_tokenizer,
    random_prompts,
    reference_greedy,
    save_model,
)
from tests.unit.engine.tiny.ranks import CPU, engine_on_two_ranks, loaded_on_two_ranks, on_two_ranks

NEW_TOKENS = 12

PLAIN = (
    *(
        "llama",
        "llama, tied embeddings",
        "llama, odd head dim",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma2",
        "gemma3_text",
    ),
    *(
        "gpt2",
        "opt",
        "biogpt",
        "persimmon",
        "phi",
        "phi3",
        "granite, multipliers",
        "olmo",
        "smollm3",
        "stablelm",
    ),
    *("ernie4_5", "seed_oss", "starcoder2", "cohere2", "glm4", "nemotron", "exaone4", "helium"),
)
KINDS = {"llama", "qwen2", "qwen3", "gemma3_text", "gpt2", "persimmon", "phi3", "cohere2"}
"""Norms of heads, biases, tied embeddings, windows, learned positions, queries with their keys in one linear
layer by head, all in one, gates in one with what they gate, parallel residuals."""
EXTRAS: dict[str, dict[str, Any]] = {"qwen2": {"tie_word_embeddings": True}}


@pytest.mark.parametrize("family", mostly_exhaustive(PLAIN, default=KINDS))
def test_greedy_text_of_two_ranks_is_that_of_generate(family: str, tmp_path: Path) -> None:
    without = GPT2_NAMES if family == "gpt2" else ()
    settings = FAMILIES[family] | EXTRAS.get(family, {})
    checkpoint = save_model(tmp_path, family.split(",")[0], without=without, **settings)
    prompts = random_prompts(4)

    with engine_on_two_ranks(checkpoint) as engine:
        answers = greedy_answers(engine, prompts, NEW_TOKENS)

    assert answers == reference_greedy(checkpoint, prompts, NEW_TOKENS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("qwen3"), "qwen3", head_dim=12)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Iterator[LoadedModel]:
    with loaded_on_two_ranks(engine_config(checkpoint, tensor_parallel_size=2)) as model:
        yield model


def engine_over(model: LoadedModel, **settings: Any) -> Engine:
    return Engine.over(replace(model, config=replace(model.config, **settings)))


def mixed_requests() -> list[Request]:
    """Prompts that share beginnings, and every way of choosing a token."""
    rng = random.Random(8)
    shared = [rng.randrange(256) for _ in range(9)]
    rules: list[dict[str, Any]] = [
        {"sampling": greedy(9)},
        {"sampling": SamplingParams(max_tokens=9, seed=1, temperature=0.8, ignore_eos=True)},
        {"sampling": SamplingParams(max_tokens=9, seed=2, top_p=0.9, top_k=20, frequency_penalty=0.5)},
        {"sampling": SamplingParams(max_tokens=9, seed=3, repetition_penalty=1.3, logprobs=2)},
        {"sampling": SamplingParams(max_tokens=20), "grammar": Grammar("regex", "(ab){3}")},
    ]
    return [
        Request(str(n), [*shared, *(rng.randrange(256) for _ in range(rng.randint(1, 20)))], **rules[n % 5])
        for n in range(15)
    ]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="roomy"),
        pytest.param({"overlap_steps": True}, id="tokens promised"),
        pytest.param({"num_kv_blocks": 16, "max_num_batched_tokens": 7, "max_num_seqs": 6}, id="cramped"),
    ],
)
def test_two_ranks_give_the_text_of_one_device_whatever_the_engine_does(
    checkpoint: Path, model: LoadedModel, settings: dict[str, Any]
) -> None:
    engine = engine_over(model, **settings)

    # The second pass finds the beginnings of the first.
    passes = [[c.token_ids for c in complete(engine, *mixed_requests())] for _ in range(2)]

    wanted = [c.token_ids for c in complete(load_engine(checkpoint), *mixed_requests())]
    assert passes == [wanted, wanted]
    assert engine.stats().tokens_reused > 0
    assert bool(engine.stats().preemptions) == (settings.get("num_kv_blocks") == 16)
    ranks: Any = model.ranks
    promised = [message for message in ranks.sent if isinstance(message, Step) and message.num_promised]
    assert bool(promised) or not settings.get("overlap_steps")


def test_a_rank_keeps_the_kv_of_its_heads_in_half_the_memory(checkpoint: Path, model: LoadedModel) -> None:
    engine = engine_over(model, num_kv_blocks=None, kv_cache_bytes=1 << 16)
    whole = load_engine(checkpoint, num_kv_blocks=None, kv_cache_bytes=1 << 17)

    assert engine.stats().blocks_total == whole.stats().blocks_total
    assert {shape.num_heads for shape in model.shapes.values()} == {1}, "of two"


def test_an_engine_whose_ranks_another_has_taken_over_computes_no_more(model: LoadedModel) -> None:
    first = engine_over(model, num_kv_blocks=8)
    engine_over(model, num_kv_blocks=8)

    first.add(Request("row", [1, 2], greedy(1)))
    with pytest.raises(AssertionError, match="another engine has the ranks"):
        first.step()


def test_ranks_record_and_replay_the_same_graphs(checkpoint: Path) -> None:
    config = engine_config(checkpoint, attention_backend="torch", num_kv_blocks=9)
    prompt, token = random_prompts(1)[0], 7

    def decode(group: Group) -> tuple[list[int], list[torch.Tensor]]:
        model = load_part(config, load_tokenizer(str(checkpoint)), CPU, group)
        replays, logits = Replays(), []
        for is_recorded in (False, True):
            runner, _ = make_model_runner(model, None)
            sequence = Sequence(Request("row", prompt), arrival=0, num_tokens_max=CONTEXT)
            sequence.add_blocks(list(range(7)))
            runner.forward([Chunk(sequence, len(prompt))])
            if is_recorded:
                runner.record_graphs(
                    replays,
                    max_num_seqs=2,
                    max_num_batched_tokens=16,
                    context_length=CONTEXT,
                    vocab_size=VOCAB_SIZE,
                )
            sequence.num_computed_tokens = len(prompt)
            sequence.append(token)
            logits.append(runner.forward([Chunk(sequence, 1)]).clone())
        return replays.counts, logits

    first, second = on_two_ranks(decode)
    assert first[0] == second[0]
    assert sum(first[0]) == 1, "the step that decodes"
    for by_layer, replayed in (first[1], second[1]):
        torch.testing.assert_close(replayed, by_layer)
        assert torch.equal(by_layer, first[1][0]), "both ranks have the same"
