"""The collector during imports: off while they run, on again afterwards."""

import gc

import pytest

from nightshift.process.memory import frozen_imports


def test_nothing_is_collected_while_a_block_imports_even_if_that_fails() -> None:
    enabled: list[bool] = []

    def fail() -> None:
        with frozen_imports():
            enabled.append(gc.isenabled())
            raise ImportError("no such module")

    with pytest.raises(ImportError):
        fail()

    assert [*enabled, gc.isenabled()] == [False, True]


def test_what_a_block_made_is_left_alone() -> None:
    before = gc.get_freeze_count()

    with frozen_imports():
        made: list[list[int]] = [[] for _ in range(5_000)]

    assert gc.get_freeze_count() >= before + len(made)
