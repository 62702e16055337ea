"""The calls of tools in an answer's text, read as it comes.

    Let me see.   <tool_call>\\n{"name": "weather", "arguments":   {"city": "Oslo"}   }\\n</tool_call>
    content       head                                            arguments         between

A call is there from the first character of its arguments on: one that is cut off then has a part of them, as
at OpenAI. What has no such head stays content. Arguments are shown as the model wrote them.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from nightshift.endpoints.structured.tools import BEGIN, Tools
from nightshift.jobs import JsonObject

SPACES_DROPPED_MAX: Final = 1024  # before the first call, where there is no other content
HEAD_CHARS_MAX: Final = 1024  # a longer one begins no call
_HEAD: Final = re.compile(
    r'\s*+\{\s*+"name"\s*+:\s*+"([a-zA-Z0-9_-]{1,64})"\s*+,\s*+"arguments"\s*+:\s*+(?=\{)'
)
_IN_TEXT: Final = re.compile(r'["\\]')
_OUTSIDE: Final = re.compile(r'[{}"]')


@dataclass(frozen=True, slots=True)
class CallPart:
    """New text of a call's arguments, which all parts make up."""

    index: int  # of the call
    name: str
    after: int  # characters of what comes before the call: the content, or the earlier call's arguments
    offset: int  # in the arguments
    text: str


@dataclass(slots=True)
class Call:
    name: str
    is_whole: bool = False
    num_chars: int = 0  # of its arguments
    pieces: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        """JSON; a beginning of it where the answer was cut off."""
        return "".join(self.pieces)

    def add(self, text: str) -> None:
        self.pieces.append(text)
        self.num_chars += len(text)


@dataclass(frozen=True, slots=True)
class Said:
    """An answer's text, taken apart."""

    content: str
    calls: Sequence[Call] = ()


@dataclass(frozen=True, slots=True)
class New:
    """The parts of an answer that have become certain with some more of its text."""

    content: str
    parts: Sequence[CallPart]


class _State(Enum):
    CONTENT = auto()
    HEAD = auto()
    ARGUMENTS = auto()
    BETWEEN = auto()  # calls
    ENDED = auto()  # the rest is no call


@dataclass
class AnswerReader:
    """Gives the same content and calls however the text is divided."""

    tools: Tools
    calls: list[Call] = field(default_factory=list)
    content: list[str] = field(default_factory=list)  # certain so far, in pieces
    _content_chars: int = 0
    _state: _State = _State.CONTENT
    _held: str = ""  # not used yet
    _scan: "_ObjectScan" = field(default_factory=lambda: _ObjectScan())

    def push(self, text: str) -> New:
        pieces_before = len(self.content)
        parts: list[CallPart] = []
        self._held += text
        while self._step(parts):
            pass
        return New("".join(self.content[pieces_before:]), parts)

    def _step(self, parts: list[CallPart]) -> bool:
        """Use some of what is held. False: nothing more can be done with it."""
        if self._state is _State.CONTENT:
            return self._read_content()
        if self._state is _State.HEAD:
            return self._read_head()
        if self._state is _State.ARGUMENTS:
            return self._read_arguments(parts)
        if self._state is _State.BETWEEN:
            return self._find_call()
        self._held = ""
        return False

    def _read_content(self) -> bool:
        before, begin, rest = self._held.partition(BEGIN)
        sure = before if begin else before[: len(before) - _beginning_at_end(before)]
        if not self.content and _is_blank(sure):
            if not begin:
                return False
            sure = ""
        if sure:
            self.content.append(sure)
            self._content_chars += len(sure)
        self._held = rest if begin else before[len(sure) :]
        self._state = _State.HEAD if begin else _State.CONTENT
        return bool(begin)

    def _read_head(self) -> bool:
        head = _HEAD.match(self._held)
        if head is None and len(self._held) <= HEAD_CHARS_MAX:
            return False
        if head is None or head[1] not in self.tools.callable:
            self._state = _State.ENDED
            return True
        self.calls.append(Call(head[1]))
        self._held = self._held[head.end() :]
        self._scan = _ObjectScan()
        self._state = _State.ARGUMENTS
        return True

    def _read_arguments(self, parts: list[CallPart]) -> bool:
        end = self._scan.end_in(self._held)
        text, self._held = (self._held, "") if end is None else (self._held[:end], self._held[end:])
        call, index = self.calls[-1], len(self.calls) - 1
        if text:
            after = self.calls[index - 1].num_chars if index else self._content_chars
            parts.append(CallPart(index, call.name, after, call.num_chars, text))
            call.add(text)
        if end is None:
            return False
        call.is_whole = True
        self._state = _State.BETWEEN if self.tools.is_parallel else _State.ENDED
        return True

    def _find_call(self) -> bool:
        _, begin, rest = self._held.partition(BEGIN)
        self._held = rest if begin else self._held[len(self._held) - _beginning_at_end(self._held) :]
        self._state = _State.HEAD if begin else _State.BETWEEN
        return bool(begin)


@dataclass
class _ObjectScan:
    """Looks for the end of a JSON object that comes in pieces."""

    depth: int = 0
    is_in_text: bool = False
    is_escaped: bool = False  # the next character

    def end_in(self, piece: str) -> int | None:
        """The index after the brace that closes the object; None: it is not in this piece."""
        at = 0
        while at < len(piece):
            if self.is_escaped:
                self.is_escaped = False
                at += 1
                continue
            mark = (_IN_TEXT if self.is_in_text else _OUTSIDE).search(piece, at)
            if mark is None:
                return None
            at = mark.end()
            self._take(mark[0])
            if self.depth == 0 and not self.is_in_text:
                return at
        return None

    def _take(self, letter: str) -> None:
        if letter == "\\":
            self.is_escaped = True
        elif letter == '"':
            self.is_in_text = not self.is_in_text
        else:
            self.depth += 1 if letter == "{" else -1


def read_calls(text: str, tools: Tools) -> Said:
    """Content and calls of an answer's whole text."""
    reader = AnswerReader(tools)
    reader.push(text)
    return Said("".join(reader.content), reader.calls) if reader.calls else Said(text)


def call_id(answer_id: str, choice: int, index: int) -> str:
    """The same at every attempt."""
    digest = hashlib.sha256(f"{answer_id}/{choice}/{index}".encode()).hexdigest()
    return f"call_{digest[:24]}"


def call_json(call: Call, answer_id: str, choice: int, index: int) -> JsonObject:
    """A call as the API shows it."""
    said = {"name": call.name, "arguments": call.arguments}
    return {"id": call_id(answer_id, choice, index), "type": "function", "function": said}


def _is_blank(content: str) -> bool:
    return len(content) <= SPACES_DROPPED_MAX and not content.strip()


def _beginning_at_end(text: str) -> int:
    """The number of last characters that may be the beginning of a call."""
    longest = min(len(BEGIN) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if BEGIN.startswith(text[-n:])), 0)
