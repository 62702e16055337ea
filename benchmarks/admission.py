"""What each rule of admission and preemption is worth: a workload it exists for, with it and without it.

Runs the real batcher over a model that only counts (`benchmarks/simulation.py`): nothing is timed, so the
figures are the same on every machine. A rule is turned off from here; the batcher has no switches.

    python -m benchmarks.admission [--seeds 3]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import mean
from typing import Any
from unittest.mock import patch

from benchmarks.mixing import percentile
from benchmarks.simulation import CRAWLING, LARGE, NEVER, Counts, Row, Simulation
from benchmarks.workloads import make_workload
from workers.engine.batching import batcher, queue, row_order, running, step_budget, step_limits
from workers.engine.batching.batcher import Batcher
from workers.engine.batching.kv_blocks import BlockPool
from workers.engine.batching.kv_tables import KvTables
from workers.engine.batching.queue import ClassQueue
from workers.engine.batching.running import RunningSet
from workers.engine.batching.sequence import Sequence as EngineSequence
from workers.engine.batching.step_budget import StepBudget

VOCAB_SIZE = 30_000

Figures = dict[str, float]


@dataclass(frozen=True)
class Rule:
    """A rule, the workload it exists for, and what of the batcher to replace to be without it."""

    name: str
    workload: Callable[[int, float], Figures]
    """Of a seed and a size, 1 being the whole."""
    without: Sequence[tuple[Any, str, Any]]


# Workloads


def answers(seed: int, size: float) -> Figures:
    """Rows that share nothing, with answers of known lengths."""
    requests = make_workload("medium-256", seed, int(256 * size)).requests
    rows = [
        Row("bulk", request.prompt_token_ids, request.num_output_tokens, request.num_output_tokens)
        for request in requests
    ]
    return _cost(Simulation(rows).run())


def documents(seed: int, size: float, *, num_documents: int = 40) -> Figures:
    """Documents asked eight questions each, in any order, in memory for a few of them."""
    rng = random.Random(seed)
    rows = []
    for _ in range(max(2, int(num_documents * size))):
        document = _tokens(rng, 600)
        for _ in range(8):
            length = rng.choice([8, 16, 64])
            rows.append(Row("bulk", document + _tokens(rng, 20), length, length))
    rng.shuffle(rows)
    counts = Simulation(rows, num_blocks=400, slots=32, budget=2048).run()
    return {**_cost(counts), "tokens reused": counts.reused}


def backlog(seed: int, size: float) -> Figures:
    """As `documents`, but so many that rows come due."""
    return documents(seed, size, num_documents=200)


def longer_rows_keep_coming(seed: int, size: float) -> Figures:
    """Two rows a step's time apart with long answers, for ever; a few with short ones came first."""
    rng = random.Random(seed)
    rows = [Row("early", _tokens(rng, 60), 4, 4) for _ in range(8)]
    rows += [
        Row("bulk", _tokens(rng, 60), 8, 8, at_step=step) for step in range(int(4_000 * size)) for _ in "ab"
    ]
    counts = Simulation(rows, slots=8, budget=256).run(int(4_000 * size))
    return {**_waits(counts, "early"), "of 8 early rows begun": len(counts.wait_steps.get("early", ()))}


def one_beside_many(seed: int, size: float) -> Figures:
    """Online requests of two tenants and one class: many with long prompts, and now and then a short one."""
    rng = random.Random(seed)
    steps = int(1_500 * size)
    rows = [Row("flood", _tokens(rng, 4_000), 16, 16, flow="a") for _ in range(int(600 * size))]
    rows += [Row("online", _tokens(rng, 20), 16, 16, at_step=step, flow="b") for step in range(5, steps, 25)]
    counts = Simulation(rows, slots=16, budget=1_024).run(steps)
    return {**_waits(counts, "online"), **_output(counts, "flood")}


def unknown_answers(seed: int, size: float) -> Figures:
    """Answers with a heavy tail, of which only `max_tokens` is known, in memory for a third of the slots."""
    rng = random.Random(seed)
    rows = [
        Row("bulk", _tokens(rng, rng.randint(16, 64)), min(1500, int(rng.lognormvariate(5.2, 0.9)) + 1), 1500)
        for _ in range(int(300 * size))
    ]
    counts = Simulation(rows, num_blocks=360, slots=128).run()
    return {**_cost(counts), "preemptions": counts.preemptions, "recomputed": counts.recomputed}


