"""How many threads compute a step beside neighbours: on simulated systems, and by the real one's files."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nightshift_engine import Request
from nightshift_engine.execution.linears.native import NativeLinear
from nightshift_engine.execution.step_threads import (
    HELPER_NAME,
    HOLD_MAX_S,
    WINDOW_S,
    WORTH,
    StepThreads,
    ThreadPolicy,
    Window,
)
from tests.unit.engine.tiny.decoders import complete, greedy, make_engine, save_model

Given = Callable[[int], float]
"""Cores that a system gives so many threads, where others want its cores too."""


def by_service(cores: float) -> Given:
    return lambda threads: min(float(threads), cores)


def by_thread(cores: int, neighbours: int) -> Given:
    return lambda threads: min(float(threads), cores * threads / (threads + neighbours))


def run(policy: ThreadPolicy, given_cores: Given, seconds: float, start_s: float = 0.0) -> list[int]:
    """The threads of each window."""
    used = []
    for number in range(round(seconds / WINDOW_S)):
        used.append(policy.threads)
        cores = given_cores(policy.threads)
        window = Window(cores, policy.threads - cores)
        policy.note(window, start_s + (number + 1) * WINDOW_S)
    return used


@pytest.mark.parametrize(("threads_max", "cores"), [(2, 1.0), (4, 2.0), (8, 3.1)])
def test_as_many_threads_compute_as_a_service_is_given_cores(threads_max: int, cores: float) -> None:
    used = run(ThreadPolicy(threads_max), by_service(cores), 60)
    assert used[0] == threads_max
    assert used[10:].count(round(cores)) >= 0.8 * len(used[10:])


@pytest.mark.parametrize(("threads_max", "neighbours"), [(2, 1), (2, 2), (4, 2), (8, 8), (16, 1)])
def test_little_is_given_up_where_each_thread_is_given_its_own_share(
    threads_max: int, neighbours: int
) -> None:
    given_cores = by_thread(threads_max, neighbours)
    used = run(ThreadPolicy(threads_max), given_cores, 120)
    assert sum(map(given_cores, used)) >= WORTH * given_cores(threads_max) * len(used)
    if threads_max == 2:  # one would be given two thirds of what both are
        assert used.count(2) >= 0.97 * len(used)


def test_all_threads_compute_again_once_the_neighbours_have_gone() -> None:
    policy = ThreadPolicy(2)
    run(policy, by_service(1.0), 10)
    used = run(policy, by_service(2.0), 10, start_s=10)
    assert set(used[round(1.5 / WINDOW_S) :]) == {2}


def test_a_service_that_is_given_less_later_is_tried_again() -> None:
    policy = ThreadPolicy(2)
    run(policy, by_thread(2, 1), 60)
    used = run(policy, by_service(1.0), 2 * HOLD_MAX_S, start_s=60)
    assert used[-10:].count(1) >= 8


@given(st.integers(2, 64), st.lists(st.floats(0, 64), max_size=50))
def test_threads_that_wait_for_no_core_are_left_alone(threads_max: int, cores: list[float]) -> None:
    """However little they do: a step of few rows is computed by one of them, and the others sleep."""
    policy = ThreadPolicy(threads_max)
    for number, busy_cores in enumerate(cores):
        policy.note(Window(busy_cores, 0.0), number * WINDOW_S)
        assert policy.threads == threads_max


@given(
    st.integers(2, 64), st.lists(st.tuples(st.floats(0, 64), st.floats(0, 64), st.floats(0, 30)), max_size=80)
)
def test_there_is_always_one_thread_and_never_more_than_all(
    threads_max: int, windows: list[tuple[float, float, float]]
) -> None:
    policy, now_s = ThreadPolicy(threads_max), 0.0
    for cores, waited, pause_s in windows:
        now_s += WINDOW_S + pause_s
        policy.note(Window(cores, waited), now_s)
        assert 1 <= policy.threads <= threads_max


class OpenMp:
    threads = 2

    def omp_get_max_threads(self) -> int:
        return self.threads

    def omp_set_num_threads(self, threads: int) -> None:
        self.threads = threads


class Tasks:
    """The system's files about this process's threads: two that compute and another."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.leader = directory, threading.get_native_id()
        self._spent = {self.leader: [0, 0], 8_000_001: [0, 0], 8_000_002: [0, 0]}
        for task in self._spent:
            (directory / str(task)).mkdir()
            name = HELPER_NAME if task == 8_000_001 else "python"
            (directory / str(task) / "comm").write_text(name + "\n")
        self.give(0, 0, 0)

    def give(self, threads: int, cores: float, seconds: float) -> None:
        for task in [self.leader, 8_000_001][:threads]:
            self._spent[task][0] += int(1e9 * seconds * cores / threads)
            self._spent[task][1] += int(1e9 * seconds * (1 - cores / threads))
        self._spent[8_000_002][0] += int(1e9 * seconds)  # no part of a step
        for task, (ran, waited) in self._spent.items():
            (self.directory / str(task) / "schedstat").write_text(f"{ran} {waited} 17\n")


def test_the_number_of_threads_is_set_by_what_the_system_says(tmp_path: Path) -> None:
    runtime, tasks = OpenMp(), Tasks(tmp_path)
    step_threads, used = StepThreads(runtime, tmp_path), []
    for number in range(100):
        used.append(runtime.threads)
        tasks.give(runtime.threads, min(runtime.threads, 1.0), 0.25)
        step_threads.ended(0.24, now_s=10 + 0.25 * number)
    assert used[20:].count(1) >= 60


def test_steps_with_pauses_between_them_say_nothing(tmp_path: Path) -> None:
    runtime, tasks = OpenMp(), Tasks(tmp_path)
    step_threads = StepThreads(runtime, tmp_path)
    for number in range(40):
        tasks.give(2, 1.0, 0.25)
        step_threads.ended(0.1, now_s=10 + 0.25 * number)
    assert runtime.threads == 2


def test_a_system_that_does_not_say_what_threads_wait_for_changes_nothing(tmp_path: Path) -> None:
    runtime = OpenMp()
    step_threads = StepThreads(runtime, tmp_path / "missing")
    for number in range(40):
        step_threads.ended(0.25, now_s=10 + 0.25 * number)
    assert runtime.threads == 2


@pytest.mark.skipif(not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels")
def test_the_threads_of_this_process_are_found_and_one_alone_answers_the_same(
    tmp_path: Path,
) -> None:
    engine = make_engine(save_model(tmp_path), deterministic=True)
    request = Request("1", list(range(60)), greedy(8))
    [by_all] = complete(engine, request)
    runner_threads = engine._runner.threads  # type: ignore[attr-defined]
    spent = runner_threads._read()
    assert threading.get_native_id() in spent
    assert len(spent) > 1 or torch.get_num_threads() == 1

    threads = runner_threads._runtime.omp_get_max_threads()
    runner_threads._runtime.omp_set_num_threads(1)
    try:
        [by_one] = complete(make_engine(tmp_path, deterministic=True), request)
    finally:
        runner_threads._runtime.omp_set_num_threads(threads)

    assert by_one.token_ids == by_all.token_ids
