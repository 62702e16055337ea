"""Whose step is next, among the models of one worker."""

import threading
from collections.abc import Callable

import pytest
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig

from nightshift.jobs.priorities import PriorityClass
from tests.unit.workers.serving.conftest import submit
from workers.serving.loading import _make_modules_alone
from workers.serving.models import Models
from workers.serving.turns import BETWEEN_STEPS_S, URGENT_S, StepTurns

WAIT_MAX_S = 30.0


class Clock:
    """Steps move it; a look at it does a little, so that nothing is waited for without end."""

    def __init__(self, looks_between_steps: int = 100) -> None:
        """A model between two steps is waited for through so many looks, each after up to 2 ms."""
        self.now_s = 100.0
        self.look_s = BETWEEN_STEPS_S / looks_between_steps

    def __call__(self) -> float:
        self.now_s += self.look_s
        return self.now_s


class Steps:
    """Threads of models that step as their turns come; each step takes a time of the clock's."""

    def __init__(self, turns: StepTurns, clock: Clock) -> None:
        self.turns, self.clock = turns, clock
        self.order: list[str] = []
        self.inside = 0
        self.most_inside = 0

    def run(self, model: str, count: int, step_s: float) -> threading.Thread:
        def go() -> None:
            for _ in range(count):
                with self.turns.turn(model):
                    self.inside += 1
                    self.most_inside = max(self.most_inside, self.inside)
                    self.order.append(model)
                    self.clock.now_s += step_s
                    self.inside -= 1

        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        return thread


def held(turns: StepTurns) -> Callable[[], None]:
    """Holds the turn of a model of its own until the function returned is called."""
    begun, end = threading.Event(), threading.Event()

    def hold() -> None:
        with turns.turn("first"):
            begun.set()
            end.wait(WAIT_MAX_S)

    threading.Thread(target=hold, daemon=True).start()
    assert begun.wait(WAIT_MAX_S)
    return end.set


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_two_models_never_step_at_once(clock: Clock) -> None:
    steps = Steps(StepTurns(one_at_a_time=True, clock_s=clock), clock)

    for thread in [steps.run(model, 200, 0.01) for model in ("chat", "embed")]:
        thread.join(WAIT_MAX_S)

    assert steps.most_inside == 1
    assert len(steps.order) == 400


def test_a_model_that_was_idle_has_saved_no_time(clock: Clock) -> None:
    turns = StepTurns(one_at_a_time=True, clock_s=clock)
    steps = Steps(turns, clock)
    with turns.turn("embed"):
        pass
    steps.run("chat", 100, 1.0).join(WAIT_MAX_S)  # while the other has nothing to do
    clock.now_s += BETWEEN_STEPS_S
    release = held(turns)
    threads = [steps.run("embed", 50, 1.0), steps.run("chat", 50, 1.0)]
    release()
    for thread in threads:
        thread.join(WAIT_MAX_S)

    assert "chat" in steps.order[100:105]


def test_a_model_alone_waits_for_no_other(clock: Clock) -> None:
    steps = Steps(StepTurns(one_at_a_time=True, clock_s=clock), clock)

    steps.run("embed", 1, 1.0).join(WAIT_MAX_S)
    chat = steps.run("chat", 100, 1.0)
    clock.now_s += BETWEEN_STEPS_S
    chat.join(WAIT_MAX_S)

    assert steps.order.count("chat") == 100


def test_on_a_gpu_models_step_at_once(clock: Clock) -> None:
    turns = StepTurns(one_at_a_time=False, clock_s=clock)
    release = held(turns)

    with turns.turn("second"):
        pass  # while the first still steps

    release()


def test_no_step_runs_while_a_model_is_made(clock: Clock) -> None:
    turns = StepTurns(one_at_a_time=False, clock_s=clock)
    steps = Steps(turns, clock)
    with turns.paused():
        waiting = steps.run("chat", 1, 0.01)
        waiting.join(0.05)
        assert steps.order == []

    waiting.join(WAIT_MAX_S)
    assert steps.order == ["chat"]


def test_a_pause_begins_when_the_steps_under_way_have_ended(clock: Clock) -> None:
    turns = StepTurns(one_at_a_time=True, clock_s=clock)
    release, paused = held(turns), threading.Event()

    def pause() -> None:
        with turns.paused():
            paused.set()

    threading.Thread(target=pause, daemon=True).start()
    assert not paused.wait(0.05)

    release()
    assert paused.wait(WAIT_MAX_S)


