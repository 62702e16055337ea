"""An engine in a process of its own does what one in this process does, and neither outlives the other."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.cli.demo import demo_model_path
from nightshift.process.settings import WorkerSettings
from nightshift_engine import Engine, Grammar, Output, Request, SamplingParams
from nightshift_engine.errors import DuplicateRequest, ModelLoadFailed, PromptTooLong
from workers.serving.engine_process import launching
from workers.serving.engine_process.channel import Abort, Channel, Failed, Loaded, Opened, Report
from workers.serving.engine_process.engine_process import EngineDied, EngineProcess
from workers.serving.engine_process.launching import has_engine_process, launch, launched_ahead
from workers.serving.kinds.generators import engine_config
from workers.serving.loading import load_models

SETTINGS = WorkerSettings(models=("demo",), device="cpu", dtype="float32", engine_num_kv_blocks=64)
CONFIG = engine_config(str(demo_model_path()), SETTINGS)
WAIT_S = 60.0


@pytest.fixture(scope="module")
def remote() -> Iterator[EngineProcess]:
    engine = EngineProcess.start(CONFIG)
    engine.open(None, lambda error: None)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def local() -> Engine:
    return Engine.load(CONFIG)


def request(id: str, number: int, **sampling: object) -> Request:
    return Request(id, (5 + number, 6, 7 + number), SamplingParams(**{"max_tokens": 12} | sampling))  # type: ignore[arg-type]


def run(engine: Engine | EngineProcess, *requests: Request) -> dict[str, Output]:
    """All outputs of each request, put together."""
    whole: dict[str, Output] = {}
    for one in requests:
        engine.add(one)
    while engine.has_work:
        for output in engine.step():
            before = whole.setdefault(output.id, output)
            if before is not output:
                output.text = before.text + output.text
                output.token_ids = before.token_ids + output.token_ids
                if before.logprobs is not None:
                    output.logprobs = before.logprobs + (output.logprobs or [])
                whole[output.id] = output
    for output in whole.values():
        assert output.times is not None
        assert output.times.added_s <= output.times.last_token_s
        output.times = None
    return whole


def test_its_outputs_are_those_of_an_engine_in_this_process(remote: EngineProcess, local: Engine) -> None:
    requests = [
        request("greedy", 1, temperature=0.0),
        request("drawn", 2, seed=3, top_p=0.9, logprobs=2),
        request("stopped", 3, stop=("one", "two"), presence_penalty=1.5),
        Request("grammar", (5, 6, 7), SamplingParams(max_tokens=12), grammar=Grammar("regex", "(one|two)+")),
        Request("at the end", (5, 6, 7), SamplingParams(max_tokens=12), output_kind="final_only"),
        Request("resumed", (5, 6, 7), SamplingParams(max_tokens=12), output_token_ids=(9, 10)),
    ]
    assert run(remote, *requests) == run(local, *requests)
    assert remote.made_by == local.made_by
    assert remote.context_length == local.context_length
    assert remote.stats().tokens_generated == local.stats().tokens_generated
    assert remote.histograms.tokens_per_step.count == remote.stats().steps
    assert remote.stats().running == 0


def test_a_request_that_can_never_run_is_refused_as_here(remote: EngineProcess, local: Engine) -> None:
    long = Request("long", (5,) * 1000, SamplingParams(max_tokens=1))
    refusals = []
    for engine in (remote, local):
        with pytest.raises(PromptTooLong) as refused:
            engine.add(long)
        refusals.append(str(refused.value))
        with pytest.raises(PromptTooLong):
            engine.check(long)
    assert refusals[0] == refusals[1]
    assert not remote.has_work


def test_an_id_that_is_in_the_engine_is_refused(remote: EngineProcess) -> None:
    remote.add(request("twice", 1))
    with pytest.raises(DuplicateRequest):
        remote.add(request("twice", 1))
    while remote.has_work:
        remote.step()
    assert run(remote, request("twice", 1)).keys() == {"twice"}


def test_after_a_step_that_follows_an_abort_the_engine_does_not_have_the_request(
    remote: EngineProcess,
) -> None:
    endless = SamplingParams(max_tokens=200, ignore_eos=True)
    for id in ("a", "b"):
        remote.add(Request(id, (5, 6, 7), endless))
    remote.step()
    remote.abort("a")
    remote.abort("unknown")
    outputs = remote.step()
    assert ("a", "abort") in [(output.id, output.finish_reason) for output in outputs]
    remote.abort("b")
    while remote.has_work:
        remote.step()
    assert remote.stats().blocks_used == 0


def test_tokens_of_a_request_that_ends_with_one_output_are_told_meanwhile(remote: EngineProcess) -> None:
    endless = SamplingParams(max_tokens=240, ignore_eos=True, temperature=0.0)
    for number in range(48):  # steps take a while
        kind = "final_only" if number else "delta"
        remote.add(Request(f"row {number}", (5, 6 + number), endless, output_kind=kind))  # type: ignore[arg-type]
    told: list[int] = []
    ended: dict[str, Output] = {}
    while remote.has_work:
        ended |= {output.id: output for output in remote.step()}
        new, logprobs = remote.generated("row 1", len(told))
        assert logprobs == []
        told += new
    assert told == ended["row 1"].token_ids[: len(told)]
    assert remote.generated("row 1") == ([], [])


def test_a_model_that_cannot_be_loaded_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = engine_config(str(tmp_path / "nothing"), SETTINGS)
    with pytest.raises(ModelLoadFailed, match="nothing"):
        EngineProcess.start(config)


@pytest.mark.exhaustive
def test_memory_that_cannot_be_had_is_a_refusal_too() -> None:
    settings = SETTINGS.model_copy(update={"engine_num_kv_blocks": 10**12})
    engine = EngineProcess.start(engine_config(str(demo_model_path()), settings))
    with pytest.raises(ModelLoadFailed, match="set num_kv_blocks"):
        engine.open(None, lambda error: None)
    engine.close()


def test_a_death_while_a_model_is_loaded_says_nothing_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    died = subprocess.Popen(
        [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], stdin=subprocess.PIPE
    )
    ours, theirs = socket.socketpair()
    theirs.close()
    monkeypatch.setattr(launching, "_ahead", [(died, Channel(ours))])
    deaths: list[BaseException] = []
    settings = {"engine_process": True, "models": (str(demo_model_path()),)}
    with pytest.raises(EngineDied, match="killed by signal 9"):
        load_models(WorkerSettings(device="cpu", **settings), deaths.append)  # type: ignore[arg-type]
    assert [type(death) for death in deaths] == [EngineDied]


def test_the_death_of_the_process_is_told_while_idle_and_ends_a_step() -> None:
    deaths: list[BaseException] = []
    has_died = threading.Event()

    def died(error: BaseException) -> None:
        deaths.append(error)
        has_died.set()

    engine = EngineProcess.start(CONFIG)
    engine.open(None, died)
    os.kill(engine.pid, signal.SIGKILL)
    assert has_died.wait(WAIT_S)
    assert isinstance(deaths[0], EngineDied)
    assert deaths[0].killed_by == signal.SIGKILL
    engine.add(request("late", 1))
    engine.abort("late")
    with pytest.raises(EngineDied, match="killed by signal 9"):
        engine.step()
    engine.close()


class Quiet:
    """A process that does not end by itself."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def wait(self) -> int:
        self._ended.wait()
        return 0

    def communicate(self, timeout: float) -> None:
        self._ended.set()


