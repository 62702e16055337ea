"""A rank's part of a decoder, and a model that is whole while its modules run."""

from typing import Any

import pytest
import torch

from nightshift_engine.errors import UnsupportedModel
from nightshift_engine.execution.device.held_weights import hold_weight, whole_weights
from nightshift_engine.execution.linears.dense import DenseLinear
from nightshift_engine.execution.parallel.group import Group
from nightshift_engine.execution.parallel.part import Part
from nightshift_engine.execution.parallel.sharded import HeldRows, run_of
from tests.unit.engine.tiny.decoders import engine_config
from tests.unit.engine.tiny.ranks import CPU, loaded_on_two_ranks, on_two_ranks

ROWS = 5


def test_a_rank_has_its_run_of_each_section_of_rows() -> None:
    parts = [Part(Group(rank, 2, CPU, backend=None)) for rank in (0, 1)]

    assert [part.rows([4, 2, 2]).tolist() for part in parts] == [[0, 1, 4, 6], [2, 3, 5, 7]]
    assert Part().rows([4, 2, 2]) is None, "all of them"


def test_layers_in_parts_compute_what_the_whole_layer_does() -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(6, 8, generator=generator), torch.randn(6, generator=generator)
    x, residual = torch.randn(3, 8, generator=generator), torch.randn(3, 6, generator=generator)
    wanted = torch.nn.functional.linear(x, weight, bias)

    def compute(group: Group) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        part = Part(group)
        summed = part.summed(DenseLinear(part.columns(weight), part.added(bias)))
        gathered = part.gathered(DenseLinear(part.vocabulary(weight), part.vocabulary(bias)))
        added, stored, outputs = residual.clone(), torch.empty(3, 6), torch.empty(3, 6)
        own = part.columns(x)
        summed.add_to(own, added, 0.5)
        summed.store(own, stored)
        gathered.store(x, outputs)
        return added, stored, outputs

    for added, stored, outputs in on_two_ranks(compute):
        torch.testing.assert_close(added, residual + 0.5 * wanted)
        torch.testing.assert_close(stored, wanted)
        torch.testing.assert_close(outputs, wanted)


def test_ranks_agree_on_the_least_of_their_numbers() -> None:
    assert on_two_ranks(lambda group: group.least(7 + group.rank)) == [7, 7]


def held_linear(group: Group) -> tuple[Any, torch.Tensor]:
    """A layer of whose rows this rank holds its run, and its whole weight."""
    weight = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(2))
    linear = torch.nn.Linear(4, ROWS, bias=False)
    rows = torch.zeros(run_of(ROWS, 0, group.size)[1], 4)
    own = weight[slice(*run_of(ROWS, group.rank, group.size))]
    rows[: len(own)] = own
    hold_weight(linear, "weight", HeldRows(rows, ROWS, group), rows)
    return linear, weight


def test_a_module_has_its_whole_weight_while_it_runs_and_no_memory_between() -> None:
    def run(group: Group) -> bool:
        linear, weight = held_linear(group)
        x = torch.ones(2, 4)
        outputs = [linear(x), linear(x)]
        assert linear.weight.shape == weight.shape
        assert linear.weight.untyped_storage().nbytes() == weight.element_size()
        return all(torch.equal(y, x @ weight.T) for y in outputs)

    assert on_two_ranks(run) == [True, True]


def test_weights_are_whole_for_the_last_time_where_they_are_packed() -> None:
    def pack(group: Group) -> tuple[bool, bool]:
        linear, weight = held_linear(group)
        with whole_weights(torch.nn.ModuleList([linear])):
            is_whole = torch.equal(linear.weight, weight)
        return is_whole, bool(linear(torch.ones(1, 4)).isnan().all())

    assert on_two_ranks(pack) == [(True, True)] * 2, "its rows are given up"


@pytest.mark.parametrize("wrong", ["columns", "rows"])
def test_parts_that_are_cut_wrongly_are_refused_by_the_self_test(
    wrong: str, llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(Part, wrong)
    monkeypatch.setattr(Part, wrong, lambda part, of_what: right(Part(Group(0, 2, CPU, None)), of_what))

    with (
        pytest.raises(UnsupportedModel, match="packed, its logits differ from the reference"),
        loaded_on_two_ranks(engine_config(llama, tensor_parallel_size=2)),
    ):
        raise AssertionError("it was loaded")
