"""Blocks: never owned by two, never lost, and found again only by what they really hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from nightshift_engine.core.kv_blocks import BlockPool, chain_digest

BLOCK_SIZE = 2


class Table:
    """A sequence as the pool sees it: blocks, and the tokens in the full ones."""

    def __init__(self, blocks: list[int], tokens: list[int]) -> None:
        self.blocks = blocks
        self.tokens = tokens

    def digests(self) -> list[bytes]:
        digests: list[bytes] = []
        for start in range(0, len(self.tokens), BLOCK_SIZE):
            parent = digests[-1] if digests else b""
            digests.append(chain_digest(parent, self.tokens[start : start + BLOCK_SIZE]))
        return digests


class PoolMachine(RuleBasedStateMachine):
    """Random sequences come, share, publish and go; the model is what each block should hold."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(num_blocks=7, block_size=BLOCK_SIZE, num_kept_min=1)
        self.held: list[Table] = []
        self.content: dict[
            int, tuple[int, ...]
        ] = {}  # block -> all tokens up to its end, while it can be found

    @rule(target=tables, tokens=st.lists(st.integers(0, 1), max_size=8))
    def admit(self, tokens: list[int]) -> object:
        """Takes the known prefix and allocate the rest, as the batcher does."""
        full = tokens[: len(tokens) // BLOCK_SIZE * BLOCK_SIZE]
        table = Table([], full)
        prefix = self.pool.acquire_prefix(table.digests())
        for index, block in enumerate(prefix):
            assert self.content[block] == tuple(full[: (index + 1) * BLOCK_SIZE]), (
                "found a block of other tokens"
            )
        missing = len(full) // BLOCK_SIZE - len(prefix)
        if missing > self.pool.num_free:
            self.pool.release(prefix)
            return multiple()
        table.blocks = prefix + self.pool.allocate(missing)
        for block in table.blocks[len(prefix) :]:
            self.content.pop(block, None)
        self.held.append(table)
        return table

    @rule(table=tables)
    def publish(self, table: Table) -> None:
        if table in self.held:
            for index, (block, digest) in enumerate(zip(table.blocks, table.digests(), strict=True)):
                self.pool.publish([block], [digest])
                self.content[block] = tuple(table.tokens[: (index + 1) * BLOCK_SIZE])

    @rule(table=consumes(tables))
    def release(self, table: Table) -> None:
        if table in self.held:
            self.held.remove(table)
            self.pool.release(table.blocks)

    @rule(table=tables)
    def forget(self, table: Table) -> None:
        if table in self.held:
            alone = self.pool.forget(table.blocks)
            others = {block for other in self.held if other is not table for block in other.blocks}
            assert set(alone) == set(table.blocks) - others

    @invariant()
    def those_who_would_give_back_free_the_blocks_that_no_other_holds(self) -> None:
        for count in range(len(self.held) + 1):
            staying = {block for table in self.held[count:] for block in table.blocks}
            leaving = [table.blocks for table in self.held[:count]]
            freed = len({block for blocks in leaving for block in blocks} - staying)
            assert self.pool.can_free(self.pool.num_free + freed, leaving)
            assert not self.pool.can_free(self.pool.num_free + freed + 1, leaving)

    @invariant()
    def the_books_agree(self) -> None:
        self.pool.check_integrity([table.blocks for table in self.held])
        held = {block for table in self.held for block in table.blocks}
        assert self.pool.num_free == self.pool.num_blocks - len(held)

    def teardown(self) -> None:
        for table in self.held:
            self.pool.release(table.blocks)
        self.pool.check_integrity([])
        assert self.pool.num_free == self.pool.num_blocks


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_blank_blocks_are_used_before_cached_content_is_given_up() -> None:
    pool = BlockPool(num_blocks=3, block_size=BLOCK_SIZE)
    digest = chain_digest(b"", [1, 2])
    cached = pool.allocate(1)
    pool.publish([cached[0]], [digest])
    pool.release(cached)

    others = pool.allocate(2)

    assert cached[0] not in others
    assert pool.acquire_prefix([digest]) == cached


def cache(pool: BlockPool, tokens: list[int]) -> bytes:
    """A block of these tokens, computed and given back."""
    digest = chain_digest(b"", tokens)
    blocks = pool.allocate(1)
    pool.publish([blocks[0]], [digest])
    pool.release(blocks)
    return digest


def test_content_not_asked_for_again_is_dropped_before_unused_memory_is_touched() -> None:
    """Rows that share nothing need no more memory than they hold, and the least that is kept."""
    pool = BlockPool(num_blocks=100, block_size=BLOCK_SIZE, num_kept_min=3)

    used = set()
    for number in range(50):
        blocks = pool.allocate(2)
        used.update(blocks)
        for block in blocks:
            pool.publish([block], [chain_digest(b"", [number, block])])
        pool.release(blocks)

    assert len(used) <= 3 + 2


def test_each_block_missed_after_it_was_given_up_doubles_what_is_kept() -> None:
    pool = BlockPool(num_blocks=100, block_size=BLOCK_SIZE, num_kept_min=2)
    rounds = 0
    while True:
        hits = 0
        for number in range(20):
            prefix = pool.acquire_prefix([chain_digest(b"", [number])])
            pool.release(prefix)
            hits += len(prefix)
            if not prefix:
                cache(pool, [number])
        rounds += 1
        if hits == 20:
            break

    assert rounds <= 6, "2, 4, 8, 16, 32 blocks hold all twenty"


def test_when_all_memory_has_been_used_the_least_recently_used_content_goes() -> None:
    pool = BlockPool(num_blocks=3, block_size=BLOCK_SIZE)
    digests = [cache(pool, [number]) for number in range(4)]

    assert [pool.num_known([digest]) for digest in digests] == [0, 1, 1, 1]


def test_the_tail_of_a_chain_is_given_up_before_its_head() -> None:
    pool = BlockPool(num_blocks=2, block_size=BLOCK_SIZE)
    head = chain_digest(b"", [1, 2])
    tail = chain_digest(head, [3, 4])
    chain = pool.allocate(2)
    pool.publish([chain[0]], [head])
    pool.publish([chain[1]], [tail])
    pool.release(chain)

    assert pool.allocate(1) == [chain[1]]
    assert pool.acquire_prefix([head, tail]) == [chain[0]]


def test_the_same_tokens_after_another_beginning_have_another_digest() -> None:
    first, second = chain_digest(b"", [1, 2]), chain_digest(b"", [9, 9])

    assert chain_digest(first, [3, 4]) != chain_digest(second, [3, 4])
    assert chain_digest(b"", [1, 2]) == first


def test_kv_made_under_another_key_is_not_found() -> None:
    """Another model or dtype makes other KV of the same tokens."""
    assert BlockPool(1, 4, b"bfloat16").root_digest != BlockPool(1, 4, b"float32").root_digest
    root = BlockPool(1, 4, b"bfloat16").root_digest
    assert root == BlockPool(9, 8, b"bfloat16").root_digest
    assert chain_digest(root, [1, 2, 3, 4]) != chain_digest(BlockPool(1, 4).root_digest, [1, 2, 3, 4])
