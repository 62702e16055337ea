"""The thought that an output begins with, and the answer behind it, told apart token by token. Pure.

    <think>    I add the digits.    </think>    The sum is 7.
    marker     thought              marker      answer

In a format with channels a name follows the marker, and the answer is the channel of its own name:

    <|channel|>analysis<|message|> … <|end|>    <|start|>assistant    <|channel|>final<|message|> …
    marker                         marker       between               marker

A sequence's state follows from its tokens alone, so it survives preemption and resumption.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

PROMPT_TOKENS: Final = 32
"""Tokens at a prompt's end that are looked at: a template opens a thought with its last ones."""
NAME_BYTES_MAX: Final = 256
"""A channel with a longer name is none: its text is the answer."""

Parted = tuple[Sequence[int], Sequence[int]]
"""Tokens that belong to the thought and to the answer."""


@dataclass(frozen=True, slots=True)
class Marker:
    text: bytes
    token_id: int | None = None
    """The token that is this marker; other tokens that spell it are text. None: there is no such token."""


@dataclass(frozen=True, slots=True)
class ThoughtFormat:
    """The form in which a model writes its thoughts."""

    begin: Marker
    end: Marker
    closing_ids: tuple[int, ...]
    """Tokens that end a thought and begin the answer."""
    name_end: Marker | None = None
    """The end of a channel's name, which follows `begin`. None: the thought itself follows."""
    answer_name: bytes | None = None
    """The name of the answer's channel. None: the answer has none, and follows `end`."""


class Place(Enum):
    UNDECIDED = auto()  # nothing but white space, or a part of the first marker
    NAME = auto()
    THOUGHT = auto()
    BETWEEN = auto()  # channels
    ANSWER = auto()  # up to the output's end


class Thought:
    """The state of one sequence's output."""

    __slots__ = ("_budget", "_is_guided", "_num_answer", "_num_forced", "_num_pushed", "_num_thought",
                 "_pending", "_spelled", "_tail", "format", "place")  # fmt: skip

    def __init__(
        self,
        format: ThoughtFormat,
        spelled: Callable[[int], bytes],
        prompt: Sequence[int],
        budget: int | None = None,
        *,
        is_guided: bool = False,
    ) -> None:
        """`spelled` gives a token's bytes. `budget`: tokens of the thought, after which its end is forced.
        `is_guided`: the first token begins a thought, or an answer that has to follow a grammar.
        """
        self.format = format
        self.place = Place.UNDECIDED
        self._spelled = spelled
        self._budget = budget
        self._is_guided = is_guided
        self._tail = b""  # of a name, or of text in which a marker may be spelled
        self._pending: list[int] = []  # tokens of an answer, unless a thought begins
        self._num_pushed = self._num_answer = self._num_thought = self._num_forced = 0
        self._read_prompt(b"".join(map(spelled, prompt[-PROMPT_TOKENS:])))

    @property
    def is_open(self) -> bool:
        return self.place is Place.THOUGHT

    @property
    def is_over(self) -> bool:
        """All that comes is the answer."""
        return self.place is Place.ANSWER

    @property
    def has_budget(self) -> bool:
        return self._budget is not None

    @property
    def may_begin(self) -> bool:
        """The next token may be of the answer, or begin a thought."""
        return self.place is Place.UNDECIDED

    @property
    def begin_id(self) -> int | None:
        return self.format.begin.token_id

    @property
    def num_tokens(self) -> int:
        """Output tokens that are no part of the answer: thoughts and markers."""
        return self._num_pushed - self._num_answer - len(self._pending)

    @property
    def forced_id(self) -> int | None:
        """The token that has to come next; None: any may."""
        if self._num_forced or (self.is_open and self._is_spent(0)):
            return self.format.closing_ids[self._num_forced]
        return None

    def may_force(self, num_promised: int) -> bool:
        """Whether a token may be forced after so many that are not known yet."""
        return bool(self._num_forced) or (not self.is_over and self._is_spent(num_promised))

    def push(self, token: int) -> Parted:
        """Goes on past a token. Returns the tokens whose text is known to be the thought's or the answer's by
        now; those of markers are in neither.
        """
        if self.is_over:
            return (), (token,)
        self._num_pushed += 1
        forced = self.forced_id
        thought, answer = self._take(token)
        self._num_answer += len(answer)
        if forced is not None and token == forced:
            self._num_forced = (self._num_forced + 1) % len(self.format.closing_ids)
        else:
            self._num_forced = 0
        return thought, answer

    def finish(self) -> Sequence[int]:
        """Tokens of the answer that are left, once no more will come."""
        pending, self._pending = self._pending, []
        self._num_answer += len(pending)
        return pending

    def _is_spent(self, num_more: int) -> bool:
        return self._budget is not None and self._num_thought + num_more >= self._budget

    def _take(self, token: int) -> Parted:
        if self.place is Place.UNDECIDED:
            return self._decide(token)
        if self.place is Place.NAME:
            return self._read_name(token)
        if self.place is Place.THOUGHT:
            return self._think(token)
        if self._ends_with(self.format.begin, token):
            self._enter(Place.NAME)
        return (), ()

    def _decide(self, token: int) -> Parted:
        begin = self.format.begin
        self._tail += self._spelled(token)
        said = self._tail.lstrip()
        if token == begin.token_id or (begin.token_id is None and said.startswith(begin.text)):
            self._pending = []
            self._enter(Place.THOUGHT if self.format.name_end is None else Place.NAME)
            return (), ()
        may_begin = begin.text.startswith(said) if begin.token_id is None else not said
        if may_begin and not self._is_guided:
            self._pending.append(token)
            return (), ()
        answer, self._pending = [*self._pending, token], []
        self._enter(Place.ANSWER)
        return (), answer

    def _read_name(self, token: int) -> Parted:
        assert self.format.name_end is not None, "its channels have names"
        self._tail += self._spelled(token)
        name, end, _ = self._tail.partition(self.format.name_end.text)
        if end:
            self._enter(Place.ANSWER if name == self.format.answer_name else Place.THOUGHT)
        elif len(self._tail) > NAME_BYTES_MAX:
            self._enter(Place.ANSWER)
        return (), ()

    def _think(self, token: int) -> Parted:
        end = self.format.end
        if self._ends_with(end, token):
            self._enter(Place.ANSWER if self.format.answer_name is None else Place.BETWEEN)
            return (() if end.token_id is not None else (token,)), ()  # the text's reader stops at the marker
        self._num_thought += 1
        return (token,), ()

    def _ends_with(self, marker: Marker, token: int) -> bool:
        if marker.token_id is not None:
            return token == marker.token_id
        self._tail = self._tail[-len(marker.text) :] + self._spelled(token)
        return marker.text in self._tail

    def _enter(self, place: Place) -> None:
        self.place, self._tail = place, b""

    def _read_prompt(self, end_of_prompt: bytes) -> None:
        """Takes up what the template has begun: an open thought, or one that is closed and empty."""
        format, name = self.format, b""
        if format.answer_name is None and end_of_prompt.rstrip().endswith(format.end.text):
            self._enter(Place.ANSWER)
            return
        _, begin, rest = end_of_prompt.rpartition(format.begin.text)
        if format.name_end is not None:
            name, begin, rest = rest.partition(format.name_end.text) if begin else (b"", b"", b"")
        if begin and not rest.strip():
            is_answer = format.answer_name is not None and name == format.answer_name
            self._enter(Place.ANSWER if is_answer else Place.THOUGHT)
