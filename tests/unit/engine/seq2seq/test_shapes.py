"""Checkpoints of all families and of unusual shapes answer as `generate` does, or are refused by name."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from nightshift_engine import Engine, SamplingParams
from nightshift_engine.errors import ModelLoadFailed, UnsupportedModel
from nightshift_engine.seq2seq.model import load_seq2seq
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import complete, engine_config
from tests.unit.engine.tiny.seq2seq import (
    BLOCK_SIZE,
    FAMILIES,
    START,
    generate,
    make_seq2seq_engine,
    save_seq2seq,
    tokens_of,
    translate,
    translation,
)

NUM_TOKENS = 16
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)


def sources_of(*lengths: int, seed: int = 11) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(2, 256) for _ in range(length)] for length in lengths]


def check_answers(directory: Path, engine: Engine, sources: list[list[int]], **settings: Any) -> None:
    expected = generate(directory, sources, NUM_TOKENS, **settings)
    requests = [translation(str(at), source, sampling=GREEDY) for at, source in enumerate(sources)]

    batched = complete(engine, *requests)
    alone = [complete(engine, request)[0] for request in requests[:3]]

    assert tokens_of(batched) == expected
    assert tokens_of(alone) == expected[:3]
    assert [completion.num_prompt_tokens for completion in batched] == [*map(len, sources)]
    engine.check_integrity()


SHAPES: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in FAMILIES),
    ("t5", {"d_model": 24, "d_kv": 12, "num_heads": 5, "num_layers": 3, "num_decoder_layers": 1}),
    ("t5", {"relative_attention_num_buckets": 4, "relative_attention_max_distance": 20, "d_ff": 20}),
    ("flan-t5", {"feed_forward_proj": "gated-silu", "num_heads": 3, "layer_norm_epsilon": 1e-3}),
    ("flan-t5", {"tie_word_embeddings": True, "d_model": 48, "d_kv": 4}),
    ("mt5", {"tie_word_embeddings": True, "num_layers": 2, "num_decoder_layers": 1}),
    ("bart", {"scale_embedding": True, "tie_word_embeddings": False, "activation_function": "relu"}),
    ("bart", {"d_model": 18, "encoder_attention_heads": 1, "decoder_attention_heads": 3}),
    ("mbart", {"scale_embedding": False, "decoder_layers": 4, "encoder_layers": 1}),
    ("marian", {"scale_embedding": False, "activation_function": "swish", "decoder_ffn_dim": 20}),
    ("marian", {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
    ("m2m_100", {"scale_embedding": False, "encoder_layers": 3, "decoder_layers": 1}),
    ("pegasus", {"scale_embedding": True, "decoder_layers": 4, "activation_function": "relu"}),
    ("bart", {"d_model": 1024, "encoder_layers": 1, "decoder_layers": 1}),  # rows are kept apart
    ("mbart", {"d_model": 1024, "encoder_layers": 1, "decoder_layers": 1}),
]


@pytest.mark.parametrize(
    ("family", "shape"), mostly_exhaustive(SHAPES, default=[*SHAPES[: len(FAMILIES)], *SHAPES[8::5]])
)
def test_outputs_are_those_of_generate_alone_and_batched(
    tmp_path: Path, family: str, shape: dict[str, Any]
) -> None:
    directory = save_seq2seq(tmp_path, family, **shape)
    engine = make_seq2seq_engine(directory, num_kv_blocks=70, max_num_batched_tokens=37)
    check_answers(directory, engine, sources_of(1, 2, 40, 7, 64, 1, 19))


def test_more_layers_in_the_decoder_than_in_the_encoder_answer_as_generate_does(tmp_path: Path) -> None:
    """Its own cache has as many layers as the encoder, and is of no use here."""
    directory = save_seq2seq(tmp_path, "t5", num_layers=1, num_decoder_layers=4)
    check_answers(directory, make_seq2seq_engine(directory), sources_of(1, 9, 30), use_cache=False)


def test_sources_beyond_the_length_of_training_answer_as_generate_does(tmp_path: Path) -> None:
    """T5's positions are relative: `max_model_len` alone bounds them."""
    directory = save_seq2seq(tmp_path, "flan-t5")
    config = engine_config(directory, block_size=BLOCK_SIZE, max_model_len=1024, num_kv_blocks=512)
    engine = Engine.over(load_seq2seq(config))

    check_answers(directory, engine, sources_of(600, 1, 900))


