"""No flow of inputs starves another of its class, however many inputs it has waiting."""

from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest
from numpy.typing import NDArray

from nightshift_engine.core.order import FairTurns
from nightshift_engine.core.request import PriorityClass
from nightshift_engine.encoders import engine as engine_module
from nightshift_engine.encoders.batcher import EncoderBatcher, WaitingInput
from nightshift_engine.encoders.config import EncoderConfig
from nightshift_engine.encoders.engine import EncoderEngine
from nightshift_engine.encoders.request import EncodeRequest
from nightshift_engine.errors import EncodeQueueFull

BUDGET = 100  # tokens of a pass


class Queue:
    """A batcher, and what its passes have computed."""

    def __init__(self, **config: object) -> None:
        self.batcher = EncoderBatcher(EncoderConfig(**config), BUDGET)
        self.numbers = count()

    def add(self, flow: str, *lengths: int, priority: PriorityClass = "interactive") -> None:
        for length in lengths:
            number = next(self.numbers)
            self.batcher.add(WaitingInput(flow, number, [0] * length, priority, number, 0, flow=flow))

    def run(self, passes: int = 1) -> list[WaitingInput]:
        """Inputs that these passes have computed, in their order."""
        done = []
        for _ in range(passes):
            chosen = self.batcher.plan(0)
            done += chosen
            for input in chosen:
                self.batcher.remove(input)
            self.batcher.check_integrity()
        return done


@pytest.mark.parametrize("length_buckets", [None, ()])
def test_one_text_goes_before_the_thousands_that_another_sent_first(length_buckets: object) -> None:
    queue = Queue(length_buckets=length_buckets)
    queue.add("many", *[50] * 2_000)
    queue.run(passes=3)

    queue.add("one", 50)

    assert "one" in [input.flow for input in queue.run()]


def test_a_text_that_no_pass_of_the_other_flows_would_take_is_next_too() -> None:
    """Its length is another, so that only its turn brings it in."""
    queue = Queue()
    queue.add("many", *[100] * 500)
    queue.run(passes=5)

    queue.add("one", 3)

    assert "one" in [input.flow for input in queue.run(passes=2)]


def test_flows_that_always_wait_have_the_same_tokens_each() -> None:
    queue = Queue()
    queue.add("short", *[10] * 3_000)
    queue.add("long", *[100] * 300)
    queue.add("late", *[50] * 600)

    done = queue.run(passes=300)

    tokens = {
        flow: sum(input.num_tokens for input in done if input.flow == flow) for flow in ("short", "long")
    }
    assert tokens["short"] == pytest.approx(tokens["long"], abs=3 * BUDGET)


def test_a_less_urgent_class_waits_whatever_its_flow_has_had() -> None:
    queue = Queue()
    queue.add("urgent", *[100] * 3, priority="interactive")
    queue.add("other", 100, priority="standard")

    assert [input.flow for input in queue.run(passes=4)] == ["urgent"] * 3 + ["other"]


def test_a_flow_that_comes_and_goes_has_no_more_than_one_that_stays() -> None:
    """Its text fills a pass, and the next one comes when that is done, so that none of it waits meanwhile."""
    queue = Queue()
    queue.add("stays", *[BUDGET] * 500)
    tokens = {"stays": 0, "comes": 0}
    for _ in range(100):
        if not queue.batcher.waiting_of("comes"):
            queue.add("comes", BUDGET)
        for input in queue.run():
            tokens[input.flow] += input.num_tokens

    assert tokens["stays"] == pytest.approx(tokens["comes"], abs=3 * BUDGET)


def test_a_flow_that_cancelled_what_waited_owes_nothing() -> None:
    turns = FairTurns()
    turns.add("other", 512)
    for _ in range(1_000):
        turns.add("cancelled", 512)
    for _ in range(1_000):
        turns.remove("cancelled", unserved=512)

    assert turns.add("cancelled", 512) < turns.add("other", 512)


class Ones:
    """An encoder whose vectors say nothing."""

    max_length, max_num_batched_tokens = BUDGET, BUDGET

    def objection(self, input: object) -> None:
        return None

    def encode(self, inputs: Sequence[object]) -> NDArray[np.float32]:
        return np.ones((len(inputs), 1), np.float32)


class AbortedInItsPass(Ones):
    """Each pass of the flow `aborts` ends with its requests aborted, and sent anew."""

    def __init__(self) -> None:
        self.engine = EncoderEngine(self)
        self.passes = {"aborts": 0, "stays": 0}

    def encode(self, inputs: Sequence[object]) -> NDArray[np.float32]:
        [text] = inputs
        flow = "aborts" if text == [1] * BUDGET else "stays"
        self.passes[flow] += 1
        if flow == "aborts":
            assert self.engine.abort("aborts")
            self.engine.add(EncodeRequest("aborts", [text], flow="aborts"))
        return super().encode(inputs)


def test_a_flow_that_aborts_what_is_computed_has_no_more_than_one_that_stays() -> None:
    model = AbortedInItsPass()
    model.engine.add(EncodeRequest("aborts", [[1] * BUDGET], flow="aborts"))
    for number in range(100):
        model.engine.add(EncodeRequest(f"stays-{number}", [[2] * BUDGET], flow="stays"))

    for _ in range(40):
        model.engine.step()
        model.engine.check_integrity()

    assert model.passes == {"aborts": 20, "stays": 20}


def test_of_an_aborted_request_only_what_a_pass_had_counts_as_its_flows() -> None:
    """Its other inputs, and a pass that failed before it was aborted, cost it nothing."""
    model = AbortedInItsPass()
    model.engine.add(EncodeRequest("fails", [[1] * BUDGET] * 50, flow="fails"))
    for number in range(4):
        model.engine.add(EncodeRequest(f"stays-{number}", [[2] * BUDGET], flow="stays"))
    model.encode = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        model.engine.step()
    model.engine.abort("fails")
    del model.encode

    model.engine.step()
    model.engine.add(EncodeRequest("aborts", [[1] * BUDGET], flow="fails"))
    model.engine.step()
    model.engine.check_integrity()

    assert model.passes["aborts"] == 1, "it waited for more of the other flow"


def fail(_: object) -> NDArray[np.float32]:
    raise RuntimeError("a device broke")


def test_no_flow_fills_the_queue_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "QUEUE_SIZE_MAX", 100)
    engine = EncoderEngine(Ones())

    engine.add(EncodeRequest("half", [[0]] * 50, flow="many"))
    with pytest.raises(EncodeQueueFull):
        engine.add(EncodeRequest("more", [[0]], flow="many"))

    engine.add(EncodeRequest("other", [[0]] * 25, flow="other"))
    engine.check_integrity()
