"""A request in the engine: its sequence, the text of that, and the outputs that tell of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .core.histograms import ClassHistograms
from .core.request import FinishReason, Output, TokenLogprobs
from .core.sequence import Sequence
from .text.detokenizer import TextStream

if TYPE_CHECKING:  # needs llguidance
    from .guidance.compiler import Compiling


@dataclass(slots=True)
class LiveRequest:
    """A request between its admission by `add` and its last output."""

    sequence: Sequence
    text: TextStream
    logprobs: list[TokenLogprobs]
    """Of all output tokens, if the request asks for them."""
    end_token_id: int | None = None
    compiling: Compiling | None = None
    """Its grammar, if it has one."""
    pieces: list[str] = field(default_factory=list)
    """Its text so far, if its only output comes at its end."""
    added_s: float = field(default_factory=time.perf_counter)
    launched_s: float | None = None
    """Of the first step that computes some of it."""
    first_token_s: float | None = None
    last_token_s: float = 0.0

    @property
    def is_final_only(self) -> bool:
        return self.sequence.request.output_kind == "final_only"

    @property
    def stays_unread(self) -> bool:
        """Whether its text is made at its end: nothing in the text may end it before."""
        return self.is_final_only and not self.sequence.sampling.stop

    def count_launch(self, launched_s: float, counts: ClassHistograms) -> None:
        """A step computes some of it."""
        if self.launched_s is None:
            self.launched_s = launched_s
            counts.queue_s.observe(launched_s - self.added_s)
            counts.prompt_tokens += self.num_prompt_tokens

    def count_token(self, now_s: float, counts: ClassHistograms) -> None:
        """It has a new token."""
        counts.generation_tokens += 1
        if self.first_token_s is None:
            self.first_token_s = now_s
            counts.prefill_s.observe(now_s - (self.launched_s or now_s))
        else:
            counts.inter_token_s.observe(now_s - self.last_token_s)
        self.last_token_s = now_s

    def count_end(self, counts: ClassHistograms) -> None:
        if self.first_token_s is not None:
            counts.decode_s.observe(self.last_token_s - self.first_token_s)

    @property
    def num_prompt_tokens(self) -> int:
        return self.sequence.request.num_source_tokens or self.sequence.num_prompt_tokens

    def read(self, token: int, *, look_for_stop: bool) -> str:
        """The text that a token makes certain."""
        return "" if self.stays_unread else self.text.push(token, look_for_stop=look_for_stop)

    def read_rest(self) -> str:
        """The text of unread tokens, and what was held back, once no more will come."""
        if not self.stays_unread:
            return self.text.finish()
        sequence = self.sequence
        end = len(sequence.token_ids) - (self.end_token_id is not None)
        return (
            "".join(map(self.text.push, sequence.token_ids[sequence.num_prompt_tokens : end]))
            + self.text.finish()
        )

    def new_output(self, text: str, token_ids: list[int]) -> Output | None:
        """Of a step that did not end it. None: its only output comes at its end."""
        if not self.is_final_only:
            return self._output(text, token_ids)
        if text:
            self.pieces.append(text)
        return None

    def last_output(self, reason: FinishReason, text: str, token_ids: list[int]) -> Output:
        """`text` and `token_ids` are what its last step added."""
        if self.is_final_only:
            text, token_ids = "".join(self.pieces) + text, self.sequence.output_token_ids
        output = self._output(text, token_ids)
        output.finish_reason, output.end_token_id = reason, self.end_token_id
        output.times = self
        return output

    def _output(self, text: str, token_ids: list[int]) -> Output:
        sequence = self.sequence
        num_output_tokens = sequence.num_output_tokens
        asked = sequence.sampling.logprobs is not None
        return Output(
            id=sequence.id,
            text=text,
            token_ids=token_ids,
            finish_reason=None,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            logprobs=self.logprobs[num_output_tokens - len(token_ids) : num_output_tokens] if asked else None,
        )
