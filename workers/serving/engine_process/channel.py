"""Messages between a worker and the process of its engine, both ours: pickled, over a pair of sockets."""

import copyreg
import pickle
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from nightshift_engine import (
    EngineConfig,
    EngineHistograms,
    EngineStats,
    MadeBy,
    Output,
    Request,
    RequestLimits,
    SamplingParams,
    TokenLogprobs,
)

if TYPE_CHECKING:  # needs torch
    from nightshift_engine.models import DeviceMemory

LENGTH_BYTES: Final = 8
RECEIVED_BYTES: Final = 1 << 20
"""Bytes that are read at a time."""


@dataclass(frozen=True, slots=True)
class Load:
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Loaded:
    """The weights are there."""

    context_length: int


@dataclass(frozen=True, slots=True)
class Open:
    """Takes KV memory, at most so much; None: all that may be taken now."""

    memory: "DeviceMemory | None"


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine takes requests."""

    made_by: MadeBy
    limits: RequestLimits
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine ends. `reason` is fit for an operator."""

    reason: str


@dataclass(frozen=True, slots=True)
class Times:
    """Times of a request that has ended (`RequestTimes`)."""

    added_s: float
    launched_s: float | None
    first_token_s: float | None
    last_token_s: float


@dataclass(frozen=True, slots=True)
class Add:
    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    id: str


Tokens: TypeAlias = tuple[list[int], list[TokenLogprobs]]


@dataclass(frozen=True, slots=True)
class Figures:
    """The engine as it stands."""

    stats: EngineStats
    histograms: EngineHistograms
    told: dict[str, Tokens]
    """New tokens of requests whose outputs come at their ends."""


@dataclass(frozen=True, slots=True)
class Report:
    """News of one or several steps."""

    outputs: list[Output]
    num_taken: int
    """The number of the last message that the engine has taken in."""
    figures: Figures | None = None
    """Absent where they were sent lately."""


def _made_again(kind: type, values: Sequence[Any]) -> Any:
    """An object with these values of its fields, which were checked when it was made first."""
    made: Any = object.__new__(kind)
    for name, value in zip(kind.__dataclass_fields__, values, strict=True):  # type: ignore[attr-defined]
        object.__setattr__(made, name, value)
    return made


def _send_by_values(kind: type) -> None:
    """Pickles a data class of which each row has one: the way of the standard library takes four times as
    long.
    """
    values = attrgetter(*(field.name for field in fields(kind)))
    copyreg.pickle(kind, lambda one: (_made_again, (kind, values(one))))


for kind in (Request, SamplingParams, Output, TokenLogprobs, Times):
    _send_by_values(kind)


class Closed(Exception):
    """The other process has closed its end, or ended."""


class Channel:
    """One end. One thread sends, and one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._received = bytearray()

    def send(self, *messages: object) -> None:
        """Sends them together: objects that several have go once. Waits while the other process has not taken
        what was sent before. Raises Closed.
        """
        data = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
        try:
            self._end.sendall(len(data).to_bytes(LENGTH_BYTES, "little") + data)
        except OSError as error:
            raise Closed from error

    def receive(self, *, waits: bool = True) -> list[Any]:
        """Messages that have come; with `waits` at least one. Raises Closed after the last."""
        while not (messages := self._take()):
            try:
                data = self._end.recv(RECEIVED_BYTES, 0 if waits else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
            except OSError as error:
                raise Closed from error
            if not data:
                raise Closed
            self._received += data
        return messages

    def close(self) -> None:
        """Lets the other process find it closed. A message that is being sent is cut off."""
        with suppress(OSError):  # the other process has ended
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _take(self) -> list[Any]:
        """The messages that are whole."""
        messages, start = list[Any](), 0
        while (body := start + LENGTH_BYTES) <= len(self._received):
            end = body + int.from_bytes(self._received[start:body], "little")
            if end > len(self._received):
                break
            messages += pickle.loads(self._received[body:end])
            start = end
        del self._received[:start]
        return messages
