"""Decides what each step computes: who is admitted, how many tokens each gets, who is preempted. Pure."""

from collections import Counter, deque
from collections.abc import Sequence as Seq

from .adapter_slots import AdapterSlots
from .kv_blocks import BlockPool
from .kv_tables import KvTables
from .order import FairTurns, WaitingQueue
from .request import PRIORITY_RANKS
from .running import PrefixesInFlight, RunningSet, least_urgent
from .sequence import Sequence, urgency
from .speculation.rows import DraftedRow
from .steps import MIN_CHUNK_TOKENS, Chunk, Draft, StepBudget, StepLimits, StepShape, step_shape

__all__ = ["Batcher", "Chunk"]

NEW_TOKENS_BETWEEN_LOSSES = 16
"""Tokens that a sequence gains before it may lose computed ones to another flow of its class again."""
ADMISSION_GROUP_SHARE = 16
"""Bulk is admitted in groups once a slot in so many is free."""
STEPS_HELD_MAX = 16
"""Steps in a row that may hold bulk back from free slots."""
STEPS_LEFT_OUT_MAX = 3
"""Steps in a row that may leave out running sequences of less urgent classes. Then these come first."""


class Batcher:
    """Sequences running, most urgent first (class, then arrival), and sequences waiting.

    Promises, which the tests hold it to:
      - a step has at most `max_num_batched_tokens` tokens, of at most `max_num_seqs` sequences;
      - a waiting sequence of a more urgent class gets slot and blocks from less urgent ones at the next step
        (with `admits_in_groups`, a free slot is kept from bulk for up to `STEPS_HELD_MAX` steps);
      - nothing starves: classes, rows and what lacks memory are passed by a bounded number of others, and the
        most urgent sequence can evict all others, so it advances even if KV memory is only one sequence
        wide. The caller sees to it that each fits alone;
      - a sequence whose adapter has no slot lets a bounded number of others pass, then none of its class with
        another adapter, until one is free. Sequences without adapters and more urgent classes never wait
        for it: while these use all slots, it waits. Adapters that run lose theirs to these alone;
      - of the prompts of one class, running and waiting, the next is of the flow that has had least;
      - a flow whose turn it is gets a slot from one of its class that runs at least two sequences more, at
        the next step. The first of a flow never yields, so each flow advances; one that lost blocks so
        yields again only after `NEW_TOKENS_BETWEEN_LOSSES`; and no swap can be undone at once, since the
        flow that yielded still runs as many as the other.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        reuse_prefixes: bool = True,
        step_budget_ms: float | None = None,
        windows: tuple[int | None, ...] = (None,),
        admits_in_groups: bool = False,
        num_adapter_slots: int = 0,
    ) -> None:
        """`windows` are those of the groups of layers, in the order of `KvGroups`.

        With `admits_in_groups` bulk waits for some slots to be free, or for `STEPS_HELD_MAX` steps, so that
        fewer steps carry prompts.
        """
        self._pool = pool
        self.tables = KvTables(pool, windows)
        self._reuse_prefixes = reuse_prefixes
        self.limits = StepLimits(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
        self._budget = StepBudget(step_budget_ms)
        # In a step that begins with all slots taken, each counts as its part of a whole step's tokens.
        self._tokens_per_slot = max(1, max_num_batched_tokens // max_num_seqs)
        self._least_served = 1  # tokens that this step counts for a sequence, at the least
        self._turns = [FairTurns() for _ in PRIORITY_RANKS]
        self._queue = WaitingQueue(pool.block_size, self._turns)
        self._in_flight = PrefixesInFlight()
        self.adapters = AdapterSlots(num_adapter_slots)
        self._running = RunningSet()
        self._holders: dict[Sequence, None] = {}  # waiting, and holding blocks; in a fixed order
        self._admits_in_groups = admits_in_groups
        self._is_held = False  # bulk, in this step
        self._steps_held = 0
        self._steps_left_out = 0
        self.tokens_left = 0  # by the step planned last
        self.num_preemptions = 0
        self.num_deferrals = 0
        self.num_tokens_queried = 0
        self.num_tokens_reused = 0
        self.num_tokens_recomputed = 0

    @property
    def running(self) -> list[Sequence]:
        return [*self._running]

    @property
    def waiting(self) -> list[Sequence]:
        """Most urgent first; the order of admission is another (`order/`)."""
        return sorted([*self._queue, *self._in_flight.parked], key=urgency)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        # A parked sequence waits for a running one, so it need not be counted.
        return bool(self._running) or len(self._queue) > 0

    def add(self, sequence: Sequence) -> None:
        self._turns[sequence.rank].join(sequence.flow)
        self._queue.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it is, and gives back its blocks. Its content stays findable.

        One for which others waited counts as computed.
        """
        turns = self._turns[sequence.rank]
        if sequence in self._running:
            self._stop_running(sequence)
        elif not self._in_flight.discard(sequence):
            if self._queue.is_claiming(sequence):  # else a flow that cancels keeps others waiting for nothing
                turns.serve(sequence.flow, sequence.num_tokens)
            self._queue.discard(sequence)
            self._holders.pop(sequence, None)
        self._pool.release(sequence.drop_blocks())
        sequence.num_computed_tokens = 0
        turns.remove(sequence.flow)
        if not turns.num_members(sequence.flow):
            self._queue.classes[sequence.rank].forget(sequence.flow)

    def plan(self) -> list[Chunk]:
        """Chooses this step's chunks, most urgent class first. Blocks for them are allocated on return."""
        draft = Draft(self.limits.max_num_batched_tokens, self._budget, self.limits.max_num_seqs)
        self._start_budget()
        self._least_served = 1 if self._has_slot else self._tokens_per_slot
        self._close_slots(draft)
        self._is_held = self._admits_in_groups and self._waits_for_group()
        self._steps_held = self._steps_held + 1 if self._is_held else 0
        for rank in range(len(self._running.by_rank)):
            self._retry_least_missing(rank)
        if self._steps_left_out >= STEPS_LEFT_OUT_MAX:
            self._continue_left_out(draft)
        for rank, members in enumerate(self._running.by_rank):
            if self._turns[rank].num_flows > 1:
                self._take_turns(rank, draft)
                continue
            for sequence in list(members):
                if draft.tokens_left == 0:
                    break
                self._continue(sequence, draft)
            self._admit(rank, draft)
        if not draft.token_counts:  # all were preempted for waiting sequences
            draft.tried.clear()
            self._is_held = False
            for rank in range(len(self._running.by_rank)):
                self._admit(rank, draft)
        self._count_left_out(draft)
        self.tokens_left = draft.tokens_left
        return [Chunk(sequence, count) for sequence, count in draft.token_counts.items()]

    def room_for_drafts(self, chunks: Seq[Chunk]) -> int:
        """Drafted tokens that the step just planned has room for: its rows of logits are bounded, too. None
        beside a prompt that is scored, whose rows come behind theirs.
        """
        if any(chunk.num_scored for chunk in chunks):
            return 0
        num_rows = sum(chunk.is_last for chunk in chunks)
        return max(0, min(self.tokens_left, self.limits.max_num_seqs - num_rows))

    def reserve(self, sequence: Sequence, num_drafted: int) -> int:
        """Allocates blocks for up to so many tokens that a draft model is to make; returns for how many.

        None of a bulk row's beside interactive requests: they would wait for its passes.
        """
        if self._budget.is_in_force and sequence.rank > 0:
            return 0
        return self.tables.allocate_ahead(sequence, num_drafted, self._spare_blocks)

    def extend(self, chunk: Chunk, draft: Seq[DraftedRow]) -> None:
        """Adds drafted tokens to a chunk just planned, as far as time and free blocks allow.

        No other sequence loses anything for them, and its flow pays for them whether accepted or not.
        """
        sequence = chunk.sequence
        count = self._budget.allow_drafted(sequence, len(draft))
        count = self.tables.allocate_ahead(sequence, count, self._spare_blocks)
        chunk.draft = draft[:count]
        if self._turns[sequence.rank].num_flows > 1:
            self._turns[sequence.rank].serve(sequence.flow, count)

    def accept(self, sequence: Sequence) -> None:
        """Notes that a sequence's newest token was drafted, so that the step just settled has computed it."""
        chunk, start = Chunk(sequence, 1), sequence.num_computed_tokens
        self.advance(chunk)
        self.publish(chunk, start)

    def advance(self, chunk: Chunk) -> None:
        """Notes that a chunk is being computed: steps launched after it find its KV in memory."""
        sequence = chunk.sequence
        before = sequence.num_computed_tokens
        now = sequence.num_computed_tokens = before + chunk.num_tokens
        if before < sequence.num_computed_tokens_max:
            self.num_tokens_recomputed += min(now, sequence.num_computed_tokens_max) - before
        if now > sequence.num_computed_tokens_max:
            sequence.num_computed_tokens_max = now

    def publish(self, chunk: Chunk, start: int) -> None:
        """Lets others find the blocks that a chunk has filled, and gives back those behind the windows."""
        size, sequence = self._pool.block_size, chunk.sequence
        if start // size < (start + chunk.num_tokens) // size:  # not so in most steps of one that decodes
            stop = min(start + chunk.num_tokens, sequence.num_computed_tokens)
            if self._reuse_prefixes and stop // size > start // size:
                full = slice(start // size, stop // size)
                digests = sequence.digests(stop // size, size, self._pool.root_digest)[full]
                self.tables.publish(sequence, start // size, digests)
                self._requeue(self._in_flight.publish(digests))
        if self.tables.has_windows:
            settled = min(start + chunk.num_tokens, sequence.num_computed_tokens)
            self.tables.release_passed(sequence, settled)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learns from a step that fitted into memory, and took so long."""
        self.limits.grow_after_success()
        self._budget.observe(shape, seconds)

    def out_of_memory(self, chunks: Seq[Chunk]) -> Sequence | None:
        """Plans smaller steps from now on; names the sequence that does not fit if they cannot be smaller."""
        if self.limits.shrink(step_shape(chunks).tokens, len(chunks)):
            return None
        return chunks[0].sequence

    def check_integrity(self) -> None:
        """Asserts that the block pool and the sequences agree, and that each sequence is in one place."""
        running, waiting = self.running, self.waiting
        assert len({*running, *waiting}) == len(running) + len(waiting), "a sequence is in two places"
        self.tables.check_integrity([*running, *waiting])
        holders = {sequence for sequence in waiting if sequence.blocks}
        assert holders == set(self._holders), "other sequences hold blocks than are known to"
        assert running == sorted(running, key=urgency), "out of order"
        self._in_flight.check_integrity(running)
        adapters = (sequence.adapter for sequence in running if sequence.adapter is not None)
        self.adapters.check_integrity(Counter(adapters))
        self._queue.check_integrity()
        for rank, turns in enumerate(self._turns):
            flows = Counter(sequence.flow for sequence in (*running, *waiting) if sequence.rank == rank)
            counted = {flow: turns.num_members(flow) for flow in flows}
            assert counted == flows, f"{counted} have turns, there are {flows}"
            assert turns.num_flows == len(flows), "a flow has left and is counted"

    # Running sequences

    def _continue(self, sequence: Sequence, draft: Draft) -> None:
        """Plans a running sequence's next tokens, evicting less urgent ones if it needs blocks."""
        if sequence in draft.preempted or sequence in draft.token_counts:
            return
        count = draft.tokens_for(sequence)
        if count == 0:
            return
        if sequence.num_computed_tokens + count > sequence.num_blocks * self._pool.block_size:
            count = self._grow(sequence, count, draft)
        if count > 0:
            draft.put(sequence, count)
            if count > 1:
                self._serve(sequence, count)

    def _grow(self, sequence: Sequence, count: int, draft: Draft) -> int:
        """Allocates blocks for a running sequence's next `count` tokens, or fewer; returns for how many.

        If there are none it is preempted, unless the step in flight will bring back some of its own.
        """
        while (granted := self.tables.allocate(sequence, count, self._spare_blocks)) == 0:
            if self.tables.is_about_to_give_back(sequence):
                return 0
            others = [*self._holders, *self._running.unprotected(sequence)]
            less_urgent = (other for other in others if other.urgency > sequence.urgency)
            victim = least_urgent(less_urgent, self._pool, sequence.flow)
            if victim is None:
                self._preempt(sequence, draft)
                return 0
            self._evict(victim, self.tables.missing(sequence), draft)
        return granted

    def _continue_left_out(self, draft: Draft) -> None:
        """Plans the classes that were left out first, in up to half the step."""
        draft.tokens_left, rest = max(1, draft.tokens_left // 2), draft.tokens_left // 2
        for members in reversed(self._running.by_rank[1:]):
            for sequence in list(members):
                count = min(sequence.num_uncomputed_tokens, MIN_CHUNK_TOKENS, draft.tokens_left)
                count = draft.scorable(sequence, count)
                if count > 0 and sequence not in draft.preempted:
                    count = self._grow(sequence, count, draft)
                    if count > 0:
                        draft.put(sequence, count)
                        self._serve(sequence, count)
        draft.tokens_left += rest

    def _count_left_out(self, draft: Draft) -> None:
        """Counts steps in which a more urgent class kept another from advancing."""
        if len(draft.token_counts) == len(self._running):
            self._steps_left_out = 0
            return
        most_urgent = min((sequence.rank for sequence in draft.token_counts), default=0)
        is_left_out = any(
            sequence not in draft.token_counts and sequence.num_uncomputed_tokens > 0
            for sequence in self._running.after(most_urgent)
        )
        self._steps_left_out = self._steps_left_out + 1 if is_left_out else 0

    # Flows

    def _take_turns(self, rank: int, draft: Draft) -> None:
        """Plans a class of several flows: what decodes, then prompts of the flow that has had least."""
        turns, prompts, decoding = self._turns[rank], dict[str, deque[Sequence]](), list[Sequence]()
        for sequence in list(self._running.by_rank[rank]):
            if sequence.num_uncomputed_tokens > 1:
                prompts.setdefault(sequence.flow, deque()).append(sequence)
            elif draft.tokens_left > 0:
                self._continue(sequence, draft)
                decoding.append(sequence)
        self._take_prompts(rank, prompts, draft)
        for sequence in decoding:
            if sequence in draft.token_counts:  # it has not yielded meanwhile
                turns.serve(sequence.flow, self._least_served)

    def _take_prompts(self, rank: int, prompts: dict[str, deque[Sequence]], draft: Draft) -> None:
        turns = self._turns[rank]
        starts = [turns.start(flow) for flow in (*prompts, *self._queue.classes[rank].first_flows)]
        turns.took(min(starts, default=0))
        may_admit = True
        while draft.tokens_left > 0 and (prompts or may_admit):
            flow = min(prompts, key=turns.start, default=None)
            waiting = self._queue.classes[rank].next(draft.tried) if may_admit else None
            if flow is None or (waiting is not None and turns.start(waiting.flow) < turns.start(flow)):
                may_admit = self._admit_next(rank, draft)
                continue
            self._continue(prompts[flow].popleft(), draft)
            if not prompts[flow]:
                del prompts[flow]

    def _serve(self, sequence: Sequence, num_tokens: int) -> None:
        """Counts tokens for a sequence's flow, or its slot if that is more.

        What a flow alone decodes need not be counted: others begin where it is.
        """
        turns = self._turns[sequence.rank]
        if turns.num_flows == 1:
            turns.took(turns.start(sequence.flow))
        turns.serve(sequence.flow, max(num_tokens, self._least_served))

    # Admission

    def _waits_for_group(self) -> bool:
        """Whether too few slots are free for a group. A step that has a prompt anyway admits more."""
        num_free = self.limits.max_num_seqs - len(self._running)
        return (
            0 < num_free < self.limits.max_num_seqs // ADMISSION_GROUP_SHARE
            and self._steps_held < STEPS_HELD_MAX
            and not self._queue.classes[0]
            and not any(waiting.has_online for waiting in self._queue.classes)
            and all(sequence.num_uncomputed_tokens <= 1 for sequence in self._running)
        )

    def _admit(self, rank: int, draft: Draft) -> None:
        while self._admit_next(rank, draft):
            pass

    def _admit_next(self, rank: int, draft: Draft) -> bool:
        """Admits the next sequence of a class or of an overdue lower one, parks it, or sets it aside.

        False: none can be admitted in this step.
        """
        if self._is_held and rank > 0:
            return False
        if draft.tokens_left == 0 or draft.deferrals_left == 0 or not self._may_get_slot(rank):
            return False
        sequence, is_overdue = self._queue.choose(rank, draft.tried)
        if sequence is None or (sequence in draft.preempted and draft.token_counts):
            return False
        # One that scores its prompt waits for rows of logits in its slot, so that no other waits behind it.
        if draft.tokens_for(sequence) == 0 and draft.scorable(sequence, 1):
            return False
        if sequence.adapter is not None and not self._may_have_adapter(sequence, sequence.adapter, draft):
            self._queue.set_aside(sequence, 0)
            draft.tried.add(sequence)
            return True
        if not self._has_slot and not self._may_preempt(sequence, draft):
            draft.tried.add(sequence)
            return True
        lacked = self._queue.classes[sequence.rank].aside.missing(sequence)
        if (
            lacked is not None
            and not self._may_have(lacked, sequence.rank)
            and not self._may_preempt(sequence, draft)
        ):
            draft.tried.add(sequence)
            return True
        if lacked is None and self._defer(sequence):
            draft.deferrals_left -= 1
            return True
        if not self._allocate(sequence, draft):
            return sequence in draft.tried
        self._start_running(sequence, is_overdue=is_overdue)
        count = draft.tokens_for(sequence)  # fewer where a prefix was found: its KV is read as well
        if count > 0:  # it was admitted with blocks for one token at least
            count = self.tables.allocate(sequence, count, self._spare_blocks)
            draft.put(sequence, count)
            self._serve(sequence, count)
        return True

    def _defer(self, sequence: Sequence) -> bool:
        """Parks a sequence whose prefix is being computed, rather than compute it a second time."""
        if not self._reuse_prefixes or sequence.blocks or sequence.num_to_score:
            return False
        digests = self._reusable_digests(sequence)
        if not self._in_flight.park(sequence, digests[self.tables.num_known(sequence, digests) :]):
            return False
        self._queue.discard(sequence)
        self.num_deferrals += 1
        return True

    def _allocate(self, sequence: Sequence, draft: Draft) -> bool:
        """Allocates a slot, and blocks for all tokens or those of a window; False changes nothing."""
        tables, prefix = self.tables, None
        if self._reuse_prefixes and not sequence.num_to_score and tables.is_whole(sequence):
            prefix = tables.acquire_prefix(sequence, self._reusable_digests(sequence))
        missing = tables.missing_to_admit(sequence, prefix)
        if not self._make_room(sequence, missing, draft):
            if prefix is not None:
                self._pool.release(prefix.blocks)
            self._set_aside(sequence, missing, draft)
            return False
        if prefix is not None:
            self.num_tokens_queried += sequence.num_tokens - sequence.num_computed_tokens
        self.num_tokens_reused += tables.admit(sequence, prefix)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
        return True

    def _make_room(self, sequence: Sequence, missing: int, draft: Draft) -> bool:
        """Frees a slot and `missing` blocks, evicting less urgent classes if that is enough."""
        pool, is_alone = self._pool, not self._running
        evictable = [
            other
            for other in self._holders
            if other is not sequence and (is_alone or self._lets_go(other, sequence))
        ]
        blocks = [other.blocks for other in evictable]
        if self._has_slot and pool.can_free(missing if is_alone else missing + self._spare_blocks, blocks):
            self._evict_until(missing, evictable, draft)
            return True
        running = self._preemptible(sequence, draft)
        evictable += running
        if not running or not pool.can_free(missing, [other.blocks for other in evictable]):
            return False
        if not self._has_slot:
            self._evict(running[-1], missing, draft)
        self._evict_until(missing, evictable, draft)
        return True

    def _set_aside(self, sequence: Sequence, missing: int, draft: Draft) -> None:
        """Lets others pass a sequence that lacks memory, but not a preempted one nor a row of the only
        flow.
        """
        is_alone = sequence.group is not None and self._turns[sequence.rank].num_flows == 1
        if is_alone or sequence.num_computed_tokens_max > 0:
            return
        if self._has_slot or self._may_preempt(sequence, draft):
            self._queue.set_aside(sequence, missing)
            draft.tried.add(sequence)

    def _retry_least_missing(self, rank: int) -> None:
        """Gives one that was set aside behind another of its flow its turn back, where it may fit now."""
        missing = self._queue.classes[rank].aside.least_missing
        if missing is not None and self._may_have(missing, rank):
            self._queue.classes[rank].retry_least_missing()

    def _may_have(self, missing: int, rank: int) -> bool:
        """Whether a sequence of a class that lacked so many blocks need be tried again."""
        return (
            missing <= self._pool.num_free
            or not self._running
            or any(self._running.by_rank[rank + 1 :])
            or any(other.rank > rank for other in self._holders)
        )

    @property
    def _spare_blocks(self) -> int:
        """Blocks to leave free at an admission: the next ones of each that runs, and of the new one."""
        return (len(self._running) + 1) * self.tables.num_groups

    # Adapters

    def _may_have_adapter(self, sequence: Sequence, adapter: str, draft: Draft) -> bool:
        """Whether its adapter has a slot or may have one: if need be that of one which only sequences of less
        urgent classes use, and they are preempted.
        """
        claimed = self._queue.classes[sequence.rank].aside.claimed_adapter
        if claimed is not None and claimed != adapter:
            return False
        if self.adapters.may_take(adapter):
            return True
        users: dict[str, list[Sequence]] = {}
        for other in self._running:
            if other.adapter is not None:
                users.setdefault(other.adapter, []).append(other)
        may_go = {*self._running.unprotected(sequence, from_rank=sequence.rank + 1)}
        able = [members for members in users.values() if may_go.issuperset(members)]
        if not able:
            return False
        for other in max(able, key=lambda members: members[0].urgency):  # the first is the most urgent
            self._preempt(other, draft)
        return True

    # Preemption

    def _evict_until(self, missing: int, candidates: list[Sequence], draft: Draft) -> None:
        """Takes blocks from the candidates, which have enough, until `missing` are free."""
        while missing > self._pool.num_free:
            victim = least_urgent(candidates, self._pool)
            if victim is None:  # only blocks that candidates share are left: all of them must release
                victim = next(other for other in candidates if other.blocks)
            self._evict(victim, missing, draft)

    def _evict(self, victim: Sequence, missing: int, draft: Draft) -> None:
        """Takes tail blocks of a victim until `missing` are free, or it has no more."""
        if victim not in self._holders:
            self._preempt(victim, draft)
        num_computed = victim.num_computed_tokens
        self.tables.release_tail(victim, missing - self._pool.num_free)
        if victim.num_computed_tokens < num_computed:
            victim.yields_from_tokens = victim.num_tokens + NEW_TOKENS_BETWEEN_LOSSES
        if not victim.blocks:
            self._holders.pop(victim, None)

    def _preempt(self, victim: Sequence, draft: Draft) -> None:
        """Moves a running sequence to the waiting ones, with its blocks."""
        draft.drop(victim)
        self.tables.release_ahead(victim)
        self._stop_running(victim)
        self._queue.add(victim)
        if victim.blocks:
            self._holders[victim] = None
        self.num_preemptions += 1

    # Slots

    @property
    def _has_slot(self) -> bool:
        return len(self._running) < self.limits.max_num_seqs

    def _may_get_slot(self, rank: int) -> bool:
        return self._has_slot or self._turns[rank].num_flows > 1 or any(self._running.by_rank[rank + 1 :])

    def _lets_go(self, holder: Sequence, sequence: Sequence) -> bool:
        """Whether one that waits may lose blocks to another, of a more urgent class or in that one's turn."""
        if holder.rank != sequence.rank or holder.flow == sequence.flow:
            return holder.rank > sequence.rank
        turns = self._turns[sequence.rank]
        has_gained = holder.num_tokens >= holder.yields_from_tokens
        return has_gained and turns.start(sequence.flow) <= turns.start(holder.flow)

    def _may_preempt(self, sequence: Sequence, draft: Draft) -> bool:
        return len(self._preemptible(sequence, draft)) > 0

    def _preemptible(self, sequence: Sequence, draft: Draft) -> list[Sequence]:
        """Running sequences whose place a waiting one may take, most urgent first.

        Those that another flow of its class yields, then those of less urgent classes.
        """
        less_urgent = self._running.unprotected(sequence, from_rank=sequence.rank + 1)
        return [*self._yielded(sequence, draft), *less_urgent]

    def _yielded(self, sequence: Sequence, draft: Draft) -> list[Sequence]:
        """Sequences of the flow of its class that runs most, beyond one more than its own flow runs."""
        turns, members = self._turns[sequence.rank], self._running.by_rank[sequence.rank]
        if turns.num_flows == 1 or not members:
            return []
        counts = Counter(other.flow for other in members)
        flow, num_own = max(counts, key=counts.__getitem__), counts[sequence.flow]
        if counts[flow] < num_own + 2 or turns.start(sequence.flow) > turns.start(flow):
            return []
        its = [other for other in members if other.flow == flow]
        return [other for other in its[num_own + 1 :] if _may_yield(other, draft)]

    def _close_slots(self, draft: Draft) -> None:
        """Preempts the least urgent sequences beyond the present number of slots."""
        while len(self._running) > self.limits.max_num_seqs:
            self._preempt(self.running[-1], draft)

    def _start_running(self, sequence: Sequence, *, is_overdue: bool) -> None:
        self._queue.take(sequence)
        self._holders.pop(sequence, None)
        self._running.add(sequence, is_overdue=is_overdue)
        if sequence.adapter is not None:
            sequence.adapter_slot = self.adapters.take(sequence.adapter)
        if self._reuse_prefixes:
            first_own = sequence.num_computed_tokens // self._pool.block_size
            self._in_flight.start(sequence, self._reusable_digests(sequence)[first_own:])

    def _stop_running(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        if sequence.adapter is not None:
            self.adapters.give_back(sequence.adapter)
        self._requeue(self._in_flight.stop(sequence))

    def _requeue(self, released: list[Sequence]) -> None:
        for sequence in released:
            self._queue.classes[sequence.rank].resume(sequence)

    def _reusable_digests(self, sequence: Sequence) -> list[bytes]:
        """Digests of the blocks a sequence may share with others."""
        size = self._pool.block_size
        # The last known token is always computed again, for its logits.
        return sequence.digests((sequence.num_tokens - 1) // size, size, self._pool.root_digest)

    def _start_budget(self) -> None:
        has_interactive = bool(self._running.by_rank[0]) or len(self._queue.classes[0]) > 0
        self._budget.start_step(has_interactive, self._running.after(0))


def _may_yield(sequence: Sequence, draft: Draft) -> bool:
    """Whether it may yield: not while it is to gain new tokens, nor once the step counted its prompt."""
    return sequence.num_tokens >= sequence.yields_from_tokens and draft.token_counts.get(sequence, 1) == 1