@pytest.fixture
def ends(local: Engine) -> Iterator[tuple[EngineProcess, Channel]]:
    """An engine whose process is this test: the other end of the channel."""
    ours, theirs = socket.socketpair()
    other = Channel(theirs)
    other.send(Loaded(256))
    engine = EngineProcess(Quiet(), Channel(ours), CONFIG)  # type: ignore[arg-type]
    other.send(Opened(local.made_by, local.limits, local.stats()))
    engine.open(None, lambda error: None)
    yield engine, other
    engine.close()
    other.close()


def test_no_thread_waits_for_an_engine_that_takes_nothing_in(ends: tuple[EngineProcess, Channel]) -> None:
    """Its step may be long, or it waits until its reports are read: by the thread that aborts, too."""
    engine, other = ends
    ids = [f"row {number}" for number in range(400)]
    for id in ids:  # more than a socket holds
        engine.add(Request(id, (5,) * 200, SamplingParams(max_tokens=1)))
    engine.abort(ids[0])

    large = [Output(id, "x" * 10_000, [5], "stop", 1, 1, 0) for id in ids]
    reporting = threading.Thread(target=other.send, args=[Report(large, 2 + len(ids) + 1)])
    reporting.start()  # which waits, too, as nothing is read yet
    assert [output.id for output in engine.step()] == ids
    reporting.join()
    received: list[object] = []
    while len(received) < 1 + len(ids) + 1:  # Open, then these
        received += other.receive()
    assert received[-1] == Abort(ids[0])


