"""Decoding as a checkpoint's generation config asks for it, compared with transformers' `generate`."""

import random
from pathlib import Path
from typing import Any

import pytest

from nightshift_engine import Grammar, SamplingParams
from nightshift_engine.errors import UnsupportedModel
from tests.unit.engine.tiny.decoders import EOS, complete
from tests.unit.engine.tiny.seq2seq import (
    PAD,
    START,
    generate,
    make_seq2seq_engine,
    save_seq2seq,
    tokens_of,
    translate,
    translation,
    until_the_end,
)

SOURCES = [[random.Random(seed).randrange(2, 256) for _ in range(1 + 3 * seed)] for seed in range(8)]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("marian", {"min_new_tokens": 9}),
        ("bart", {"min_new_tokens": 3, "min_length": 12}),
        ("bart", {"no_repeat_ngram_size": 1, "suppress_tokens": [3, 4, 26]}),
        ("marian", {"bad_words_ids": [[PAD], [EOS], [20]], "no_repeat_ngram_size": 3}),
        ("pegasus", {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True}),
    ],
)
def test_settings_of_one_output_are_those_of_generate(
    tmp_path: Path, family: str, settings: dict[str, Any]
) -> None:
    """The ends are frequent tokens, so that what puts them off is seen. Settings of beams have no effect."""
    plain = save_seq2seq(tmp_path / "plain", family)
    frequent = [tokens[2] for tokens in generate(plain, SOURCES, 3)]
    ends = [EOS, *frequent]
    directory = save_seq2seq(tmp_path / "model", family, **settings, eos_token_id=ends)
    expected = generate(directory, SOURCES, 30, eos_token_id=ends)
    sampling = SamplingParams(temperature=0, max_tokens=30)

    completions = translate(make_seq2seq_engine(directory), SOURCES, sampling=sampling)

    assert tokens_of(completions) == [until_the_end(token_ids, {*ends}) for token_ids in expected]
    assert any(completion.finish_reason == "stop" for completion in completions), "no end was seen"


def test_a_penalty_on_repetition_looks_at_what_the_decoder_read_and_not_at_the_source(tmp_path: Path) -> None:
    directory = save_seq2seq(tmp_path, "marian")
    expected = generate(directory, SOURCES, 20, repetition_penalty=1.7)
    sampling = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, repetition_penalty=1.7)

    completions = translate(make_seq2seq_engine(directory), SOURCES, sampling=sampling)

    assert tokens_of(completions) == expected
    assert expected != generate(directory, SOURCES, 20), "the penalty had no effect"


def test_a_grammar_decides_where_a_rule_of_the_checkpoint_would_forbid_all_it_allows(tmp_path: Path) -> None:
    directory = save_seq2seq(tmp_path, "bart", min_length=30, no_repeat_ngram_size=1)
    request = translation(
        "row", [5, 6, 7], grammar=Grammar("regex", "(ab){3}"), sampling=SamplingParams(max_tokens=20)
    )

    (completion,) = complete(make_seq2seq_engine(directory), request)

    assert (completion.text, completion.finish_reason) == ("ababab", "stop")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("guidance_scale", 1.5),
        ("force_words_ids", [[3]]),
        ("bad_words_ids", [[3, 4]]),
        ("encoder_no_repeat_ngram_size", 3),
        ("begin_suppress_tokens", [3]),
    ],
)
def test_a_setting_that_is_not_computed_is_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=field):
        make_seq2seq_engine(save_seq2seq(tmp_path, "bart", **{field: value}))


def test_a_forced_first_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="forced_bos_token_id is 999, outside its vocabulary"):
        make_seq2seq_engine(save_seq2seq(tmp_path, "bart", forced_bos_token_id=999))


def test_an_aborted_output_leaves_the_others_as_they_were_and_gives_its_blocks_back(tmp_path: Path) -> None:
    directory = save_seq2seq(tmp_path, "marian")
    engine = make_seq2seq_engine(directory)
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for at, source in enumerate(SOURCES[:3]):
        engine.add(translation(str(at), source, sampling=sampling))
    tokens: dict[str, list[int]] = {str(at): [] for at in range(3)}
    num_steps = 0
    while engine.has_work:
        for output in engine.step():
            tokens[output.id] += output.token_ids
        num_steps += 1
        if num_steps == 4:
            engine.abort("1")

    assert [tokens["0"], tokens["2"]] == generate(directory, [SOURCES[0], SOURCES[2]])
    assert 0 < len(tokens["1"]) < 12
    assert engine.stats().blocks_used == 0
    engine.check_integrity()
    assert START not in tokens["0"]
