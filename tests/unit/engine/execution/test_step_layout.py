"""Chunks of a step become rows end to end, each with the slot of its KV."""

import random

import torch

from nightshift_engine.core.batcher import Chunk
from nightshift_engine.core.request import Request
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.execution.step_layout import lay_out

BLOCK_SIZE = 4
CPU = torch.device("cpu")


def chunk(name: str, num_known: int, num_computed: int, num_new: int, blocks: list[int]) -> Chunk:
    token_ids = [1000 * int(name) + position for position in range(num_known)]
    sequence = Sequence(Request(name, token_ids), arrival=int(name), num_tokens_max=num_known + 1)
    sequence.num_computed_tokens = num_computed
    sequence.add_blocks(blocks)
    return Chunk(sequence, num_new)


def test_decoding_sequences_come_first_by_length_and_logits_keep_the_given_order() -> None:
    prefill = chunk("1", num_known=9, num_computed=2, num_new=7, blocks=[5, 3, 8])
    unfinished = chunk("2", num_known=9, num_computed=0, num_new=3, blocks=[7])
    longer = chunk("3", num_known=6, num_computed=5, num_new=1, blocks=[1, 2])
    shorter = chunk("4", num_known=1, num_computed=0, num_new=1, blocks=[4, 6])

    inputs = lay_out([prefill, unfinished, longer, shorter], BLOCK_SIZE, CPU)

    layout = inputs.layout
    assert inputs.input_ids.tolist() == [4000, 3005, 2000, 2001, 2002, *range(1002, 1009)]
    assert inputs.logits_rows.tolist() == [11, 1, 0], "the unfinished prompt has no logits"
    assert layout.cu_seqlens_q.tolist() == [0, 1, 2, 5, 12]
    assert layout.seq_lens.tolist() == [1, 6, 3, 9]
    assert layout.positions.tolist() == [0, 5, 0, 1, 2, *range(2, 9)]
    assert layout.block_tables.tolist() == [[4, 6, 0], [1, 2, 0], [7, 0, 0], [5, 3, 8]]
    assert layout.slot_mapping.tolist() == [16, 9, 28, 29, 30, 22, 23, 12, 13, 14, 15, 32]
    assert (layout.num_sequences, layout.num_tokens, layout.num_decodes) == (4, 12, 2)
    assert (layout.max_query_len, layout.max_seq_len) == (7, 9)


def test_a_chunk_may_have_logits_of_more_than_its_last_row() -> None:
    prefill = chunk("1", num_known=9, num_computed=2, num_new=7, blocks=[5, 3, 8])
    unfinished = chunk("2", num_known=9, num_computed=0, num_new=3, blocks=[7])
    decoding = chunk("3", num_known=6, num_computed=5, num_new=1, blocks=[1, 2])
    prefill.num_sampled, unfinished.num_sampled = 3, 2

    inputs = lay_out([decoding, prefill, unfinished], BLOCK_SIZE, CPU)

    assert inputs.input_ids[inputs.logits_rows].tolist() == [3005, 1006, 1007, 1008]


def test_a_promised_token_is_taken_from_where_the_step_before_sampled_it() -> None:
    decoding = chunk("1", num_known=5, num_computed=5, num_new=1, blocks=[3, 4])
    prompt = chunk("2", num_known=6, num_computed=3, num_new=4, blocks=[1, 2])
    known = chunk("3", num_known=3, num_computed=2, num_new=1, blocks=[5])
    for promising in (decoding, prompt):
        promising.sequence.num_tokens_max += 9
    decoding.sequence.promise(7)
    prompt.sequence.promise(9)

    inputs = lay_out([prompt, decoding, known], BLOCK_SIZE, CPU)

    assert inputs.input_ids.tolist() == [3002, 0, 2003, 2004, 2005, 0]
    assert inputs.promised_rows.tolist() == [1, 5]
    assert inputs.promised_sources.tolist() == [7, 9]
    assert inputs.logits_rows.tolist() == [5, 1, 0]


def test_a_row_follows_the_blocks_that_are_taken_and_given_back() -> None:
    sequence = chunk("1", 40, 39, 1, list(range(10, 20))).sequence
    sequence.drop_blocks(3)
    sequence.num_computed_tokens = 11
    sequence.add_blocks([77])
    layout = lay_out([Chunk(sequence, 1), chunk("2", 20, 19, 1, [1, 2, 3, 4, 5])], BLOCK_SIZE, CPU).layout

    assert layout.block_tables.tolist() == [[10, 11, 12, 77, 0], [1, 2, 3, 4, 5]]


def test_blocks_beyond_those_in_use_are_left_out_of_the_tables() -> None:
    """A sequence may hold blocks for tokens to come; no attention should read them."""
    inputs = lay_out([chunk("1", 3, 2, 1, blocks=[9, 8, 7])], BLOCK_SIZE, CPU)

    assert inputs.layout.block_tables.tolist() == [[9]]


def test_dtypes_and_alignment_are_what_kernels_expect() -> None:
    layout = lay_out([chunk("1", 3, 0, 3, [0]), chunk("2", 5, 0, 5, [1, 2])], BLOCK_SIZE, CPU).layout

    for tensor in (layout.cu_seqlens_q, layout.seq_lens, layout.block_tables):
        assert tensor.dtype == torch.int32
    for tensor in (layout.slot_mapping, layout.positions):
        assert tensor.dtype == torch.int64
        assert tensor.data_ptr() % 16 == 0
        assert tensor.is_contiguous()


def test_random_steps_place_every_token_where_its_sequence_says() -> None:
    seed = 7
    print(f"{seed=}")
    generator = random.Random(seed)
    for _ in range(50):
        chunks = []
        for name in range(1, generator.randint(2, 12)):
            known = generator.randint(1, 30)
            computed = generator.randrange(known)
            count = generator.randint(1, known - computed)
            blocks = generator.sample(range(100), 9)
            chunks.append(chunk(str(name), known, computed, count, blocks))

        inputs = lay_out(chunks, BLOCK_SIZE, CPU)

        by_name = {int(one.sequence.id): one.sequence for one in chunks}
        rows = zip(inputs.input_ids, inputs.layout.positions, inputs.layout.slot_mapping, strict=True)
        for token, position, slot in ((int(a), int(b), int(c)) for a, b, c in rows):
            sequence = by_name[token // 1000]
            assert token % 1000 == position
            block = sequence.blocks[position // BLOCK_SIZE]
            assert slot == block * BLOCK_SIZE + position % BLOCK_SIZE
        counts = inputs.layout.cu_seqlens_q.diff().tolist()
        order = sorted(chunks, key=lambda one: (one.num_tokens > 1, one.sequence.num_computed_tokens))
        assert counts == [one.num_tokens for one in order]
        for row, one in zip(inputs.layout.block_tables.tolist(), order, strict=True):
            assert row == (one.sequence.blocks + [0] * 9)[: len(row)]
        ends = [one.sequence.num_tokens for one in chunks if one.is_last]
        positions = inputs.layout.positions[inputs.logits_rows]
        assert (positions + 1).tolist() == ends
