"""A field that cannot be what it is, is named, before a library fails over it."""

import json
from typing import Any

import pytest

from nightshift_engine.checkpoint.values import DEPTH_MAX, SIZE_MAX, problem_of

SIZE = f"it must be a whole number of 1 to {SIZE_MAX}"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"hidden_size": "x"}, f"hidden_size 'x'; {SIZE}"),
        ({"hidden_size": -1}, f"hidden_size -1; {SIZE}"),
        ({"hidden_size": 0}, f"hidden_size 0; {SIZE}"),
        ({"hidden_size": 2**62}, f"hidden_size {2**62}; {SIZE}"),
        ({"hidden_size": 768.0}, f"hidden_size 768.0; {SIZE}"),
        ({"hidden_size": True}, f"hidden_size True; {SIZE}"),
        ({"hidden_size": []}, f"hidden_size []; {SIZE}"),
        ({"decoder_layers": -2}, f"decoder_layers -2; {SIZE}"),
        ({"encoder_attention_heads": "8"}, f"encoder_attention_heads '8'; {SIZE}"),
        ({"text_config": {"vocab_size": [1, -1]}}, f"text_config.vocab_size [1, -1]; {SIZE}"),
        ({"type_vocab_size": -1}, f"type_vocab_size -1; it must be a whole number of 0 to {SIZE_MAX}"),
        ({"text_config": "llama"}, "text_config 'llama'; it must be an object"),
        ({"hidden_size": float("nan")}, "hidden_size NaN, which is no number"),
        ({"a": [{"b": [1.0, float("nan")]}]}, "a[0].b[1] NaN, which is no number"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps -1e-06; it must be a number of 0 to 1"),
        ({"layer_norm_eps": "1e-5"}, "layer_norm_eps '1e-5'; it must be a number of 0 to 1"),
        ({"attention_dropout": 2}, "attention_dropout 2; it must be a number of 0 to 1"),
        ({"rope_theta": -1.0}, "rope_theta -1.0; it must be a number above 0"),
        ({"eos_token_id": "</s>"}, "eos_token_id '</s>'; it must be a token id, or a list of them"),
        ({"bos_token_id": [1, [2]]}, "bos_token_id [1, [2]]; it must be a token id, or a list of them"),
        ({"bad_words_ids": [7]}, "bad_words_ids [7]; it must be a list of lists of token ids"),
        ({"no_repeat_ngram_size": "3"}, "no_repeat_ngram_size '3'; it must be a whole number of 0 or more"),
        ({"hidden_size": "y" * 5_000}, f"hidden_size '{'y' * 79}…; {SIZE}"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_field_is_named_with_its_value_and_what_it_must_be(values: dict[str, Any], problem: str) -> None:
    assert problem_of(values) == problem


def test_what_is_nested_deeper_than_any_checkpoint_is_refused_by_its_place() -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        depth = DEPTH_MAX + 2
        values = json.loads(f'{{"hidden_size": {opening * depth}1{closing * depth}}}')

        problem = problem_of(values)

        assert problem is not None
        assert problem.startswith("hidden_size")
        assert problem.endswith(f"nested more than {DEPTH_MAX} deep")


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": 768, "num_hidden_layers": 12, "head_dim": None, "intermediate_size": [1024, 2048]},
        {"image_size": {"height": 224, "width": 224}, "patch_size": [4, 4], "num_heads": [3, 6, [12, 24]]},
        {"time_step_limit": [0.0, float("inf")], "sliding_window": -1, "type_vocab_size": 0, "n_inner": None},
        {"pad_token_id": -1, "eos_token_id": [1, 2], "forced_bos_token_id": None, "suppress_tokens": []},
        {"dropout": 0.1, "classifier_dropout": None, "apply_dropout": True, "rms_norm_eps": 0},
        {
            "bad_words_ids": [[5], [6, 7]],
            "max_length": 20,
            "top_k": -1,
            "num_beams": 6,
            "length_penalty": -1.0,
        },
        {"text_config": {"rope_theta": 1_000_000}, "vision_config": {}, "quantization_config": None},
        {"_from_model_config": True, "temperature": 0.6, "do_sample": True},
    ],
    ids=str,
)
def test_what_checkpoints_really_have_is_left_alone(values: dict[str, Any]) -> None:
    assert problem_of(values) is None