def chat_beside_bulk(seed: int, size: float) -> Figures:
    """Chats at half of what the machine can do, and more bulk than it has memory for."""
    return _chat_beside_bulk(seed, size, num_blocks=160)


def chat_for_slots(seed: int, size: float) -> Figures:
    """Likewise with memory for all, but not slots, and an engine that does not reuse prefixes."""
    return _chat_beside_bulk(seed, size, num_blocks=4_000, reuse_prefixes=False)


def _chat_beside_bulk(seed: int, size: float, *, num_blocks: int, reuse_prefixes: bool = True) -> Figures:
    rng = random.Random(seed)
    rows = [Row("bulk", _tokens(rng, 100), 200, 200) for _ in range(int(400 * size))]
    rows += [
        Row("chat", _tokens(rng, rng.randint(50, 400)), 40, 40, at_step=rng.randrange(int(1_500 * size)))
        for _ in range(int(225 * size))
    ]
    simulation = Simulation(rows, num_blocks=num_blocks, slots=32, reuse_prefixes=reuse_prefixes)
    counts = simulation.run(int(1_500 * size))
    return {**_waits(counts, "chat"), "recomputed": counts.recomputed, **_output(counts, "bulk")}


def chat_flood(seed: int, size: float) -> Figures:
    """More chats than there are slots for, while bulk waits."""
    rng = random.Random(seed)
    steps = int(3_000 * size)
    rows = [Row("bulk", _tokens(rng, 100), 50, 50) for _ in range(40)]
    rows += [
        Row("chat", _tokens(rng, rng.randint(50, 200)), rng.randint(10, 40), 40, at_step=step)
        for step in range(steps)
        for _ in range(rng.choice([0, 1, 1, 1, 2]))
    ]
    counts = Simulation(rows, slots=16, budget=256).run(steps)
    return {**_output(counts, "bulk"), **_output(counts, "chat")}


def prompt_flood(seed: int, size: float) -> Figures:
    """Chats whose prompts fill every step, while bulk runs."""
    rng = random.Random(seed)
    steps = int(1_000 * size)
    rows = [Row("bulk", _tokens(rng, 100), 50, 50) for _ in range(4)]
    rows += [Row("chat", _tokens(rng, 256), 1, 1, at_step=step) for step in range(10, steps)]
    counts = Simulation(rows, slots=16, budget=256).run(steps)
    return {**_output(counts, "bulk"), **_output(counts, "chat")}


def online_beside_job(seed: int, size: float) -> Figures:
    """Online requests and rows of a job, of one class."""
    rng = random.Random(seed)
    rows = [Row("bulk", _tokens(rng, 100), 50, 50) for _ in range(int(600 * size))]
    rows += [Row("online", _tokens(rng, 100), 50, 50, at_step=step) for step in range(0, int(400 * size), 8)]
    return _waits(Simulation(rows, slots=16, budget=256).run(), "online")


def chat_in_time(seed: int, size: float) -> Figures:
    """A chat a second beside bulk with long prompts that fills all slots; in seconds of the formula."""
    rng = random.Random(seed)
    seconds = max(10.0, 60 * size)
    rows = [Row("bulk", _tokens(rng, 600), 100, 100) for _ in range(int(40 * seconds))]
    rows += [
        Row("chat", _tokens(rng, 400), 24, 24, at_s=rng.uniform(1, seconds)) for _ in range(int(seconds))
    ]
    counts = Simulation(rows, step_budget_ms=50.0).run(seconds_max=seconds)
    return {**_seconds(counts), **_output(counts, "bulk")}


def chat_beside_long_contexts(seed: int, size: float) -> Figures:
    """A chat a second with a short prompt beside bulk whose decoding takes long, because of its contexts."""
    rng, seconds = random.Random(seed), max(20.0, 60 * size)
    rows = [Row("bulk", _tokens(rng, 3_000), 400, 400) for _ in range(int(2 * seconds))]
    rows += [Row("chat", _tokens(rng, 90), 24, 24, at_s=rng.uniform(1, seconds)) for _ in range(int(seconds))]
    counts = Simulation(rows, num_blocks=20_000, slots=128, step_budget_ms=50.0).run(seconds_max=seconds)
    return {**_seconds(counts), **_output(counts, "bulk")}


