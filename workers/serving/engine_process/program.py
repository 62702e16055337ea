"""The engine's process: requests in, reports of steps out, until the worker closes the channel.

    python -m workers.serving.engine_process FILENO

One thread takes messages in and steps. Without Python of the worker's other threads beside it, it has its
lock to itself.
"""

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from safetensors import SafetensorError

from nightshift.fleet.workers import EXIT_ENGINE_DIED
from nightshift.process import memory
from nightshift.process.logs import adopt_libraries, set_up_logging
from nightshift_engine import EngineError, Output, limit_spinning
from nightshift_engine.errors import RankLost
from workers.serving.engine_process.channel import (
    Abort,
    Add,
    Channel,
    Closed,
    Failed,
    Figures,
    Load,
    Loaded,
    Open,
    Opened,
    Report,
    Times,
    Tokens,
)
from workers.serving.engine_process.launching import SWITCH_INTERVAL_S

if TYPE_CHECKING:  # needs torch
    from nightshift_engine import Engine

log = logging.getLogger(__name__)

NUM_TAKEN: Final = 2  # messages before the first request: Load, Open
REPORT_S: Final = 0.25
"""Longest time between two whole reports of an engine that has work: with counts, and with the tokens of
requests that are told of at their ends. A worker that leaves loses those generated since."""


def main() -> None:
    limit_spinning(os.environ)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    set_up_logging("worker")
    faulthandler.enable()  # a crash in native code says where every thread was
    for number in (signal.SIGTERM, signal.SIGINT):  # those are the worker's to obey, which drains first
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=end_with_worker, name="lifeline", daemon=True).start()
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    with suppress(Closed):
        engine = _load(channel)
        if engine is not None:
            _run(Steps(engine, channel, NUM_TAKEN), channel)


def _run(steps: "Steps", channel: Channel) -> None:
    try:
        steps.run()
    except Closed:
        raise
    except Exception as error:
        log.exception("engine broke", extra={"action": "engine_broke"})
        channel.send(Failed(f"{type(error).__name__}: {error}"))
        sys.exit(EXIT_ENGINE_DIED)


def end_with_worker() -> None:
    """Ends this process with the worker, whose death closes the pipe, also in a step that does not end."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(0)


def _load(channel: Channel) -> "Engine | None":
    """An engine that takes requests. None: it cannot be loaded, and the worker knows why. Raises Closed."""
    with memory.frozen_imports():
        import transformers

        from nightshift_engine import Engine
        from nightshift_engine.models import DeviceMemory, load_model
        from workers.serving.kinds.generators import grammar_threads

    adopt_libraries()
    transformers.utils.logging.disable_progress_bar()
    (load,) = channel.receive()
    assert isinstance(load, Load), "it is loaded first"
    try:
        model = load_model(load.config)
        channel.send(Loaded(model.facts.context_length))
        (order,) = channel.receive()
        assert isinstance(order, Open), "it is opened next"
        # The worker does not see what this process has taken of a GPU.
        left = DeviceMemory.measure(model.device, load.config.gpu_memory_utilization)
        engine = Engine.over(model, left.at_most(order.memory))
    except RankLost:  # not the model's fault
        log.exception("a rank was lost", extra={"action": "engine_broke"})
        sys.exit(EXIT_ENGINE_DIED)
    except (EngineError, OSError, ValueError, SafetensorError) as error:
        channel.send(Failed(str(error)))
        return None
    except Exception as error:  # a model's own code may raise anything
        log.exception("loading failed: model %s", load.config.model)
        channel.send(Failed(f"loading it failed with {type(error).__name__}: {error}"))
        return None
    engine.compile_aside(grammar_threads().run)
    memory.collect_less_often()
    channel.send(Opened(engine.made_by, engine.limits, engine.stats()))
    return engine


class Steps:
    """The engine's loop."""

    def __init__(self, engine: "Engine", channel: Channel, num_taken: int = 0) -> None:
        """`num_taken`: messages that came before the engine's."""
        self._engine = engine
        self._channel = channel
        self._num_taken = num_taken
        self._told: dict[str, int] = {}  # tokens told, by request whose output comes at its end
        self._reported_s = float("-inf")

    def run(self) -> None:
        """Raises Closed, and what a step raises."""
        while True:
            self.run_once(time.monotonic())

    def run_once(self, now_s: float) -> None:
        """Takes in what has come, which it waits for if there is no work, and steps."""
        engine, outputs, has_aborted = self._engine, list[Output](), False
        for order in self._channel.receive(waits=not engine.has_work):
            self._num_taken += 1
            if isinstance(order, Add):
                outputs += self._add(order)
            else:
                assert isinstance(order, Abort), "there are two kinds"
                engine.abort(order.id)
                has_aborted = True
        if engine.has_work:
            outputs += engine.step()
        is_late = not engine.has_work or now_s - self._reported_s >= REPORT_S
        if not (outputs or has_aborted or is_late):
            return
        for output in outputs:
            self._prepare(output)
        figures = None
        if is_late:
            figures = Figures(engine.stats(), engine.histograms, self._tell())
            self._reported_s = now_s
        self._channel.send(Report(outputs, self._num_taken, figures))

    def _add(self, order: Add) -> list[Output]:
        """The output of a request that the engine refuses after all."""
        request = order.request
        try:
            self._engine.add(request)
        except EngineError as error:
            return [Output(request.id, "", [], "abort", 0, 0, 0, error=str(error))]
        if request.output_kind == "final_only":
            self._told[request.id] = 0
        return []

    def _tell(self) -> dict[str, Tokens]:
        told: dict[str, Tokens] = {}
        for id, start in self._told.items():
            token_ids, logprobs = self._engine.generated(id, start)
            if token_ids:
                told[id] = token_ids, logprobs
                self._told[id] = start + len(token_ids)
        return told

    def _prepare(self, output: Output) -> None:
        """Leaves the engine's own objects here."""
        if output.finish_reason is not None:
            self._told.pop(output.id, None)
        if (times := output.times) is not None:
            output.times = Times(times.added_s, times.launched_s, times.first_token_s, times.last_token_s)
