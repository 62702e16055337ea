"""Chunks of a step become rows end to end, each with the slot of its KV."""

import random

import torch

from nightshift_engine.core.batcher import Chunk
from nightshift_engine.core.request import Request
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.core.speculation.rows import drafted_rows
from nightshift_engine.execution.step_layout import lay_out

BLOCK_SIZE = 4
CPU = torch.device("cpu")


def chunk(name: str, num_known: int, num_computed: int, num_new: int, blocks: list[int]) -> Chunk:
    token_ids = [1000 * int(name) + position for position in range(num_known)]
    sequence = Sequence(Request(name, token_ids), arrival=int(name), num_tokens_max=num_known + 1)
    sequence.num_computed_tokens = num_computed
    sequence.add_blocks(blocks)
    return Chunk(sequence, num_new)


def test_random_steps_place_every_token_where_its_sequence_says() -> None:
    generator = random.Random(7)
    for _ in range(50):
        chunks = []
        for name in range(1, generator.randint(2, 12)):
            known = generator.randint(1, 30)
            computed = generator.randrange(known)
            count = generator.randint(1, known - computed)
            blocks = generator.sample(range(100), 9)
            chunks.append(chunk(str(name), known, computed, count, blocks))

        inputs = lay_out(chunks, BLOCK_SIZE).on(CPU)

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
        layout, lengths = inputs.layout, [one.sequence.num_computed_tokens + one.num_tokens for one in order]
        assert layout.seq_lens.tolist() == lengths
        assert (layout.max_query_len, layout.max_seq_len) == (max(counts), max(lengths))
        assert (layout.num_sequences, layout.num_tokens) == (len(chunks), sum(counts))
        assert layout.num_decodes == counts.count(1)


def test_decoding_rows_of_one_prefix_lie_together_and_say_what_they_share() -> None:
    """Blocks have 4 tokens; the chunk of a prompt shares two of them and says nothing."""
    tables = {
        "1": (14, [7, 8, 9, 1]), "2": (20, [7, 8, 9, 2, 3]), "3": (13, [50, 51, 52, 53]),
        "4": (15, [7, 8, 44, 45]), "5": (4, [7, 46]),
    }  # fmt: skip
    chunks = [chunk(name, length, length - 1, 1, blocks) for name, (length, blocks) in tables.items()]
    chunks.append(chunk("6", 12, 8, 4, [7, 8, 47]))

    layout = lay_out(chunks, BLOCK_SIZE, shares_prefixes=True).on(CPU).layout

    assert layout.seq_lens.tolist() == [13, 4, 14, 15, 20, 12]
    assert layout.block_tables[:, 0].tolist() == [50, 7, 7, 7, 7, 7]
    assert layout.shared_tokens is not None
    assert layout.shared_tokens.tolist() == [0, 0, 4, 8, 8, 0]
    assert lay_out(chunks, BLOCK_SIZE).on(CPU).layout.shared_tokens is None


def with_draft() -> list[Chunk]:
    drafting, other = chunk("1", 7, 6, 1, [7, 8, 9]), chunk("2", 5, 4, 1, [20, 21])
    drafting.draft = drafted_rows(drafting.sequence, [500, 600])
    return [chunk("3", 9, 2, 4, [30, 31, 32]), drafting, other]


def test_drafted_tokens_follow_their_sequence_and_have_rows_of_logits() -> None:
    inputs = lay_out(with_draft(), BLOCK_SIZE).on(CPU)
    layout = inputs.layout

    assert inputs.input_ids.tolist() == [2004, 3002, 3003, 3004, 3005, 1006, 500, 600]
    assert layout.positions.tolist() == [4, 2, 3, 4, 5, 6, 7, 8]
    assert layout.slot_mapping.tolist()[5:] == [8 * 4 + 2, 8 * 4 + 3, 9 * 4]
    assert layout.seq_lens.tolist() == [5, 6, 9]
    assert layout.cu_seqlens_q.tolist() == [0, 1, 5, 8]
    assert (layout.num_decodes, layout.max_query_len) == (1, 4)
    assert inputs.logits_rows.tolist() == [5, 6, 7, 0], "in the order of the chunks"


def test_where_shared_blocks_are_read_once_drafted_tokens_are_sequences_that_decode() -> None:
    inputs = lay_out(with_draft(), BLOCK_SIZE, shares_prefixes=True).on(CPU)
    layout = inputs.layout

    assert inputs.input_ids.tolist() == [2004, 1006, 500, 600, 3002, 3003, 3004, 3005]
    assert layout.positions.tolist() == [4, 6, 7, 8, 2, 3, 4, 5]
    assert layout.slot_mapping.tolist()[:4] == [21 * 4, 8 * 4 + 2, 8 * 4 + 3, 9 * 4]
    assert layout.seq_lens.tolist() == [5, 7, 8, 9, 6]
    assert layout.cu_seqlens_q.diff().tolist() == [1, 1, 1, 1, 4]
    assert layout.num_decodes == 4
    assert layout.shared_tokens is not None
    assert layout.shared_tokens.tolist() == [0, 0, 4, 8, 0]
    assert inputs.logits_rows.tolist() == [1, 2, 3, 0], "in the order of the chunks"


def test_rows_that_share_nothing_keep_their_order_by_length() -> None:
    chunks = [chunk(str(n), 9 - n, 8 - n, 1, [20 - n, 30 + n, 40 + n]) for n in range(1, 6)]

    layout = lay_out(chunks, BLOCK_SIZE, shares_prefixes=True).on(CPU).layout

    assert layout.seq_lens.tolist() == [4, 5, 6, 7, 8]
    assert layout.shared_tokens is not None
    assert not layout.shared_tokens.any()
