"""Encoder-decoders answer as transformers' `generate` does, alone and batched, preempted and resumed."""

import random
from pathlib import Path

import pytest

from nightshift_engine import Engine, EngineConfig, InvalidRequest, Request, SamplingParams
from nightshift_engine.errors import InvalidConfig, PromptTooLong
from nightshift_engine.seq2seq.model import load_seq2seq, seq2seq_config
from tests.unit.engine.tiny.decoders import complete, engine_config
from tests.unit.engine.tiny.seq2seq import (
    BLOCK_SIZE,
    POSITIONS,
    START,
    generate,
    make_seq2seq_engine,
    save_seq2seq,
    tokens_of,
    translate,
    translation,
)


def some_sources(count: int = 7, seed: int = 3) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(2, 256) for _ in range(rng.randint(1, 30))] for _ in range(count)]


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_seq2seq(tmp_path_factory.mktemp("bart"), "bart")


def test_plain_torch_answers_as_the_kernel_does(bart: Path) -> None:
    """It computes where there is no kernel: on a GPU, and for T5."""
    config = engine_config(bart, attention_backend="torch", block_size=BLOCK_SIZE)
    loaded = load_seq2seq(config)
    sources = some_sources()
    requests = [translation(str(at), source) for at, source in enumerate(sources)]

    completions = complete(Engine.over(loaded), *requests)

    assert loaded.attention == "torch"
    assert tokens_of(completions) == generate(bart, sources)


def test_a_bias_by_position_keeps_the_kernel_out(tmp_path: Path) -> None:
    config = engine_config(save_seq2seq(tmp_path, "t5"), attention_backend="native")
    with pytest.raises(InvalidConfig, match="attention_backend must be auto or torch"):
        load_seq2seq(config)


def test_preempted_sequences_answer_as_if_they_had_not_been(bart: Path) -> None:
    sources = [[n, 7, n, n, 9] for n in range(2, 10)]
    engine = make_seq2seq_engine(bart, num_kv_blocks=14, max_num_batched_tokens=9)
    complete(
        engine, *(translation(f"short-{n}", [n], sampling=SamplingParams(max_tokens=1)) for n in range(8))
    )

    completions = translate(engine, sources)

    assert engine.stats().preemptions > 0
    assert tokens_of(completions) == generate(bart, sources)
    engine.check_integrity()


def test_sampling_with_a_seed_is_the_same_alone_and_resumed(bart: Path) -> None:
    (source,) = some_sources(1)
    sampling = SamplingParams(seed=7, temperature=1.0, max_tokens=10, ignore_eos=True, logprobs=2)
    engine = make_seq2seq_engine(bart)
    (whole,) = complete(engine, translation("row", source, sampling=sampling))
    earlier = {"output_token_ids": whole.token_ids[:4], "output_logprobs": whole.logprobs[:4]}
    (resumed,) = complete(engine, translation("row", source, sampling=sampling, **earlier))

    assert (resumed.token_ids, resumed.text) == (whole.token_ids, whole.text)
    assert len(whole.logprobs) == 10


def test_a_forced_first_token_is_read_and_not_generated(tmp_path: Path) -> None:
    directory = save_seq2seq(tmp_path, "m2m_100")
    (source,) = some_sources(1)
    (expected,) = generate(directory, [source], forced_bos_token_id=259)
    (completion,) = complete(make_seq2seq_engine(directory), translation("row", source, start=(START, 259)))

    assert expected[0] == 259
    assert completion.token_ids[:11] == expected[1:]


def test_a_source_beyond_the_encoders_positions_is_refused(bart: Path) -> None:
    engine = make_seq2seq_engine(bart)
    engine.check(translation("fits", [7] * POSITIONS))
    with pytest.raises(PromptTooLong, match=f"source of {POSITIONS + 1} tokens exceeds the encoder's input"):
        engine.add(translation("row", [7] * (POSITIONS + 1)))
    with pytest.raises(InvalidRequest, match="no source"):
        engine.add(Request("row", [1, 2, 3]))


def test_an_output_ends_where_the_decoders_positions_do(bart: Path) -> None:
    sampling = SamplingParams(temperature=0, ignore_eos=True)
    (completion,) = complete(make_seq2seq_engine(bart), translation("row", [1, 2, 3], sampling=sampling))
    assert (len(completion.token_ids), completion.finish_reason) == (POSITIONS - 1, "length")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deterministic", True),
        ("weight_dtype", "int8"),
        ("attention_backend", "triton"),
        ("kv_cache_dtype", "int8"),
    ],
)
def test_settings_of_decoders_alone_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=field):
        seq2seq_config(EngineConfig("a-model", **{field: value}))  # type: ignore[arg-type]
