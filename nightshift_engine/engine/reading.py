"""Reads sampled tokens: the text and the thoughts they are, and which of them is the last."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq

from ..core.live_request import LiveRequest
from ..core.request import FinishReason, Request
from ..text.thoughts import Thought
from ..text.tokenizer import Tokenizer


class Reader:
    """Reads the tokens of requests with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Collection[int], vocab_size: int) -> None:
        self._tokenizer, self._eos_token_ids = tokenizer, eos_token_ids
        format = tokenizer.thought_format  # unless the model does not compute its tokens
        self._thought_format = format if format and max(format.closing_ids, default=0) < vocab_size else None

    def new_thought(self, request: Request) -> Thought | None:
        """The state of a request whose output may begin with a thought; None: it is all answer."""
        format = self._thought_format if request.parts_thought else None
        if format is None:
            return None
        spelled, budget = self._tokenizer.token_bytes, request.sampling.thinking_token_budget
        is_guided = request.grammar is not None
        thought = Thought(format, spelled, request.prompt_token_ids, budget, is_guided=is_guided)
        return None if thought.is_over else thought

    def read(self, live: LiveRequest, token: int) -> tuple[str, FinishReason | None]:
        """Text that the sequence's newest token makes certain, and why it is the last one, if it is.

        Raises `GrammarFailed`.
        """
        sequence, sampling, guide = live.sequence, live.sequence.sampling, live.sequence.guide
        is_eos = token in self._eos_token_ids and (not sampling.ignore_eos or guide is not None)
        is_guided = guide is not None and sequence.is_guided_next
        answer = (token,) if is_eos or sequence.thought is None else self._part(live, sequence.thought, token)
        if guide is not None and is_guided and answer:
            guide.accept(token)
        if is_eos or (answer and token in sampling.stop_token_ids):
            live.end_token_id = token
            return live.read_rest(), "stop"
        text = ""
        if not live.stays_unread:
            may_stop = sequence.num_output_tokens > sampling.min_tokens
            for known in answer:
                text += live.text.push(known, look_for_stop=may_stop)
            if live.text.is_stopped:
                return text, "stop"
        is_whole = guide is not None and guide.is_finished
        if sequence.is_full or is_whole:
            text += live.read_rest()
            return text, "stop" if live.text.is_stopped or is_whole else "length"
        return text, None

    def read_again(self, live: LiveRequest) -> tuple[str, FinishReason | None]:
        """Reads a resumed sequence's tokens one by one, exactly as when they were new. Raises as `read`."""
        sequence, earlier, text = live.sequence, live.sequence.output_token_ids, ""
        del sequence.token_ids[sequence.num_prompt_tokens :]
        for token in earlier:
            sequence.token_ids.append(token)
            delta, reason = self.read(live, token)
            text += delta
            if reason is not None:
                return text, reason
        return text, None

    def _part(self, live: LiveRequest, thought: Thought, token: int) -> Seq[int]:
        """Reads the newest token where it belongs to a thought. Returns the tokens that are of the answer."""
        of_thought, answer = thought.push(token)
        token_ids, tokenizer = live.sequence.token_ids, self._tokenizer
        if of_thought and live.thought_text is None:
            live.begin_thought(tokenizer.thought_stream(token_ids[: -len(of_thought)], thought.format))
        if live.thought_text is not None:
            live.thought_pieces += map(live.thought_text.push, of_thought)
            if not thought.is_open:
                live.end_thought()
                live.text = tokenizer.answer_stream(token_ids, live.sequence.sampling.stop)
        return answer