@pytest.mark.parametrize("family", mostly_exhaustive(sorted(FAMILIES.keys() - {"mt5"}), default=["flan-t5"]))
def test_bfloat16_is_proven_against_transformers_and_answers(tmp_path: Path, family: str) -> None:
    """Its logits are compared with those of transformers' own model when it is loaded."""
    directory = save_seq2seq(tmp_path, family)
    config = engine_config(directory, block_size=BLOCK_SIZE, dtype="bfloat16")
    loaded = load_seq2seq(config)
    sources = sources_of(3, 20)

    completions = translate(Engine.over(loaded), sources, sampling=GREEDY)

    assert loaded.facts.dtype == "bfloat16"
    for answer, source in zip(completions, sources, strict=True):
        assert is_nearly_the_best(directory, source, answer.token_ids[0])


def test_bfloat16_answers_in_blocks_of_ordinary_size(tmp_path: Path) -> None:
    """Where blocks and heads have its sizes, the kernel keeps bfloat16 in an order of its own."""
    shape = {"d_model": 128, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    directory = save_seq2seq(tmp_path, "pegasus", **shape)
    config = engine_config(directory, block_size=32, num_kv_blocks=64, dtype="bfloat16")
    engine = Engine.over(load_seq2seq(config))
    sources = sources_of(40, 7, 64)

    completions = translate(engine, sources, sampling=SamplingParams(temperature=0, max_tokens=1))

    for answer, source in zip(completions, sources, strict=True):
        assert is_nearly_the_best(directory, source, answer.token_ids[0])


def is_nearly_the_best(directory: Path, source: list[int], token: int) -> bool:
    """True of the first tokens that the model can give in float32, up to what bfloat16 rounds."""
    model = AutoModelForSeq2SeqLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[START]])).logits
    first = logits[0, -1]
    return bool(first[token] > first.max() - 0.05 * first.std())


def test_padding_inside_a_source_has_no_position_in_m2m_100(tmp_path: Path) -> None:
    directory = save_seq2seq(tmp_path, "m2m_100")
    check_answers(directory, make_seq2seq_engine(directory), [[1, 7, 1, 1, 9, 30], [5, 9, 30]])


def without_positions(directory: Path) -> Path:
    path = directory / "model.safetensors"
    kept = {name: weight for name, weight in load_file(path).items() if "embed_positions" not in name}
    save_file(kept, path, metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize("family", ["marian", "pegasus"])
def test_sinusoids_that_older_releases_did_not_save_are_computed(tmp_path: Path, family: str) -> None:
    directory = save_seq2seq(tmp_path, family)
    sources = sources_of(1, 30)
    expected = generate(directory, sources, NUM_TOKENS)

    engine = make_seq2seq_engine(without_positions(directory))

    requests = [translation(str(at), source, sampling=GREEDY) for at, source in enumerate(sources)]
    assert [completion.token_ids for completion in complete(engine, *requests)] == expected


def test_learned_positions_must_be_in_its_files(tmp_path: Path) -> None:
    directory = without_positions(save_seq2seq(tmp_path, "bart"))
    with pytest.raises(ModelLoadFailed, match=r"2 weights are missing: .*embed_positions\.weight"):
        make_seq2seq_engine(directory)


def test_two_vocabularies_are_refused_by_name(tmp_path: Path) -> None:
    sizes = {"decoder_vocab_size": 280, "share_encoder_decoder_embeddings": False}
    directory = save_seq2seq(tmp_path, "marian", tie_word_embeddings=False, **sizes)
    with pytest.raises(UnsupportedModel, match="decoder_vocab_size 280, vocab_size 264"):
        make_seq2seq_engine(directory)


def without_settings(directory: Path, *fields: str) -> None:
    for name in ("config.json", "generation_config.json"):
        path = directory / name
        settings = json.loads(path.read_text())
        path.write_text(json.dumps({name: settings[name] for name in settings if name not in fields}))


def test_a_first_token_that_no_file_states_is_that_of_transformers_configuration(tmp_path: Path) -> None:
    """Marian's default is in the vocabulary of its authors, T5 has none, and others begin a sequence."""
    for family in ("marian", "t5"):
        without_settings(save_seq2seq(tmp_path / family, family), "decoder_start_token_id", "bos_token_id")
    with pytest.raises(UnsupportedModel, match="decoder_start_token_id is 58100, outside"):
        make_seq2seq_engine(tmp_path / "marian")
    with pytest.raises(UnsupportedModel, match="has decoder_start_token_id"):
        make_seq2seq_engine(tmp_path / "t5")
