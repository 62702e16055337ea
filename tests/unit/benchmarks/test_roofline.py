"""The roofline against sums done by hand on a machine with round numbers."""

from __future__ import annotations

import pytest

from benchmarks.limits import LOGIT_BYTES
from benchmarks.machine import Machine
from benchmarks.models import LLAMAS, Shape
from benchmarks.roofline import interpolated, limit, practical_limit, prefill_flops
from benchmarks.workloads import BenchRequest, Workload, make_workload

SHAPE = LLAMAS["tiny"]
PARAMETERS = SHAPE.num_linear_parameters


def machine(bandwidth: float, flops: float, seconds: float = 1e9) -> Machine:
    """`seconds`: of a pass over all linears, whatever the rows; by default slow, so that `flops` is best."""
    rates = {"linear": flops}
    stack = {"linear": {1: seconds, 256: seconds}}
    return Machine("made up", 1, bandwidth, {"float32": rates}, {"float32": stack}, "tiny")


def requests(*lengths: tuple[int, int], shared: int = 0) -> Workload:
    made = tuple(BenchRequest(i, tuple(range(prompt)), output) for i, (prompt, output) in enumerate(lengths))
    return Workload("made up", "tiny", 0, shared, made)


def test_shapes_have_the_sizes_they_are_named_for() -> None:
    def num_parameters(shape: Shape) -> int:
        norms = (2 * shape.num_layers + 1) * shape.hidden_size
        return shape.num_layer_parameters + 2 * shape.num_head_parameters + norms

    assert num_parameters(LLAMAS["small"]) == pytest.approx(23.6e6, rel=0.01)
    assert num_parameters(LLAMAS["medium"]) == pytest.approx(138.8e6, rel=0.001)


def test_where_memory_is_slow_a_decode_step_takes_as_long_as_reading_weights_kv_and_logits() -> None:
    slow_memory = machine(bandwidth=1e6, flops=1e18)
    bound = limit(requests((10, 2)), SHAPE, slow_memory, "float32", max_num_seqs=4)
    kv = 10 * SHAPE.kv_elements_per_token * 4
    assert bound.num_steps == 1, "the prompt's own pass gives the first token"
    assert bound.decode_seconds == pytest.approx((PARAMETERS * 4 + kv + SHAPE.vocab_size * LOGIT_BYTES) / 1e6)


def test_where_arithmetic_is_slow_a_decode_step_takes_as_long_as_its_products() -> None:
    slow_arithmetic = machine(bandwidth=1e18, flops=1e6)
    bound = limit(requests((10, 2), (10, 2)), SHAPE, slow_arithmetic, "float32", max_num_seqs=4)
    assert bound.decode_seconds == pytest.approx(2 * PARAMETERS * 2 / 1e6)


def test_a_free_slot_is_refilled_at_once_and_no_more_run_than_there_are_slots() -> None:
    bound = limit(requests((5, 4), (5, 2), (5, 3)), SHAPE, machine(1e9, 1e9), "float32", max_num_seqs=2)
    # Tokens after the first: 3, 1 and 2. The second's slot goes to the third: 2 + 2 + 2 in three steps.
    assert (bound.num_steps, bound.mean_batch) == (3, 2.0)


def test_a_shared_prefix_is_computed_once() -> None:
    alone = prefill_flops(requests((30, 1)), SHAPE)
    head = 2 * SHAPE.num_head_parameters
    both = prefill_flops(requests((30, 1), (20, 1), shared=20), SHAPE)
    assert both == pytest.approx(alone + head)


def test_the_practical_limit_is_made_of_the_linears_as_measured() -> None:
    measured = machine(bandwidth=1e18, flops=1e18, seconds=0.5)
    bound = practical_limit(requests((10, 3)), SHAPE, measured, "float32", 4, "linear")
    assert bound.decode_seconds == pytest.approx(2 * 0.5)


@pytest.mark.parametrize(("rows", "seconds"), [(1, 1.0), (2, 1.0), (3, 2.0), (4, 3.0), (8, 6.0)])
def test_times_between_measured_row_counts_lie_on_a_line_and_beyond_the_last_in_proportion(
    rows: int, seconds: float
) -> None:
    assert interpolated({2: 1.0, 4: 3.0}, rows) == pytest.approx(seconds)


def test_a_faster_machine_raises_the_limit_of_a_real_workload() -> None:
    workload = make_workload("tiny")
    slow, fast = (
        limit(workload, SHAPE, machine(factor * 1e8, factor * 1e9), "float32", 4) for factor in (1, 2)
    )
    assert fast.output_tokens_per_second == pytest.approx(2 * slow.output_tokens_per_second)
