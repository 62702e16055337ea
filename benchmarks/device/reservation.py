"""Estimates what reserving KV for a job's learnt length of answers would change, by the engine's batcher.

    python -m benchmarks.device.reservation

Nothing is computed: steps take the times of `admission.py`. A batcher that reserves admits a row only where
the blocks are free that all running rows are still expected to need: as far as the mean answer of the rows
that have ended, or, in the last column, knowing each row's length. Both lose to the batcher as it is, which
admits where blocks for the next tokens are free, and has a row computed again where they are not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from benchmarks.device.admission import BLOCK_SIZE, Lengths, add_rows, timed_step
from benchmarks.report import Cell, report
from nightshift_engine.core.batcher import Batcher
from nightshift_engine.core.kv_blocks import BlockPool
from nightshift_engine.core.sequence import Sequence as EngineSequence

ROWS: Final = 2_000
ENDED_LEAST: Final = 8
"""Rows after whose end a mean is trusted."""
PAST_MEAN_SHARE: Final = 0.5
"""Share of the mean that a row past it is expected to go on for."""


class ReservingBatcher(Batcher):
    """Leaves the blocks free at an admission that the running rows are expected to need."""

    knows_lengths = False

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool, max_num_seqs=256, max_num_batched_tokens=8192, reuse_prefixes=False)
        self._num_ended, self._tokens_ended = 0, 0

    def remove(self, sequence: EngineSequence) -> None:
        super().remove(sequence)
        self._num_ended += 1
        self._tokens_ended += sequence.num_tokens - sequence.num_prompt_tokens

    @property
    def _spare_blocks(self) -> int:
        return max(super()._spare_blocks, sum(map(self._missing, self.running)))

    def _missing(self, sequence: EngineSequence) -> int:
        if self.knows_lengths:
            left = sequence.num_tokens_max - sequence.num_tokens
        elif self._num_ended < ENDED_LEAST:
            return 1
        else:
            mean = self._tokens_ended / self._num_ended
            num_made = sequence.num_tokens - sequence.num_prompt_tokens
            left = int(max(mean - num_made, PAST_MEAN_SHARE * mean))
        return max(1, -(-(sequence.num_tokens + left) // BLOCK_SIZE) - sequence.num_blocks)


class KnowingBatcher(ReservingBatcher):
    knows_lengths = True


def seconds(rows: Sequence[Lengths], batcher: Batcher) -> float:
    add_rows(batcher, rows)
    total_s = 0.0
    while batcher.has_work:
        total_s += timed_step(batcher)[1]
    return total_s


def table_row(rows: Sequence[Lengths], num_blocks: int) -> dict[str, Cell]:
    def pool() -> BlockPool:
        return BlockPool(num_blocks, BLOCK_SIZE)

    plain = Batcher(pool(), max_num_seqs=256, max_num_batched_tokens=8192, reuse_prefixes=False)
    as_it_is = seconds(rows, plain)
    ratios = [as_it_is / seconds(rows, kind(pool())) for kind in (ReservingBatcher, KnowingBatcher)]
    return {
        "KV blocks": num_blocks,
        "rows computed again": plain.num_preemptions,
        "reserving the mean": f"{ratios[0]:.2f}",
        "knowing lengths": f"{ratios[1]:.2f}",
    }


def main() -> None:
    draw = random.Random(1)
    rows = [(draw.randint(64, 256), min(1024, max(4, int(draw.lognormvariate(5, 0.9))))) for _ in range(ROWS)]
    notes = [f"{ROWS} rows, lognormal answers. Ratios: speed of the batcher as it is = 1."]
    report("reservation", [table_row(rows, num_blocks) for num_blocks in (800, 1_500, 2_500)], notes)


if __name__ == "__main__":
    main()
