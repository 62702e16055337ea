"""The encoder engine with a formula for a model: who is encoded when, and whose vector it is."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.engine.encoders.batcher import (
    LENGTH_RATIO_MAX,
    SHORT_INPUT_TOKENS,
    EncodeInputInvalid,
    EncodeInputTooLong,
    EncodeOutput,
    EncodeQueueFull,
    EncoderBatcher,
    EncoderConfig,
    EncoderEngine,
    EncodeRequest,
    WaitingInput,
    length_buckets,
)
from workers.engine.errors import DuplicateRequest, InvalidConfig
from workers.engine.request import PRIORITY_RANKS, PriorityClass

TEN_MINUTES_US = 600_000_000


def vector_of(token_ids: Sequence[int]) -> NDArray[np.float32]:
    """An embedding that only these tokens, in this order, can have made."""
    return np.array([len(token_ids), sum((i + 1) * t for i, t in enumerate(token_ids))], dtype=np.float32)


@dataclass
class FormulaEncoder:
    """Encodes by `vector_of`, and remembers the lengths of each forward pass."""

    max_length: int = 100
    max_num_batched_tokens: int = 1_000
    vocab_size: int = 1_000
    passes: list[list[int]] = field(default_factory=list)
    failures_left: int = 0

    def encode(self, inputs: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        if self.failures_left:
            self.failures_left -= 1
            raise RuntimeError("out of memory")
        self.passes.append([len(token_ids) for token_ids in inputs])
        return np.stack([vector_of(token_ids) for token_ids in inputs])


def engine_of(model: FormulaEncoder | None = None, **config: int) -> EncoderEngine:
    return EncoderEngine(model or FormulaEncoder(), EncoderConfig(**config))


def request(id: str, *lengths: int, priority: PriorityClass = "standard") -> EncodeRequest:
    """A request whose inputs have these lengths; no two inputs are the same."""
    tokens = Random(id)
    return EncodeRequest(id, [[tokens.randrange(1_000) for _ in range(n)] for n in lengths], priority)


def run_to_end(engine: EncoderEngine) -> list[EncodeOutput]:
    outputs: list[EncodeOutput] = []
    while engine.has_work:
        outputs += engine.step()
        engine.check_integrity()
    return outputs


def assert_answers(output: EncodeOutput, asked: EncodeRequest) -> None:
    assert output.id == asked.id
    assert output.num_prompt_tokens == sum(map(len, asked.inputs))
    np.testing.assert_array_equal(output.embeddings, [vector_of(token_ids) for token_ids in asked.inputs])


def test_the_batcher_needs_no_torch():
    without_torch = "import sys; sys.modules['torch'] = None; import workers.engine.encoders.batcher"

    subprocess.run([sys.executable, "-c", without_torch], check=True)


# --- requests in, vectors out ---


def test_a_request_gets_its_vectors_in_the_order_of_its_inputs():
    engine, asked = engine_of(), request("a", 40, 3, 17, 3)
    engine.add(asked)

    [output] = engine.step()

    assert_answers(output, asked)
    assert output.embeddings[0].dtype == np.float32
    assert not engine.has_work


def test_an_engine_without_work_steps_to_nothing():
    assert engine_of(max_queue_delay_us=TEN_MINUTES_US).step() == []


def test_without_a_limit_of_its_own_a_step_is_as_large_as_the_model_likes():
    model = FormulaEncoder(max_num_batched_tokens=100)
    engine = engine_of(model)
    engine.add(request("a", *[30] * 10))

    engine.step()

    assert model.passes == [[30, 30, 30]]


def test_a_request_larger_than_a_step_is_spread_over_several_and_answered_once():
    model = FormulaEncoder()
    engine, asked = engine_of(model, max_num_batched_tokens=100), request("a", *[30] * 10)
    engine.add(asked)

    finished_per_step = [len(engine.step()) for _ in range(3)]
    [output] = engine.step()

    assert finished_per_step == [0, 0, 0]
    assert_answers(output, asked)
    assert [len(lengths) for lengths in model.passes] == [3, 3, 3, 1]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_asked_aborted_and_batched_every_vector_finds_its_request(seed):
    print(f"seed {seed}")
    random = Random(seed)
    model = FormulaEncoder()
    budget = random.choice([100, 250, 1_000])
    engine = engine_of(model, max_num_batched_tokens=budget)
    asked: dict[str, EncodeRequest] = {}
    outputs: list[EncodeOutput] = []
    for number in range(60):
        lengths = [random.randint(1, 100) for _ in range(random.randint(1, 12))]
        new = request(f"r{number}", *lengths, priority=random.choice(list(PRIORITY_RANKS)))
        engine.add(new)
        asked[new.id] = new
        if random.random() < 0.5:
            outputs += engine.step()
        if random.random() < 0.2 and engine.abort(victim := random.choice(list(asked))):
            del asked[victim]
        engine.check_integrity()
    outputs += run_to_end(engine)

    assert sorted(output.id for output in outputs) == sorted(asked)
    for output in outputs:
        assert_answers(output, asked[output.id])
    assert all(len(lengths) * max(lengths) <= budget for lengths in model.passes)


def test_many_threads_may_add_and_abort_while_one_steps():
    engine = engine_of(max_num_batched_tokens=200)
    asked = {f"{thread}-{n}": request(f"{thread}-{n}", 5, 50) for thread in range(4) for n in range(50)}
    aborted: list[str] = []

    def add_and_abort_some(thread: int) -> None:
        for n in range(50):
            engine.add(asked[f"{thread}-{n}"])
            if n % 5 == 0 and engine.abort(f"{thread}-{n}"):
                aborted.append(f"{thread}-{n}")

    threads = [threading.Thread(target=add_and_abort_some, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    outputs: list[EncodeOutput] = []
    while any(thread.is_alive() for thread in threads):
        outputs += engine.step()
    outputs += run_to_end(engine)

    assert sorted([output.id for output in outputs] + aborted) == sorted(asked)
    for output in outputs:
        assert_answers(output, asked[output.id])


# --- what is refused ---


def test_a_too_long_input_is_refused_with_its_index_and_both_lengths():
    engine = engine_of(FormulaEncoder(max_length=100))

    with pytest.raises(
        EncodeInputTooLong, match="input 1 has 101 tokens, the model takes at most 100"
    ) as error:
        engine.add(request("a", 100, 101))

    assert (error.value.input_index, error.value.num_tokens, error.value.max_tokens) == (1, 101, 100)
    assert not engine.has_work


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ([], "the request has no input"),
        ([[1], []], "input 1 has no tokens"),
        ([[1, 1_000]], "input 0 has a token id outside 0 to 999"),
        ([[5], [5, -1]], "input 1 has a token id outside 0 to 999"),
    ],
)
def test_an_input_no_model_could_encode_is_refused(inputs, reason):
    engine = engine_of()

    with pytest.raises(EncodeInputInvalid, match=reason):
        engine.add(EncodeRequest("a", inputs))

    assert not engine.has_work


def test_an_id_already_in_the_engine_is_refused_and_free_again_afterwards():
    engine = engine_of()
    engine.add(request("a", 3))
    with pytest.raises(DuplicateRequest):
        engine.add(request("a", 4))
    engine.step()

    engine.add(request("a", 4))

    assert len(engine.step()) == 1


def test_a_full_queue_refuses_the_whole_request_and_keeps_what_it_had():
    engine = engine_of(max_queue_size=5)
    engine.add(request("a", 3, 3, 3))

    with pytest.raises(EncodeQueueFull, match="3 inputs on top of 3 waiting exceed the queue of 5 inputs"):
        engine.add(request("b", 3, 3, 3))

    assert [output.id for output in run_to_end(engine)] == ["a"]


def test_a_step_too_small_for_the_models_longest_input_is_refused_at_construction():
    with pytest.raises(InvalidConfig, match="99 is less than the model's longest input of 100 tokens"):
        engine_of(FormulaEncoder(max_length=100), max_num_batched_tokens=99)


@pytest.mark.parametrize(
    "field", ["max_num_batched_tokens", "preferred_batch_size", "max_queue_size", "max_queue_delay_us"]
)
def test_a_limit_that_makes_no_sense_is_refused_by_name(field):
    with pytest.raises(InvalidConfig, match=field):
        EncoderConfig(**{field: -1})


# --- abort and failure ---


def test_an_aborted_request_gives_no_output_and_the_others_do():
    engine = engine_of()
    engine.add(request("a", 5, 5))
    engine.add(request("b", 5))

    assert engine.abort("a") is True

    assert [output.id for output in run_to_end(engine)] == ["b"]
    assert engine.abort("a") is False


def test_a_request_aborted_and_added_anew_during_its_step_gets_the_new_vectors():
    engine = engine_of()
    first, second = request("a", 5), EncodeRequest("a", [[7, 7, 7]])
    model = engine._model
    encode = model.encode

    def encode_while_the_caller_changes_its_mind(inputs):
        model.encode = encode
        engine.abort("a")
        engine.add(second)
        return encode(inputs)

    model.encode = encode_while_the_caller_changes_its_mind
    engine.add(first)

    assert engine.step() == []
    [output] = engine.step()
    assert_answers(output, second)


def test_a_step_that_fails_loses_nothing():
    model = FormulaEncoder(failures_left=1)
    engine, asked = engine_of(model), request("a", 5, 60)
    engine.add(asked)

    with pytest.raises(RuntimeError, match="out of memory"):
        engine.step()
    engine.check_integrity()
    [output] = engine.step()

    assert_answers(output, asked)


# --- what a step takes ---


ARRIVALS = count()


def waiting_inputs(batcher: EncoderBatcher, *lengths: int, priority: str = "standard") -> None:
    for length in lengths:
        batcher.add(
            WaitingInput("r", 0, [0] * length, PRIORITY_RANKS[priority], next(ARRIVALS), arrived_us=0)
        )


def planned_lengths(batcher: EncoderBatcher) -> list[list[int]]:
    return [[len(waiting) for waiting in inputs] for inputs in batcher.plan()]


def take(batcher: EncoderBatcher) -> list[WaitingInput]:
    taken = [waiting for inputs in batcher.plan() for waiting in inputs]
    for waiting in taken:
        batcher.remove(waiting)
    batcher.check_integrity()
    return taken


def test_interactive_inputs_go_first_however_late_they_come():
    batcher = EncoderBatcher(max_num_batched_tokens=100)
    waiting_inputs(batcher, *[50] * 10, priority="background")
    waiting_inputs(batcher, *[49] * 4, priority="standard")
    waiting_inputs(batcher, 48, 48, priority="interactive")

    steps = [[len(waiting) for waiting in take(batcher)] for _ in range(4)]

    assert steps == [[48, 48], [49, 49], [49, 49], [50, 50]]


def test_what_an_urgent_class_leaves_of_the_budget_goes_to_the_next():
    batcher = EncoderBatcher(max_num_batched_tokens=100)
    waiting_inputs(batcher, *[50] * 10, priority="background")
    waiting_inputs(batcher, 20, priority="interactive")

    assert planned_lengths(batcher) == [[20], [50]]


def test_a_pass_holds_inputs_of_like_length_and_starts_from_the_oldest():
    batcher = EncoderBatcher(max_num_batched_tokens=400)
    waiting_inputs(batcher, 90, 5, 80, 40, 6, 100)

    assert planned_lengths(batcher) == [[80, 90, 100], [5, 6], [40]]


def test_the_oldest_input_is_in_the_next_step_whatever_keeps_arriving():
    batcher = EncoderBatcher(max_num_batched_tokens=120)
    waiting_inputs(batcher, *[10] * 12, 100)
    taken = take(batcher)
    waiting_inputs(batcher, *[10] * 50)

    assert max(map(len, taken)) == 10
    assert planned_lengths(batcher)[0] == [100]


@pytest.mark.parametrize("seed", range(20))
def test_no_step_exceeds_its_budget_and_every_input_is_taken_once(seed):
    print(f"seed {seed}")
    random = Random(seed)
    budget = random.choice([64, 200, 1_000])
    batcher = EncoderBatcher(max_num_batched_tokens=budget)
    for priority in PRIORITY_RANKS:
        waiting_inputs(batcher, *[random.randint(1, 64) for _ in range(100)], priority=priority)
    numbers: list[int] = []
    while batcher.num_waiting:
        assert sum(len(lengths) * max(lengths) for lengths in planned_lengths(batcher)) <= budget
        numbers += [waiting.number for waiting in take(batcher)]

    assert len(numbers) == len(set(numbers)) == 300


@pytest.mark.parametrize("seed", range(20))
def test_length_buckets_cover_every_input_once_within_budget_and_with_little_padding(seed):
    print(f"seed {seed}")
    random = Random(seed)
    inputs = [[0] * int(random.paretovariate(0.7)) for _ in range(200)]

    buckets = length_buckets(inputs, max_num_batched_tokens=1_000)

    assert sorted(index for bucket in buckets for index in bucket) == list(range(200))
    for bucket in buckets:
        lengths = [len(inputs[index]) for index in bucket]
        assert len(bucket) == 1 or len(bucket) * max(lengths) <= 1_000
        assert max(lengths) <= max(SHORT_INPUT_TOKENS, LENGTH_RATIO_MAX * min(lengths))


# --- when a step starts ---


def test_a_small_batch_waits_for_the_delay_counted_from_its_oldest_input():
    batcher = EncoderBatcher(max_num_batched_tokens=100, preferred_batch_size=3, max_queue_delay_us=500)
    assert batcher.delay_us(now_us=1_000) is None

    batcher.add(WaitingInput("r", 0, [0], 1, number=0, arrived_us=1_000))
    batcher.add(WaitingInput("r", 1, [0], 0, number=1, arrived_us=1_400))

    assert batcher.delay_us(now_us=1_400) == 100
    assert batcher.delay_us(now_us=1_600) == 0


def test_a_batch_of_preferred_size_or_a_full_step_does_not_wait():
    limits = {"max_num_batched_tokens": 100, "preferred_batch_size": 3, "max_queue_delay_us": 500}
    preferred, full = EncoderBatcher(**limits), EncoderBatcher(**limits)

    waiting_inputs(preferred, 1, 1, 1)
    waiting_inputs(full, 60, 60)

    assert preferred.delay_us(now_us=0) == full.delay_us(now_us=0) == 0


def test_a_waiting_step_is_released_by_the_input_that_completes_its_batch():
    engine = engine_of(preferred_batch_size=2, max_queue_delay_us=TEN_MINUTES_US)
    engine.add(request("a", 3))
    outputs: list[EncodeOutput] = []
    step = threading.Thread(target=lambda: outputs.extend(engine.step()))
    step.start()

    engine.add(request("b", 3))
    step.join()

    assert {output.id for output in outputs} == {"a", "b"}


def test_a_waiting_step_is_released_when_its_only_request_is_aborted():
    engine = engine_of(preferred_batch_size=2, max_queue_delay_us=TEN_MINUTES_US)
    engine.add(request("a", 3))
    outputs: list[EncodeOutput] = []
    step = threading.Thread(target=lambda: outputs.extend(engine.step()))
    step.start()

    engine.abort("a")
    step.join()

    assert outputs == []
