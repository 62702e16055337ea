"""The encoder engine at its boundary: whose vector is whose, what is refused, what a failure costs."""

import threading
from random import Random

import pytest

from nightshift_engine.core.request import PRIORITY_RANKS
from nightshift_engine.encoders.config import QUEUE_SIZE_MAX
from nightshift_engine.encoders.request import EncodeOutput, EncodeRequest
from nightshift_engine.errors import (
    DuplicateRequest,
    EncodeInputInvalid,
    EncodeInputTooLong,
    EncodeQueueFull,
    InvalidConfig,
)
from tests.unit.engine.encoders.formula import (
    TEN_SECONDS_US,
    FormulaEncoder,
    assert_answers,
    batching,
    engine_of,
    request,
    run_to_end,
)

# --- requests in, vectors out ---


def test_an_engine_without_work_steps_to_nothing():
    assert engine_of(max_queue_delay_microseconds=TEN_SECONDS_US).step() == []


def test_without_a_limit_of_its_own_a_step_is_as_large_as_the_model_likes():
    model = FormulaEncoder(max_num_batched_tokens=100)
    engine = engine_of(model)
    engine.add(request("a", *[30] * 10))

    engine.step()

    assert model.passes == [[30, 30, 30]]


def test_a_request_larger_than_a_step_is_spread_over_several_and_answered_once():
    model = FormulaEncoder()
    engine, wanted = engine_of(model, max_num_batched_tokens=100), request("a", *[30] * 10)
    engine.add(wanted)

    finished_per_step = [len(engine.step()) for _ in range(3)]
    [output] = engine.step()

    assert finished_per_step == [0, 0, 0]
    assert_answers(output, wanted)
    assert [len(lengths) for lengths in model.passes] == [3, 3, 3, 1]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_asked_aborted_and_batched_every_vector_finds_its_request(seed):
    random = Random(seed)
    model = FormulaEncoder()
    budget = random.choice([100, 250, 1_000])
    engine = engine_of(model, max_num_batched_tokens=budget)
    requests: dict[str, EncodeRequest] = {}
    outputs: list[EncodeOutput] = []
    for number in range(60):
        lengths = [random.randint(1, 100) for _ in range(random.randint(1, 12))]
        new = request(f"r{number}", *lengths, priority=random.choice(list(PRIORITY_RANKS)))
        engine.add(new)
        requests[new.id] = new
        if random.random() < 0.5:
            outputs += engine.step()
        if random.random() < 0.2 and engine.abort(victim := random.choice(list(requests))):
            del requests[victim]
        engine.check_integrity()
    outputs += run_to_end(engine)

    assert sorted(output.id for output in outputs) == sorted(requests)
    for output in outputs:
        assert_answers(output, requests[output.id])
    assert all(len(lengths) * max(lengths) <= budget for lengths in model.passes)


def test_many_threads_may_add_and_abort_while_one_steps():
    engine = engine_of(max_num_batched_tokens=200)
    requests = {f"{thread}-{n}": request(f"{thread}-{n}", 5, 50) for thread in range(4) for n in range(50)}
    aborted: list[str] = []

    def add_and_abort_some(thread: int) -> None:
        for n in range(50):
            engine.add(requests[f"{thread}-{n}"])
            if n % 5 == 0 and engine.abort(f"{thread}-{n}"):
                aborted.append(f"{thread}-{n}")

    threads = [threading.Thread(target=add_and_abort_some, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    outputs: list[EncodeOutput] = []
    while any(thread.is_alive() for thread in threads):
        outputs += engine.step()
    outputs += run_to_end(engine)

    assert sorted([output.id for output in outputs] + aborted) == sorted(requests)
    for output in outputs:
        assert_answers(output, requests[output.id])


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
    engine = engine_of()
    engine.add(request("a", 3, 3))

    with pytest.raises(
        EncodeQueueFull, match=f"on top of 2 waiting exceed the queue of {QUEUE_SIZE_MAX} inp"
    ):
        engine.add(EncodeRequest("huge", [[1]] * (QUEUE_SIZE_MAX - 1)))
    engine.add(EncodeRequest("chat", [[1]] * 3, "interactive"))

    assert {output.id for output in run_to_end(engine)} == {"a", "chat"}


def test_a_step_too_small_for_the_models_longest_input_is_refused_at_construction():
    with pytest.raises(InvalidConfig, match="99 is less than the model's longest input of 100 tokens"):
        engine_of(FormulaEncoder(max_length=100), max_num_batched_tokens=99)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_batch_size": -1}, "max_batch_size must be 0 to 65536, got -1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be 1 to"),
        ({"length_buckets": (64, 32)}, r"length_buckets must ascend, got \[64, 32\]"),
        ({"length_buckets": tuple(range(1, 66))}, "length_buckets has more than 64 lengths"),
        ({"max_queue_delay_microseconds": -1}, "max_queue_delay_microseconds must be 0 to"),
        ({"max_queue_delay_microseconds": 10_000_001}, "must be 0 to 10000000, got 10000001"),
        ({"preferred_batch_size": (0,)}, "preferred_batch_size must be 1 to 65536, got 0"),
        ({"max_batch_size": 8, "preferred_batch_size": (4, 16)}, "must not exceed max_batch_size, 8, got 16"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_by_name(fields, said):
    with pytest.raises(InvalidConfig, match=said):
        batching(**fields)


# --- abort and failure ---


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
    engine, wanted = engine_of(model), request("a", 5, 60)
    engine.add(wanted)

    with pytest.raises(RuntimeError, match="out of memory"):
        engine.step()
    engine.check_integrity()
    [output] = run_to_end(engine)

    assert_answers(output, wanted)
