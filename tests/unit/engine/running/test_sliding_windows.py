"""Models with sliding windows: the answers of `generate`, from KV memory that holds little but windows."""

from pathlib import Path
from typing import Any

import pytest

from nightshift_engine import Request
from nightshift_engine.core.kv_groups import BlockDemand
from nightshift_engine.core.request import PriorityClass
from nightshift_engine.errors import PromptTooLong
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import (
    complete,
    greedy,
    greedy_answers,
    load_engine,
    make_cramped_engine,
    make_engine,
    random_prompts,
    reference_greedy,
    run_to_end,
    save_model,
)

WINDOW = 8
NEW_TOKENS = 16
GEMMA: dict[str, Any] = {"head_dim": 8, "query_pre_attn_scalar": 8}
MIXTURE: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
MODELS: dict[str, tuple[dict[str, Any], tuple[int | None, ...]]] = {
    "mistral": ({"num_hidden_layers": 3}, (8,)),
    "gemma2": (GEMMA | {"num_hidden_layers": 4}, (None, 8)),
    "gemma3_text": (GEMMA | {"num_hidden_layers": 7}, (None, *6 * (8,))),
    "gpt_oss": (MIXTURE | {"num_hidden_layers": 4}, (None, 8)),
    "qwen2": (
        {"num_hidden_layers": 5, "use_sliding_window": True, "max_window_layers": 2},
        (None, None, 8, 8, 8),
    ),
    "cohere2": ({"num_hidden_layers": 4}, (None, 8, 8, 8)),
}


