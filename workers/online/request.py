"""One online request between its claim and its end."""

from collections.abc import Callable
from dataclasses import dataclass, field

from nightshift.endpoints.structured.calls import CallPart
from nightshift.endpoints.texts.logprobs import num_tokens
from nightshift.jobs import OnlineClaim, StopReason
from workers.online.publisher import CallText, Text, ThoughtText
from workers.serving.inference import Progress
from workers.serving.model_server import ModelServer
from workers.traces import OnlineTrace


@dataclass
class _Published:
    """Amount published of one choice."""

    characters: int = 0
    tokens: int = 0
    thought_chars: int = 0


@dataclass(eq=False)
class OnlineRequest:
    """The holder of a claim's lease. Its flags are the runner's, under its lock."""

    claim: OnlineClaim
    on_lease_lost: Callable[["OnlineRequest"], None]
    on_stop: Callable[["OnlineRequest"], None]
    submitted_s: float  # of the monotonic clock
    tokens: int = 0  # generated; counted on the engine's thread only
    is_inside: bool = False  # counts as in an engine
    is_beginning: bool = False  # a thread tokenizes and submits it
    is_cancelled: bool = False  # closed; the engine may still have it
    has_ended: bool = False  # recorded; it is to leave the engine
    server: ModelServer | None = None  # has it, or is about to
    streams: bool = False  # its client reads what is published
    trace: OnlineTrace | None = None
    _published: dict[int, _Published] = field(default_factory=dict)  # by choice; on the engine's thread only

    @property
    def waits(self) -> bool:
        return not self.is_beginning and self.server is None

    @property
    def inference_id(self) -> str:
        return f"{self.claim.lease.shard_id}@{self.claim.lease.term}"

    def lease_lost(self) -> None:
        self.on_lease_lost(self)

    def stop_requested(self, reason: StopReason) -> None:
        self.on_stop(self)

    def pause_requested(self) -> None:
        """Ignores a pause: only bulk jobs are paused."""

    def next_thought(self, progress: Progress) -> ThoughtText:
        so_far = self._published.setdefault(progress.choice, _Published())
        offset, so_far.thought_chars = so_far.thought_chars, so_far.thought_chars + len(progress.reasoning)
        return ThoughtText(self.claim.lease.shard_id, progress.choice, offset, progress.reasoning)

    def next_call(self, choice: int, part: CallPart) -> CallText:
        so_far = self._published.setdefault(choice, _Published())
        return CallText(self.claim.lease.shard_id, choice, part, so_far.thought_chars)

    def next_text(self, progress: Progress) -> Text:
        so_far = self._published.setdefault(progress.choice, _Published())
        text = Text(
            self.claim.lease.shard_id,
            progress.choice,
            so_far.characters,
            progress.text,
            so_far.tokens,
            progress.logprobs if self.streams else None,  # twenty times the text; the answer has them
            so_far.thought_chars,
        )
        so_far.characters += len(progress.text)
        so_far.tokens += num_tokens(progress.logprobs) if progress.logprobs is not None else 0
        return text