def chat_on_a_slow_machine(seed: int, size: float) -> Figures:
    """A chat every four seconds beside bulk, where decoding alone takes longer than the budget."""
    return _slow(seed, max(40.0, 160 * size), num_chats=int(max(40.0, 160 * size) / 4))


def chat_on_a_crawling_machine(seed: int, size: float) -> Figures:
    """A single token takes longer than the budget."""
    seconds = max(100.0, 400 * size)
    rng = random.Random(seed)
    rows = [Row("bulk", _tokens(rng, 20), 10, 10) for _ in range(100)]
    rows += [
        Row("chat", _tokens(rng, 4), 60, 60, at_s=1.0 + 4 * number) for number in range(int(seconds / 4))
    ]
    counts = Simulation(rows, step_budget_ms=50.0, machine=CRAWLING).run(seconds_max=seconds)
    return {**_seconds(counts), **_output(counts, "bulk")}


def few_chats(seed: int, size: float) -> Figures:
    """Ten chats in the first 40 seconds, and then none, on the same slow machine."""
    return _slow(seed, max(80.0, 160 * size), num_chats=10)


def short_memory(seed: int, size: float) -> Figures:
    """Steps of more than 300 tokens do not fit into the device's memory."""
    rng = random.Random(seed)
    rows = [Row("bulk", _tokens(rng, rng.randint(50, 200)), 30, 30) for _ in range(int(2_000 * size))]
    counts = Simulation(rows, tokens_fitting=300).run()
    return {**_cost(counts), "steps that failed": counts.out_of_memory}


def _slow(seed: int, seconds: float, num_chats: int) -> Figures:
    rng = random.Random(seed)
    rows = [Row("bulk", _tokens(rng, 90), 40, 40) for _ in range(int(10 * seconds))]
    rows += [Row("chat", _tokens(rng, 90), 24, 24, at_s=2.0 + 4 * number) for number in range(num_chats)]
    counts = Simulation(rows, step_budget_ms=50.0, machine=LARGE).run(seconds_max=seconds)
    return {**_seconds(counts), **_output(counts, "bulk")}


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCAB_SIZE) for _ in range(count)]


def _cost(counts: Counts) -> Figures:
    return {"steps": counts.steps, "s": counts.seconds}


def _output(counts: Counts, kind: str) -> Figures:
    return {f"{kind} tokens": counts.output_tokens.get(kind, 0)}


def _waits(counts: Counts, kind: str) -> Figures:
    waits = counts.wait_steps.get(kind) or [NEVER]
    return {f"{kind} waits, steps p95": percentile(waits, 95), "most": max(waits)}


def _seconds(counts: Counts) -> Figures:
    waits = counts.wait_seconds["chat"]
    return {"first token s, mean": mean(waits), "p95": percentile(waits, 95)}


# What stands in for a rule


def _add_as_row(self: ClassQueue, sequence: EngineSequence) -> None:
    sequence.group = "job"
    _add(self, sequence)


_add = ClassQueue.add


def _add_without_flow(self: Batcher, sequence: EngineSequence) -> None:
    sequence.flow = ""
    _add_to_batcher(self, sequence)


_add_to_batcher = Batcher.add


def _cheapest(candidates: Iterable[EngineSequence], pool: BlockPool) -> EngineSequence | None:
    """Of the least urgent class the one that loses the fewest tokens for a block."""
    own = [each for each in candidates if not all(map(pool.is_shared, each.blocks))]
    return min(own, key=lambda each: (-each.rank, _loss(each, pool), -each.urgency[1]), default=None)


def _loss(sequence: EngineSequence, pool: BlockPool) -> float:
    """Tokens lost with one block."""
    kept, freed = KvTables(pool).tail_to_free(sequence, 1)
    return max(0, sequence.num_computed_tokens - kept * pool.block_size) / freed


def _release_all(self: KvTables, sequence: EngineSequence, needed: int) -> None:
    self.pool.release(sequence.drop_blocks())
    sequence.num_computed_tokens = 0


def _only_own_class(self: RunningSet, sequence: EngineSequence, from_rank: int = 0) -> list[EngineSequence]:
    return [other for other in self if other.rank == sequence.rank] if from_rank == 0 else []


# The table