@pytest.fixture(
    scope="module", params=mostly_exhaustive(MODELS, default=["mistral", "gemma3_text", "gpt_oss"])
)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def checkpoint(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    overrides, _ = MODELS[family]
    directory = tmp_path_factory.mktemp("model")
    return save_model(directory, family, sliding_window=WINDOW, **overrides)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Prompts of many lengths; some begin alike, and part ways at, before and after the end of a block."""
    alone = random_prompts(6)
    common = [*range(60, 110)]
    return [*alone, common, *(common[:length] + alone[0] for length in (50, 40, 31, 8)), common + alone[1]]


@pytest.fixture(scope="module")
def wanted(checkpoint: Path, prompts: list[list[int]]) -> list[list[int]]:
    return reference_greedy(checkpoint, prompts, NEW_TOKENS)


def blocks_for(family: str, num_tokens: int) -> int:
    """The least with which a sequence of so many tokens fits alone."""
    return BlockDemand(MODELS[family][1], 4).blocks_for(num_tokens)


def test_layers_are_grouped_by_what_they_see(family: str, checkpoint: Path) -> None:
    assert make_engine(checkpoint)._tables.windows == MODELS[family][1]


SETTINGS: list[dict[str, Any]] = [
    {"attention_backend": "torch"},
    {"max_num_batched_tokens": 7, "overlap_steps": True},
    {"block_size": 32},
    {},
    {"max_num_batched_tokens": 7},
    {"enable_prefix_reuse": False},
    {"kv_cache_dtype": "float32", "max_num_seqs": 2},
]


@pytest.mark.parametrize("settings", mostly_exhaustive(SETTINGS, default=SETTINGS[:3]), ids=str)
def test_greedy_output_equals_generate(
    checkpoint: Path, prompts: list[list[int]], wanted: list[list[int]], settings: dict[str, Any]
) -> None:
    engine = make_engine(checkpoint, **settings)

    assert greedy_answers(engine, prompts, NEW_TOKENS) == wanted
    stats = engine.stats()
    assert stats.blocks_free == stats.blocks_total


def test_answers_are_the_same_from_a_prefix_found_after_its_sequence_has_ended(
    checkpoint: Path, prompts: list[list[int]], wanted: list[list[int]]
) -> None:
    engine = make_engine(checkpoint, max_num_batched_tokens=16, num_kv_blocks=1024)
    alone = [greedy_answers(engine, [prompt], NEW_TOKENS)[0] for prompt in prompts]

    assert alone == wanted
    assert engine.stats().tokens_reused >= 48, "the prompt of 50 tokens has twelve full blocks"
    before = engine.stats().tokens_reused
    assert greedy_answers(engine, [prompts[6]], NEW_TOKENS) == [wanted[6]]
    assert engine.stats().tokens_reused - before == 48


@pytest.mark.parametrize("overlaps", mostly_exhaustive([False, True], default=[True]))
def test_answers_are_the_same_in_memory_of_little_more_than_one_sequence(
    family: str, checkpoint: Path, prompts: list[list[int]], wanted: list[list[int]], overlaps: bool
) -> None:
    longest = max(map(len, prompts)) + NEW_TOKENS
    num_blocks = blocks_for(family, longest)
    cramped = make_cramped_engine(
        checkpoint, num_kv_blocks=num_blocks, max_num_batched_tokens=16, overlap_steps=overlaps
    )

    assert greedy_answers(cramped, prompts, NEW_TOKENS) == wanted


def test_a_preempted_sequence_answers_as_if_it_had_run_alone(
    family: str, checkpoint: Path, prompts: list[list[int]], wanted: list[list[int]]
) -> None:
    num_blocks = blocks_for(family, 90) + 4
    engine = make_engine(checkpoint, num_kv_blocks=num_blocks, max_num_batched_tokens=16)
    order: list[tuple[int, PriorityClass]] = [(6, "background"), (9, "background"), (10, "background")]
    for index, priority in order:
        engine.add(Request(f"r{index}", prompts[index], greedy(NEW_TOKENS), priority=priority))
    early = []
    while sum(len(output.token_ids) for output in early) < 10:
        early += engine.step()
        engine.check_integrity()
    for index in (7, 11, 8):
        engine.add(Request(f"r{index}", prompts[index], greedy(NEW_TOKENS), priority="interactive"))
    completions = run_to_end(engine)

    assert engine.stats().preemptions > 0
    for index in (7, 8, 11):
        assert completions[f"r{index}"].token_ids == wanted[index]
    for index in (6, 9, 10):
        told = [token for output in early if output.id == f"r{index}" for token in output.token_ids]
        rest = completions[f"r{index}"].token_ids if f"r{index}" in completions else []
        assert told + rest == wanted[index]


def test_a_sequence_resumed_elsewhere_goes_on_with_the_same_tokens(
    checkpoint: Path, prompts: list[list[int]], wanted: list[list[int]]
) -> None:
    engine = make_engine(checkpoint, max_num_batched_tokens=8)
    requests = [
        Request(f"r{n}", prompt, greedy(NEW_TOKENS), output_token_ids=tokens[: 1 + n])
        for n, (prompt, tokens) in enumerate(zip(prompts, wanted, strict=True))
    ]

    assert [completion.token_ids for completion in complete(engine, *requests)] == wanted


def test_what_never_fits_is_refused_with_the_length_that_would(family: str, checkpoint: Path) -> None:
    windows = MODELS[family][1]
    unlimited, windowed = windows.count(None), len(windows) - windows.count(None)
    num_blocks = 3 * windowed + 10 * unlimited
    engine = make_engine(checkpoint, num_kv_blocks=num_blocks)
    if not unlimited:
        assert engine.longest_sequence == engine.context_length
        return

    assert engine.longest_sequence == 40
    with pytest.raises(PromptTooLong, match="the KV memory of 40 tokens"):
        engine.add(Request("too long", [1] * 40, greedy(1)))
    (completion,) = complete(engine, Request("fits", [1] * 39, greedy(50)))
    assert (len(completion.token_ids), completion.finish_reason) == (1, "length")


def test_the_same_memory_holds_several_times_more_sequences_than_if_every_layer_kept_all(
    tmp_path: Path,
) -> None:
    """Gemma 3 has five windowed layers to a full one, and a window of a sixteenth of the context."""
    shape = GEMMA | {"num_hidden_layers": 12, "sliding_window": 32, "max_position_embeddings": 512}
    checkpoint = save_model(tmp_path / "model", "gemma3_text", **shape)
    bytes_per_token = 12 * 2 * (8 + 8) * 4  # layers, KV heads, keys and values, float32
    memory = 2 * 512 * bytes_per_token  # two such contexts, if every layer kept all
    engine = load_engine(
        checkpoint, num_kv_blocks=None, kv_cache_bytes=memory, max_num_batched_tokens=128, block_size=8
    )
    for number in range(7):
        engine.add(Request(f"r{number}", [number + 1] * 400, greedy(100)))
    most = 0
    while engine.has_work:
        engine.step()
        most = max(most, engine.stats().running)

    assert most == 7
    assert engine.stats().preemptions == 0