def test_a_model_is_made_without_weights_between_steps_too(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = transformers.PreTrainedModel
    for name in ("get_init_context", "_from_config"):
        monkeypatch.setattr(base, name, base.__dict__[name])  # put back at the end
    turns = StepTurns(one_at_a_time=True, clock_s=clock)
    _make_modules_alone(turns)
    release, made = held(turns), threading.Event()
    config = LlamaConfig(
        hidden_size=8, intermediate_size=8, num_attention_heads=1, num_hidden_layers=1, vocab_size=8
    )

    def make() -> None:
        AutoModelForCausalLM.from_config(config)
        made.set()

    threading.Thread(target=make, daemon=True).start()
    assert not made.wait(0.05)

    release()
    assert made.wait(WAIT_MAX_S)


def test_none_of_three_models_starves() -> None:
    """Short, middling and long steps: while all have work, each has a third of the time."""
    clock = Clock(looks_between_steps=2000)  # a busy machine may hold a thread up between two steps
    lengths = {"chat": 0.01, "embed": 0.05, "translate": 0.25}
    turns = StepTurns(one_at_a_time=True, clock_s=clock)
    steps = Steps(turns, clock)
    release = held(turns)
    threads = [steps.run(model, round(5.0 / length), length) for model, length in lengths.items()]
    release()
    for thread in threads:
        thread.join(WAIT_MAX_S)

    ends = [len(steps.order) - steps.order[::-1].index(model) for model in lengths]
    together = steps.order[: min(ends)]
    used = [together.count(model) * length for model, length in lengths.items()]
    assert len(steps.order) == 620
    assert max(used) - min(used) <= 2 * max(lengths.values())


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_a_model_that_ends_in_its_turn_blocks_no_other(clock: Clock, is_forgotten: bool) -> None:
    """Its thread dies in the step; or it is unloaded in it, by another thread, and dies then."""
    turns = StepTurns(one_at_a_time=True, clock_s=clock)
    steps = Steps(turns, clock)
    begun, end, errors = threading.Event(), threading.Event(), list[str]()

    def die() -> None:
        try:
            with turns.turn("first"):
                begun.set()
                assert end.wait(WAIT_MAX_S)
                raise RuntimeError("the device is lost")
        except (RuntimeError, KeyError) as error:
            errors.append(repr(error))

    dying = threading.Thread(target=die, daemon=True)
    dying.start()
    assert begun.wait(WAIT_MAX_S)
    others = [steps.run(model, 20, 0.01) for model in ("chat", "embed")]
    if is_forgotten:
        turns.forget("first")
    end.set()
    for thread in (dying, *others):
        thread.join(WAIT_MAX_S)

    assert errors == ["RuntimeError('the device is lost')"]
    assert {model: steps.order.count(model) for model in ("chat", "embed")} == {"chat": 20, "embed": 20}


def test_steps_are_to_be_short_while_a_client_waits_for_another_model(clock: Clock) -> None:
    turns = StepTurns(one_at_a_time=True, urgent_step_s=0.05, clock_s=clock)
    assert turns.step_s("embed") is None
    with turns.turn("chat", is_urgent=True):
        assert turns.step_s("embed") == 0.05
        assert turns.step_s("chat") is None  # its own steps know of its own requests

    assert turns.step_s("embed") == 0.05  # between two steps of the chat
    clock.now_s += URGENT_S
    assert turns.step_s("embed") is None


@pytest.mark.parametrize(
    ("priority", "step_s"), [(PriorityClass.INTERACTIVE, 0.05), (PriorityClass.BACKGROUND, None)]
)
def test_a_chat_is_what_a_client_waits_for_and_a_row_is_not(
    models: Models, priority: PriorityClass, step_s: float | None
) -> None:
    turns = StepTurns(one_at_a_time=True, urgent_step_s=0.05, clock_s=lambda: 100.0)
    chat = models.get(models.ids[0])
    chat.share_device(turns)
    body = {"model": chat.model.id, "messages": [{"role": "user", "content": "12"}]}

    submit(models, "/v1/chat/completions", body, priority=priority).wait()

    assert turns.step_s("embed") == step_s
    assert turns.step_s(chat.model.id) is None