RULES = (
    Rule(
        "rows that share nothing: longest first",
        answers,
        [(row_order, "_tokens_to_come", lambda sequence: 0)],
    ),
    Rule(
        "rows that share a beginning follow one another",
        documents,
        [(row_order, "_prefix_entry", lambda sequence: (b"", sequence.urgency[1], sequence))],
    ),
    Rule(
        "a prefix being computed is waited for",
        documents,
        [(Batcher, "_defer", lambda self, sequence: False)],
    ),
    Rule(
        "then the rows that waited for it are next",
        documents,
        [(ClassQueue, "resume", ClassQueue.add)],
    ),
    Rule("old rows come first", longer_rows_keep_coming, [(queue, "PASSES_BEFORE_DUE", NEVER)]),
    Rule("old rows: one admission of eight", backlog, [(queue, "DUE_EVERY", 1)]),
    Rule("online requests before rows of jobs", online_beside_job, [(ClassQueue, "add", _add_as_row)]),
    Rule("tenants take turns", one_beside_many, [(Batcher, "add", _add_without_flow)]),
    Rule("a spare block per running sequence", unknown_answers, [(Batcher, "_spare_blocks", 0)]),
    Rule("the youngest is preempted", unknown_answers, [(batcher, "least_urgent", _cheapest)]),
    Rule("victims keep what is not needed", chat_for_slots, [(KvTables, "release_tail", _release_all)]),
    Rule(
        "more urgent classes take slots and blocks",
        chat_beside_bulk,
        [
            (RunningSet, "unprotected", _only_own_class),
            (Batcher, "_may_get_slot", lambda self, rank: self._has_slot),
        ],
    ),
    Rule("a class passed 64 times gets an admission", chat_flood, [(queue, "PASSES_BEFORE_OVERDUE", NEVER)]),
    Rule("and keeps it for 16 tokens", chat_flood, [(running, "OVERDUE_TOKENS", 0)]),
    Rule(
        "classes left out of three steps come first", prompt_flood, [(batcher, "STEPS_LEFT_OUT_MAX", NEVER)]
    ),
    Rule("a time per step", chat_in_time, [(StepBudget, "start_step", lambda *_: None)]),
    Rule("for some seconds after the last chat", chat_in_time, [(step_budget, "SECONDS_REMEMBERED", 1e-9)]),
    Rule("not for longer", few_chats, [(step_budget, "SECONDS_REMEMBERED", 60.0)]),
    Rule(
        "bulk prompts always get 16 tokens",
        chat_on_a_crawling_machine,
        [(step_budget, "MIN_CHUNK_TOKENS", 0)],
    ),
    Rule("or as much as decoding takes", chat_on_a_slow_machine, [(step_budget, "CHUNK_TIME_SHARE", 0.0)]),
    Rule(
        "bulk that decodes leaves a late prompt alone",
        chat_beside_long_contexts,
        [(StepBudget, "_predict_with", lambda self, row: 0.0)],
    ),
    Rule(
        "steps grow back more slowly each time",
        short_memory,
        [(step_limits, "STEPS_BEFORE_GROWING_MAX", 64)],
    ),
)


def compare(rule: Rule, seeds: Sequence[int], size: float) -> tuple[Figures, Figures]:
    """The mean figures over the seeds with and without a rule."""
    on = [rule.workload(seed, size) for seed in seeds]
    with ExitStack() as stack:
        for target, name, value in rule.without:
            stack.enter_context(patch.object(target, name, value))
        off = [rule.workload(seed, size) for seed in seeds]
    return _mean(on), _mean(off)


def _mean(figures: Sequence[Figures]) -> Figures:
    return {name: mean(each[name] for each in figures) for name in figures[0]}


def _shown(figures: Figures) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in figures.items())


def _number(value: float) -> str:
    if value >= NEVER:
        return "never"
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What each rule of admission and preemption is worth.")
    parser.add_argument("--seeds", type=int, default=3, help="the figures are means over so many")
    parser.add_argument("--size", type=float, default=1.0, help="of the workloads")
    parser.add_argument("--rules", default="", help="only rules whose names contain this")
    options = parser.parse_args(arguments)
    print("| rule | workload | with it | without it |\n|---|---|---|---|")
    for rule in RULES:
        if options.rules in rule.name:
            on, off = compare(rule, range(1, options.seeds + 1), options.size)
            name = rule.workload.__name__.replace("_", " ")
            print(f"| {rule.name} | {name} | {_shown(on)} | {_shown(off)} |", flush=True)


if __name__ == "__main__":
    main()