def test_outputs_that_come_with_the_reason_of_a_death_are_told_before_it(
    ends: tuple[EngineProcess, Channel],
) -> None:
    engine, other = ends
    for id in ("a", "b"):
        engine.add(Request(id, (5,), SamplingParams(max_tokens=1)))
    other.send(Report([Output("a", "x", [5], "stop", 1, 1, 0)], 4), Failed("ValueError: so it is"))

    assert [output.id for output in engine.step()] == ["a"]
    with pytest.raises(EngineDied, match="so it is"):
        engine.step()


WORKER = """
import sys
from workers.serving.engine_process.launching import launch
print(launch()[0].pid, flush=True)
sys.stdin.read()
"""
STUCK = """
import threading
from workers.serving.engine_process.program import end_with_worker
threading.Thread(target=end_with_worker, daemon=True).start()
while True:
    pass
"""


def test_the_process_ends_with_a_worker_that_is_killed() -> None:
    command = [sys.executable, "-c", WORKER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        watched = os.pidfd_open(int(worker.stdout.readline()))
        worker.kill()
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    assert poll.poll(WAIT_S * 1000), "it outlived its worker"
    os.close(watched)


LEAVING = """
import os, signal
from workers.health.shutdown import exit_process
from workers.serving.engine_process.launching import launch
pid = launch()[0].pid
os.kill(pid, signal.SIGSTOP)
print(pid, flush=True)
input()
exit_process(3)
"""


def test_a_worker_that_ends_at_once_takes_an_engine_along_that_no_longer_runs() -> None:
    command = [sys.executable, "-c", LEAVING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        watched = os.pidfd_open(int(worker.stdout.readline()))
        worker.communicate("now", timeout=WAIT_S)
    assert worker.returncode == 3
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    assert poll.poll(WAIT_S * 1000), "it outlived its worker"
    os.close(watched)


def test_it_ends_with_its_worker_in_a_step_that_does_not_end() -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK], stdin=subprocess.PIPE) as process:
        process.communicate(timeout=WAIT_S)  # closes its input, as a worker's death does
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("settings", "cores", "expected"),
    [
        ({"models": ("a",)}, 2, True),
        ({"models": ("a",)}, 1, False),
        ({"models": ("a", "b")}, 8, False),
        ({"models": ("a",), "lazy_models": ("b",)}, 8, False),
        ({"models": ("a",), "engine_process": True}, 1, True),
        ({"models": ("a", "b"), "engine_process": True}, 8, False),
        ({"models": ("a",), "engine_process": False}, 8, False),
    ],
)
def test_a_workers_only_model_has_its_process_where_there_are_cores_for_two(
    settings: dict[str, object], cores: int, expected: bool
) -> None:
    assert has_engine_process(WorkerSettings(**settings), cores) is expected  # type: ignore[arg-type]


def test_a_process_that_was_launched_ahead_is_taken_or_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "cores_here", lambda: 2)
    with launched_ahead(SETTINGS):
        (waiting,) = launching._ahead
    assert waiting[0].poll() is not None, "nothing has taken it"

    with launched_ahead(SETTINGS):
        taken = launch()
    assert taken[0].poll() is None
    launching.end(*taken)
