"""A decoder's engine in a process of its own, as its server needs an engine.

Python runs one thread of a process at a time. Beside an engine whose steps are mostly Python, reading rows,
tokenizing, JSON and HTTP cost its speed, so they stay in the worker.
"""

import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final, TypeVar

from nightshift.fleet.workers import EXIT_ENGINE_DIED
from nightshift_engine import (
    EngineConfig,
    EngineHistograms,
    EngineStats,
    MadeBy,
    Output,
    Request,
    TokenLogprobs,
)
from nightshift_engine.errors import DuplicateRequest, ModelLoadFailed
from nightshift_engine.models import DeviceMemory, Tokenizer
from workers.serving.engine_process.channel import (
    Abort,
    Add,
    Channel,
    Closed,
    Failed,
    Load,
    Loaded,
    Open,
    Opened,
    Report,
    Tokens,
)
from workers.serving.engine_process.launching import EngineDied, end, launch

T = TypeVar("T")

NUM_BEFORE: Final = 2
"""Messages before the first request: Load, Open."""


@dataclass(slots=True)
class _Made:
    """Tokens told of a request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class EngineProcess:
    """One engine. `start` begins to load it; requests may come once `open` has returned."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, config: EngineConfig) -> None:
        self._process, self._channel = process, channel
        self.tokenizer = Tokenizer.load(config.model, config.revision)  # while the weights are read
        self.context_length = self._receive(Loaded).context_length
        self.histograms = EngineHistograms()
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._outgoing: SimpleQueue[object] = SimpleQueue()  # what threads that must not wait have to send
        self._num_posted = NUM_BEFORE
        self._num_taken = self._must_take = 0  # numbers of messages
        self._failure: EngineDied | None = None
        self._is_closing = False
        self._made: dict[str, _Made] = {}

    @classmethod
    def start(cls, config: EngineConfig) -> "EngineProcess":
        """An engine whose weights are loaded. Raises ModelLoadFailed with the reason, or EngineDied."""
        process, channel = launch()
        try:
            with suppress(Closed):  # receiving says why
                channel.send(Load(config))
            return cls(process, channel, config)
        except BaseException:
            end(process, channel)
            raise

    def open(self, memory: DeviceMemory | None, on_death: Callable[[BaseException], None]) -> None:
        """Takes KV memory. `on_death` is called if the process ends by itself, idle ones included. Raises
        ModelLoadFailed with the reason, or EngineDied.
        """
        with suppress(Closed):
            self._channel.send(Open(memory))
        opened = self._receive(Opened)
        self.made_by: MadeBy = opened.made_by
        self.limits, self._stats = opened.limits, opened.stats
        threading.Thread(target=self._watch, args=[on_death], name="engine-watch", daemon=True).start()
        threading.Thread(target=self._write, name="engine-write", daemon=True).start()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    @property
    def has_work(self) -> bool:
        return bool(self._known)

    def check(self, request: Request) -> None:
        """Raises what `add` raises of a request that can never run here."""
        self.limits.token_limit(request)

    def add(self, request: Request) -> None:
        """The same as `Engine.add`."""
        self.check(request)
        with self._lock:
            if request.id in self._known:
                raise DuplicateRequest(request.id)
            self._known.add(request.id)
            self._post(Add(request))

    def abort(self, request_id: str) -> None:
        """The same as `Engine.abort`."""
        with self._lock:
            if request_id in self._known:
                self._post(Abort(request_id))
                self._must_take = self._num_posted

    def step(self) -> list[Output]:
        """Waits for a report of steps that took in every abort that came before. Raises EngineDied."""
        outputs, must_take = list[Output](), self._must_take
        while self.has_work and self._failure is None:
            outputs += self._news()
            if self._num_taken >= must_take:
                return outputs
        if self._failure is not None and not outputs:
            raise self._failure
        return outputs

    def generated(self, request_id: str, start: int = 0) -> tuple[list[int], list[TokenLogprobs]]:
        """The same as `Engine.generated`, as of the last report."""
        with self._lock:
            made = self._made.get(request_id, _Made())
            return made.token_ids[start:], made.logprobs[start:]

    def stats(self) -> EngineStats:
        """Counts as of the last report."""
        return self._stats

    def close(self) -> None:
        """Ends the process; nothing is added any more."""
        self._is_closing = True
        self._outgoing.put(None)
        end(self._process, self._channel)

    def _post(self, message: object) -> None:
        """Has a message sent. The caller holds the lock, so messages are numbered as they are sent."""
        self._num_posted += 1
        self._outgoing.put(message)

    def _write(self) -> None:
        """Sends what has been posted, all that there is at a time; that waits for the engine's step."""
        with suppress(Closed):  # the watch says it
            while (message := self._outgoing.get()) is not None:
                messages = [message]
                while not self._outgoing.empty() and (message := self._outgoing.get()) is not None:
                    messages.append(message)
                self._channel.send(*messages)
                if message is None:
                    return

    def _watch(self, on_death: Callable[[BaseException], None]) -> None:
        code = self._process.wait()
        if not self._is_closing:
            on_death(EngineDied.of_process(code))

    def _receive(self, expected: type[T]) -> T:
        """Raises ModelLoadFailed or EngineDied."""
        try:
            (message,) = self._channel.receive()
        except Closed:
            code = self._process.wait()
            if code < 0 or code == EXIT_ENGINE_DIED:
                raise EngineDied.of_process(code) from None
            raise ModelLoadFailed(f"the engine's process ended with code {code}; its log says why") from None
        if isinstance(message, Failed):
            raise ModelLoadFailed(message.reason)
        assert isinstance(message, expected), f"{message} in place of {expected}"
        return message

    def _news(self) -> list[Output]:
        """Outputs of the reports that come next. What has ended the engine is kept for when they are told."""
        outputs = list[Output]()
        try:
            for message in self._channel.receive():
                if isinstance(message, Failed):
                    self._failure = EngineDied(message.reason)
                    break
                outputs += self._take(message)
        except Closed:
            self._failure = EngineDied.of_process(self._process.wait())
        return outputs

    def _take(self, report: Report) -> list[Output]:
        self._num_taken = report.num_taken
        told: dict[str, Tokens] = {}
        if (figures := report.figures) is not None:
            self._stats, self.histograms, told = figures.stats, figures.histograms, figures.told
        ended = [output.id for output in report.outputs if output.finish_reason is not None]
        with self._lock:
            for id, (token_ids, logprobs) in told.items():
                made = self._made.setdefault(id, _Made())
                made.token_ids += token_ids
                made.logprobs += logprobs
            for id in ended:
                self._made.pop(id, None)
            self._known.difference_update(ended)
        return report.outputs
