"""The command that measures what rounded weights do to answers."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.device import weight_error


@pytest.mark.parametrize("code", ["int8", "fp8", "int4"])
def test_all_linear_layers_but_the_last_are_rounded(code: Any) -> None:
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    model = LlamaForCausalLM(config)

    rounded = weight_error.rounded(model, code)

    differ = {
        name
        for name, weight in rounded.named_parameters()
        if not torch.equal(weight, model.get_parameter(name))
    }
    linears = [name for name, module in model.named_modules() if type(module) is torch.nn.Linear]
    assert differ == {f"{name}.weight" for name in linears if name != "lm_head"}


def test_without_a_code_nothing_changes() -> None:
    linear = LlamaForCausalLM(
        LlamaConfig(vocab_size=8, hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    )
    same = weight_error.rounded(linear, None)
    assert all(torch.equal(a, b) for a, b in zip(same.parameters(), linear.parameters(), strict=True))


@pytest.mark.exhaustive
def test_the_demo_model_answers_exactly_in_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_error, "NUMBERS", 40)
    assert weight_error.exact_answers("int8") == "demo model: 40 of 40 answers exact (100.00%)"
