"""Block tables of layers with a sliding window: what they hold, and that no token misses what it sees."""

from itertools import cycle, product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from nightshift_engine.core.kv_groups import BlockDemand, KvGroups, group_layers
from nightshift_engine.core.request import PriorityClass
from tests.unit.engine.core.test_batcher import CLASSES
from tests.unit.engine.core.windowed_model import WindowedModel
from tests.unit.engine.tiny.cases import mostly_exhaustive

STEPS_TO_DRAIN = 4_000
WINDOWS: list[tuple[int | None, ...]] = [(6,), (1,), (None, 6), (None, 5, 5, 5), (None, None, 9), (3, 11)]


@pytest.mark.parametrize(
    ("windows", "overlaps"),
    mostly_exhaustive(
        product(WINDOWS, [False, True]), default=[*zip(WINDOWS, cycle([True, False]), strict=False)]
    ),
)
def test_a_windowed_group_holds_its_window_and_a_chunk_however_long_the_sequence(
    windows: tuple[int | None, ...], overlaps: bool
) -> None:
    model = WindowedModel(windows, blocks=4_000, budget=8, overlaps=overlaps)
    model.add([1, 0, 0] * 100, new=60)
    model.run()

    chunks = 2 if overlaps else 1
    allowed = [360 if window is None else max(window, 2) - 1 + chunks * 8 for window in windows]
    # A run of n tokens touches at most n // 4 + 2 blocks of four.
    assert model.most_held <= sum(tokens // 4 + 2 for tokens in allowed)
    assert model.pool.num_free == model.pool.num_blocks


def test_a_sequence_is_admitted_where_its_windows_fit_and_all_its_tokens_would_not() -> None:
    model = WindowedModel((6,), blocks=5, budget=64)
    assert model.capacity == 1_000, "no length is too much for a model without full attention"
    model.add([0, 1] * 200, new=30)
    model.run()

    assert model.finished == ["0"]
    assert model.batcher.num_preemptions == 0


def test_the_longest_sequence_that_fits_alone_is_computed_block_by_block_if_need_be() -> None:
    model = WindowedModel((None, 6, 6), blocks=30, budget=64)
    # In a window of 6 and 4 tokens to a block there are at most 3 blocks: two such, and 24 for all tokens.
    assert model.capacity == 96
    model.add([0, 1] * 46, new=4)
    model.run()

    assert model.finished == ["0"]
    assert model.batcher.num_preemptions == 0


def test_a_prefix_is_found_by_its_last_window_though_earlier_blocks_of_the_group_are_gone() -> None:
    model = WindowedModel((None, 6), blocks=400, budget=32)
    prompt = [0, 1, 1] * 20
    model.add(prompt, new=1)
    model.run()
    again = model.add([*prompt[:40], 1, 1, 1, 0], new=1)
    model.step()

    assert model.batcher.num_tokens_reused == 40
    assert [(table.first, table.end) for table in again.tables] == [(0, 0), (0, 0)], "it has ended"
    assert model.finished == ["0", "1"]


def test_a_prefix_ends_where_a_block_of_the_window_is_lost() -> None:
    model = WindowedModel((None, 6), blocks=400, budget=64)
    prompt = [0, 1, 1] * 20
    first = model.add(prompt, new=1)
    model.step()
    digests = first.digests(15, 4, model.pool.root_digest)
    names = model.batcher.tables.names(first)
    assert len(names) == 30
    model.pool.discard([names[15 + 9]])  # of the windowed group, tokens 36 to 39

    known = model.batcher.tables.num_known
    other = model.add([1], new=1)
    # Up to 40 tokens the window holds blocks 8 and 9, so 36 is the longest below; above, 48 has 10 and 11.
    assert [known(other, digests[:count]) for count in (9, 10, 11, 12, 15)] == [9, 9, 9, 12, 15]


def test_a_victim_whose_window_has_moved_on_starts_again_and_one_whose_has_not_keeps_its_beginning() -> None:
    model = WindowedModel((None, 30), blocks=20, budget=64, reuses_prefixes=False)
    early = model.add([0, 1] * 10, new=20, priority="background")
    model.step()
    model.add([1] * 24, new=2, priority="interactive")
    model.step()
    assert 0 < early.num_computed_tokens < 20, "tail blocks of both groups were enough"
    model.run()

    moved_on = WindowedModel((None, 6), blocks=16, budget=64, reuses_prefixes=False)
    late = moved_on.add([0, 1] * 18, new=12, priority="background")
    while late.num_output_tokens == 0:
        moved_on.step()
    moved_on.add([1] * 24, new=2, priority="interactive")
    moved_on.step()
    assert (late.num_computed_tokens, late.blocks) == (0, [])
    moved_on.run()
    assert sorted(moved_on.finished) == ["0", "1"]


class WindowMachine(RuleBasedStateMachine):
    """Anything may happen in any order, in a memory of a few blocks; `WindowedModel` checks every step."""

    @initialize(
        windows=st.sampled_from(WINDOWS),
        spare=st.integers(0, 30),
        block_size=st.integers(1, 4),
        slots=st.integers(1, 5),
        budget=st.integers(1, 24),
        reuses_prefixes=st.booleans(),
        overlaps=st.booleans(),
    )
    def start(
        self,
        windows: tuple[int | None, ...],
        spare: int,
        block_size: int,
        slots: int,
        budget: int,
        reuses_prefixes: bool,
        overlaps: bool,
    ) -> None:
        self.model = WindowedModel(
            windows,
            blocks=BlockDemand(windows, block_size).blocks_for(3 * block_size) + spare,
            block_size=block_size,
            slots=slots,
            budget=budget,
            reuses_prefixes=reuses_prefixes,
            overlaps=overlaps,
        )
        self.capacity = min(60, self.model.capacity)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=50),
        new=st.integers(1, 12),
        priority=st.sampled_from(CLASSES),
    )
    def add(self, prompt: list[int], new: int, priority: PriorityClass) -> None:
        """Prompts of two tokens: they share beginnings all the time."""
        prompt = prompt[: self.capacity - 1]
        self.model.add(prompt, min(new, self.capacity - len(prompt)), priority)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.model.batcher.has_work:
                self.model.step()

    @precondition(lambda self: self.model.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.model.abort(data.draw(st.sampled_from(self.model.alive)))

    @precondition(lambda self: self.model.batcher.has_work)
    @rule()
    def plan_a_step_that_fails(self) -> None:
        self.model.batcher.plan()
        self.model.batcher.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        self.model.run(STEPS_TO_DRAIN)
        assert not self.model.alive, "a sequence starved"
        assert self.model.pool.num_free == self.model.pool.num_blocks


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


SHAPE = (1, 256, 256)


def windows_of(pattern: str) -> dict[int, int | None]:
    return {layer: 512 if kind == "s" else None for layer, kind in enumerate(pattern)}


@pytest.mark.parametrize(
    ("pattern", "size", "num_groups"),
    [
        ("f" * 24, 24, 1),
        ("s" * 32, 32, 1),
        ("sf" * 12, 12, 2),  # gpt-oss, gemma 2
        ("sssssf" * 4 + "ss", 4, 7),  # gemma 3 1B: two places of 28 are empty
        ("sssssf" * 8, 8, 6),  # gemma 3 12B
        ("sssf" * 10, 10, 4),  # cohere2
    ],
)
def test_layers_are_grouped_by_window_in_groups_of_one_size(pattern: str, size: int, num_groups: int) -> None:
    windows = windows_of(pattern)
    groups = group_layers(windows, dict.fromkeys(windows, SHAPE))

    assert max(map(len, groups.layers)) == size
    assert len(groups.windows) == num_groups
    assert sorted(layer for layers in groups.layers for layer in layers) == list(windows)
    assert all(windows[layer] == groups.windows[group] for layer, group in groups.group_of.items())


def test_layers_of_different_shapes_share_no_memory_so_all_keep_every_token() -> None:
    windows = windows_of("sf")
    assert group_layers(windows, {0: (1, 8, 8), 1: (1, 16, 16)}) == KvGroups(((0, 1),), (None,))
    alone = group_layers(windows_of("ss"), {0: (1, 8, 8), 1: (1, 16, 16)})
    assert alone == KvGroups(((0, 1),), (512,)), "with one window for all nothing is shared"
