"""The least time of a step: against a count of every token and what it sees, and of models of known size."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from nightshift_engine.core.roofline import (
    AttentionWork,
    DeviceLimits,
    EncoderRoofline,
    EncoderWork,
    ExpertWork,
    ModelWork,
    Roofline,
)
from nightshift_engine.encoders.packed_layers import read_encoder_work as read_encoder_work
from nightshift_engine.execution.kv_memory import KvShape
from nightshift_engine.loading import device_limits
from nightshift_engine.loading.device_limits import measure_limits, read_work
from tests.unit.engine.tiny.decoders import BASE
from tests.unit.engine.tiny.encoders import tiny_bert

ONLY_BYTES, ONLY_FLOPS = DeviceLimits(1.0, 1e30), DeviceLimits(1e30, 1.0)
spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=5)


@given(spans=spans, window=st.one_of(st.none(), st.integers(1, 30)))
def test_a_step_reads_and_computes_what_its_tokens_see(
    spans: list[tuple[int, int]], window: int | None
) -> None:
    work = ModelWork(1000, 4000, 100, 400, (AttentionWork(window, 7, 3),))
    tokens, seen = sum(count for _, count in spans), sum(start + count for start, count in spans)
    positions = [start + place for start, count in spans for place in range(count)]
    first_seen = [max(0, start + 1 - (window or 10**9)) for start, _ in spans]
    read = sum(start + count - first for (start, count), first in zip(spans, first_seen, strict=True))
    pairs = sum(min(position + 1, window or 10**9) for position in positions)

    step = (tokens, seen, len(spans), spans)
    assert Roofline(work, ONLY_BYTES).least_seconds(*step) == 4400 + 7 * read
    assert Roofline(work, ONLY_FLOPS).least_seconds(*step) == 2 * 1000 * tokens + 200 * len(spans) + 3 * pairs


def test_a_step_takes_as_long_as_the_slower_of_both() -> None:
    work = ModelWork(1000, 4000, 100, 400, (AttentionWork(None, 8, 0),))

    assert Roofline(work, DeviceLimits(4480.0, 1e9)).least_seconds(1, 10, 1, ()) == 1.0
    assert Roofline(work, DeviceLimits(1e9, 2200.0)).least_seconds(1, 10, 1, ()) == 1.0


def test_a_mixture_reads_the_experts_that_a_step_chooses() -> None:
    work = ModelWork(0, 0, 0, 0, (), ExpertWork(8, 2, parameters=800, size_bytes=1600))

    assert work.weight_bytes(1) == 400
    assert 400 < work.weight_bytes(4) < work.weight_bytes(64) <= 1600
    assert work.token_flops == 2 * 200


def loaded(family: str, **fields: Any) -> Any:
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **BASE, **fields))


def work_of(model: Any, windows: dict[int, int | None]) -> ModelWork | None:
    shapes = {layer: KvShape(2, 16, 16) for layer in windows}
    return read_work(model, shapes, windows, torch.float32, layer_dtype="bfloat16", head_dtype="float32")


def test_an_embedding_table_is_no_work_unless_it_is_the_head() -> None:
    untied, tied = loaded("llama"), loaded("gemma2", head_dim=16)
    for model in (untied, tied):
        work = work_of(model, {0: None, 1: 8})
        assert work is not None
        linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        head = model.get_output_embeddings()
        in_layers = sum(linear.weight.numel() for linear in linears if linear is not head)
        assert (work.layer_parameters, work.layer_bytes) == (in_layers, 2 * in_layers)
        assert (work.head_parameters, work.head_bytes) == (head.weight.numel(), 4 * head.weight.numel())
        assert {layer.window for layer in work.attention} == {None, 8}
        assert all(layer.kv_bytes == 2 * 2 * 16 * 4 for layer in work.attention)


def test_a_head_in_float32_is_read_as_bfloat16_if_its_checkpoint_was() -> None:
    model = loaded("llama").bfloat16().float()
    work = work_of(model, {0: None, 1: None})
    assert work is not None
    assert work.head_bytes == 2 * model.get_output_embeddings().weight.numel()


def test_experts_are_counted_by_the_share_that_a_token_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded("qwen3_moe", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16)
    work = work_of(model, {0: None})

    assert work is not None
    assert work.experts is not None
    config = model.config
    assert (work.experts.num_experts, work.experts.num_chosen) == (
        config.num_experts, config.num_experts_per_tok,
    )  # fmt: skip
    everything = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() >= 2)
    embeddings = model.get_input_embeddings().weight.numel()
    counted = work.layer_parameters + work.head_parameters + work.experts.parameters
    assert counted in (everything, everything - embeddings)

    monkeypatch.setattr(device_limits, "_CHOSEN", ())
    assert work_of(model, {0: None}) is None, "not known, so there is no figure"


def test_the_device_is_measured_and_without_a_kernel_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded("llama")
    limits = measure_limits(model, "float32")
    assert limits is not None
    assert limits.bytes_per_second > 1e7
    assert limits.flops_per_second > 1e7

    def none(*_: object) -> None:
        raise LookupError

    monkeypatch.setattr(device_limits, "fastest_pack", none)
    assert measure_limits(model, "int8") is None


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_a_pass_of_an_encoder_reads_its_weights_once_and_computes_what_its_tokens_see(
    lengths: list[int],
) -> None:
    work = EncoderWork(1000, 300, 4000, 7, 3)
    pairs = sum(1 for length in lengths for _ in range(length) for _ in range(length))

    assert EncoderRoofline(work, ONLY_BYTES).least_seconds(lengths) == 4000
    linear = 2 * (1000 * sum(lengths) + 300 * len(lengths))
    assert EncoderRoofline(work, ONLY_FLOPS).least_seconds(lengths) == linear + 7 * pairs + 3 * sum(lengths)


@pytest.mark.parametrize("length", [1, 17])
def test_an_encoders_work_is_what_pytorch_counts_of_its_layers(length: int) -> None:
    model = tiny_bert().eval()
    ids, hidden = torch.ones(1, length, dtype=torch.long), model.config.hidden_size
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH), torch.inference_mode():
        model.encoder(model.embeddings(input_ids=ids))

    whole = read_encoder_work(model, reads_first=False)
    flops = EncoderRoofline(whole, ONLY_FLOPS).least_seconds([length])

    assert flops == counted.get_total_flops()
    first = read_encoder_work(model, reads_first=True)
    of_first = EncoderRoofline(first, ONLY_FLOPS).least_seconds([length])
    passed_by_one = 2 * first.input_parameters * (length - 1) + 4 * hidden * (length**2 - length)
    assert flops - of_first == passed_by_one
    assert first.size_bytes == whole.size_bytes == 4 * whole.token_parameters


def test_devices_that_share_a_model_are_as_fast_as_all_of_them() -> None:
    assert DeviceLimits(2.0, 3.0).of_several(4) == DeviceLimits(8.0, 12.0)
