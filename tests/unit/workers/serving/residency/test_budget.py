"""How models share the memory of a device, before any of them is loaded."""

import pytest

from nightshift.errors import ConfigurationError
from nightshift_engine.models import DeviceMemory, Footprint
from workers.serving.residency.budget import GIB, Need, check_pinned, resident_bytes, shares


def need(model_id: str, weights: int, *, step: int = 1, kv_per_token: int = 0, fixed: bool = False) -> Need:
    """A need in GiB; KV for one token at least."""
    tokens = 1 if kv_per_token else 0
    return Need(model_id, Footprint(weights * GIB, step * GIB, kv_per_token * GIB, tokens, fixed))


def memory(for_kv: int, in_all: int) -> DeviceMemory:
    return DeviceMemory(for_kv * GIB, in_all * GIB)


def test_models_that_fit_are_not_objected_to() -> None:
    check_pinned([need("chat", 14, kv_per_token=1), need("embed", 2)], 19 * GIB)


def test_models_that_do_not_fit_are_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_pinned([need("chat", 14, kv_per_token=1), need("embed", 2)], 18 * GIB)

    assert refused.value.message == (
        "The models do not fit this worker's device together: "
        "chat (14.00 GiB of weights and 1.00 GiB for a step, and 1.00 GiB of KV for 1 tokens); "
        "embed (2.00 GiB of weights and 1.00 GiB for a step); that is 19.00 GiB of 18.00 GiB. "
        "Name some in NIGHTSHIFT_LAZY_MODELS instead: those are loaded when work waits for them."
    )


def test_pinned_models_alone_have_equal_parts_of_all_kv() -> None:
    pinned = [need("a", 1, kv_per_token=1), need("b", 1, kv_per_token=1), need("e", 1)]

    share = shares(pinned, [], memory(8, 40), 43 * GIB)

    assert share.kv == memory(4, 20)


def test_kv_leaves_room_for_the_largest_lazy_model() -> None:
    """40 GiB, of which 3 are for steps of the pinned model and 30 for the lazy one: KV has the other 7."""
    share = shares(
        [need("a", 9, step=3, kv_per_token=1)], [need("big", 28, step=2)], memory(40, 40), 49 * GIB
    )

    assert share.kv.for_kv == 7 * GIB
    assert share.lazy_bytes == 30 * GIB


def test_lazy_models_have_one_part_of_kv_together_with_each_pinned_one() -> None:
    lazy = [need("x", 4, kv_per_token=1), need("y", 4, kv_per_token=1)]

    share = shares([need("a", 9, kv_per_token=1)], lazy, memory(8, 40), 50 * GIB)

    assert share.kv.for_kv == 4 * GIB
    assert resident_bytes(lazy[0].footprint, share.kv) == 9 * GIB
    assert share.lazy_bytes == 35 * GIB


def test_kv_of_a_set_number_of_blocks_is_what_it_is() -> None:
    fixed = need("x", 4, kv_per_token=3, fixed=True)

    share = shares([need("a", 9, kv_per_token=2, fixed=True)], [fixed], memory(8, 40), 50 * GIB)

    assert resident_bytes(fixed.footprint, share.kv) == 8 * GIB
    assert share.lazy_bytes == 37 * GIB


@pytest.mark.parametrize(("in_all", "left"), [(20, "19.00 GiB"), (10, "9.00 GiB")])
def test_a_lazy_model_that_would_never_fit_is_refused_with_the_numbers(in_all: int, left: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        shares([need("a", 9)], [need("small", 1), need("big", 28)], memory(5, in_all), 30 * GIB)

    assert refused.value.param == "LAZY_MODELS"
    assert refused.value.message == (
        "The model 'big' does not fit this worker's device beside a (9.00 GiB of weights and 1.00 GiB for a "
        "step): it needs 28.00 GiB of weights and 1.00 GiB for a step, "
        f"and {left} of 30.00 GiB are left for it."
    )
