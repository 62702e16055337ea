"""Sampling parameters are right or refused, and the refusal names the field."""

from typing import Any

import pytest

from nightshift_engine import SamplingParams
from nightshift_engine.errors import InvalidSamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("top_k", -2),
        ("top_k", 1.0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", 2**64),
        ("seed", "7"),
        ("stop", ("",)),
        ("stop", (7,)),
        ("stop", ("x" * 2000,)),
        ("stop", tuple(str(number) for number in range(100))),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", ("a",)),
        ("allowed_token_ids", (-1,)),
        ("allowed_token_ids", 5),
        ("logprob_token_ids", (3, 4)),  # without as many logprobs
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-320),
        ("repetition_penalty", 1e6),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: 101.0}),
        ("temperature", 10**400),
        ("presence_penalty", -(10**400)),
        ("logit_bias", {1: 10**400}),
        ("logit_bias", None),
        ("logit_bias", [1, 2]),
        ("stop", None),
        ("stop", 7),
        ("stop_token_ids", None),
        ("ignore_eos", "no"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidSamplingParams, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(InvalidSamplingParams, match=r"min_tokens must not exceed max_tokens \(3\), got 4"):
        SamplingParams(min_tokens=4, max_tokens=3)


def test_a_single_stop_string_is_one_stop_string() -> None:
    loose: Any = "END"
    assert SamplingParams(stop=loose).stop == ("END",)


def test_defaults_are_plain_sampling_without_a_limit() -> None:
    params = SamplingParams()

    assert params.temperature > 0
    assert not params.has_penalties
    assert params.max_tokens is None


def test_the_extremes_of_every_range_are_accepted() -> None:
    SamplingParams(temperature=0, top_k=-1, top_p=1.0, min_p=1.0, seed=-(2**63), presence_penalty=-2)
    SamplingParams(min_p=0.0, seed=2**64 - 1, frequency_penalty=2.0, logit_bias={0: -100.0, 5: 100.0})
