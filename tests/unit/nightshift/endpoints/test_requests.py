"""What a request may say, and how a refusal names the field that is wrong."""

from typing import Any

import pytest

from nightshift import endpoints
from nightshift.errors import InvalidRequest


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("stream", "perhaps", "stream"),
        ("stream_options", 7, "stream_options"),
        ("stream_options", {"include_usage": []}, "stream_options.include_usage"),
        ("stop", [7], "stop[0]"),
        ("stop", 7, "stop"),
        ("prompt", [1, "a", None], "prompt"),
        ("prompt", [-1], "prompt[0]"),
        ("prompt", None, "prompt"),
        ("temperature", 10**400, "temperature"),
        ("logit_bias", {"5": 101}, "logit_bias.5"),
    ],
)
def test_a_refusal_names_the_field_as_the_caller_wrote_it(field: str, value: Any, param: str) -> None:
    body = {"model": "m", "prompt": "p", field: value}

    with pytest.raises(InvalidRequest) as refused:
        endpoints.get("/v1/completions").parse(body)

    assert refused.value.param == param
    assert f"'{param}'" in refused.value.message
