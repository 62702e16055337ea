"""Chunks with drafted tokens: what they may take of a step, of blocks and of turns, and what comes back."""

import pytest

from nightshift_engine.core.batcher import Chunk
from nightshift_engine.core.request import PriorityClass
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.core.speculation.rows import drafted_rows
from nightshift_engine.core.steps import StepShape
from tests.unit.engine.core.test_batcher import FakeModel


def decoding(model: FakeModel, sequence: Sequence) -> Chunk:
    """The chunk of a sequence that decodes, in a step just planned."""
    while sequence.num_uncomputed_tokens != 1 or not sequence.num_computed_tokens:
        model.step()
    return next(chunk for chunk in model.batcher.plan() if chunk.sequence is sequence)


def extended(model: FakeModel, chunk: Chunk, num_drafted: int) -> int:
    model.batcher.extend(chunk, drafted_rows(chunk.sequence, [7] * num_drafted))
    model.batcher.check_integrity()
    return len(chunk.draft)


def test_blocks_are_allocated_for_a_draft_and_given_back_for_what_is_not_accepted() -> None:
    model = FakeModel(blocks=20)
    sequence = model.add("a", prompt=6, new=40)
    chunk = decoding(model, sequence)
    assert len(sequence.blocks) == 2

    assert extended(model, chunk, 9) == 9
    assert len(sequence.blocks) == 4

    model.batcher.advance(chunk)
    sequence.append(7)
    model.batcher.accept(sequence)
    sequence.append(8)
    model.batcher.tables.release_drafted(sequence)
    model.batcher.check_integrity()
    assert sequence.num_computed_tokens == sequence.num_tokens - 1 == 8
    assert len(sequence.blocks) == 3
    assert model.pool.num_free == 17


def test_a_draft_takes_no_block_that_others_are_going_to_need() -> None:
    model = FakeModel(blocks=8)
    first, second = model.add("a", prompt=5, new=8), model.add("b", prompt=5, new=8)
    chunk = decoding(model, second)
    assert model.pool.num_free == 4

    assert extended(model, chunk, 9) == 2, "to the end of the block that it has"
    assert len(first.blocks) == len(second.blocks) == 2
    assert model.batcher.num_preemptions == 0


def test_a_full_block_of_accepted_tokens_is_found_by_others() -> None:
    model = FakeModel(blocks=20)
    sequence = model.add("a", prompt=6, new=40)
    chunk = decoding(model, sequence)
    extended(model, chunk, 3)
    start = sequence.num_computed_tokens
    model.batcher.advance(chunk)
    model.batcher.publish(chunk, start)
    for token in (500, 501, 502):
        if sequence.token_ids[-1] != 6:
            model.batcher.accept(sequence)
        sequence.append(token)
    follow_up = model.add("b", [*sequence.token_ids[:9]], new=4)
    model.step()

    assert follow_up.num_cached_tokens == 8


def test_the_room_is_what_the_step_leaves_of_tokens_and_of_rows() -> None:
    model = FakeModel(blocks=80, slots=4, budget=20)
    model.add("a", prompt=6, new=40)
    model.add("b", prompt=6, new=40)
    model.step()
    assert model.batcher.room_for_drafts(model.batcher.plan()) == 2, "four rows of logits"
    model.add("long", prompt=100, new=4)

    assert model.batcher.room_for_drafts(model.batcher.plan()) == 0, "the prompt takes the tokens"


def test_a_flow_pays_its_turns_for_drafted_tokens() -> None:
    def computed(num_drafted: int) -> int:
        """Tokens of the other flow's prompt in the next steps."""
        model = FakeModel(blocks=400, budget=32, slots=8)
        sequence = model.add("a", prompt=6, new=200, flow="one")
        model.add("other", prompt=6, new=200, flow="two")
        decoding(model, sequence)
        for _ in range(4):
            model.step()
            model.batcher.extend(Chunk(sequence, 1), drafted_rows(sequence, [7] * num_drafted))
            model.batcher.tables.release_drafted(sequence)
        model.add("a prompt", prompt=400, flow="one")
        model.add("another", prompt=400, flow="two")
        chunks = [chunk for _ in range(4) for chunk in model.step()]
        return sum(chunk.num_tokens for chunk in chunks if chunk.sequence.id == "another")

    assert computed(12) >= computed(0) + 20


@pytest.mark.parametrize(("priority", "is_bounded"), [("background", True), ("interactive", False)])
def test_beside_interactive_requests_drafts_of_bulk_keep_within_the_budget(
    priority: PriorityClass, is_bounded: bool
) -> None:
    model = FakeModel(blocks=200, budget=64, slots=20, step_budget_ms=50.0)
    for number in range(60):
        tokens = 1 + number % 17
        model.batcher.observe(StepShape(tokens, tokens, 1), 0.010 + 0.004 * tokens)
    model.add("chat", prompt=3, new=90, priority="interactive")
    chunk = decoding(model, model.add("row", prompt=3, new=90, priority=priority))

    assert extended(model, chunk, 16) < 12 if is_bounded else extended(model, chunk, 16) == 16


def test_a_step_that_does_not_fit_is_halved_with_its_drafts() -> None:
    model = FakeModel(blocks=200, budget=400)
    chunk = decoding(model, model.add("a", prompt=6, new=300))
    assert extended(model, chunk, 199) == 199

    assert model.batcher.out_of_memory([chunk]) is None
    assert model.batcher.limits.max_num_batched_tokens == 100
