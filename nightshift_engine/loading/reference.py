"""Records what each token of the self-test's prompts had in the reference pass, and holds other passes to it.

Two right ways through a model differ in the last bits, and a deep model in half precision makes much of them:
a token's best experts may score nearly alike, and the last bit chooses another. So a pass that is compared
starts every layer from the reference's hidden states and sends every token to the reference's experts. What
each layer makes of them is compared; a wrong mask or position is far outside rounding in the first layer that
has one.

Modules choose experts by `torch.topk` (phimoe takes maxima, and masks those below a threshold), which is seen
as it is called. A pass whose kernels choose hands over the last choice of each layer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..execution.forward_pass import OnExperts, OnLayer

Token = tuple[int, int]
"""Prompt, and position in it."""
Place = tuple[int, int]
"""Place of a choice in a pass: the layer, and which choice in it."""
WatchLayers = Callable[[OnLayer, OnExperts], AbstractContextManager[None]]
"""The watching of the layers of a pass, as `ForwardPass.watch_layers` does it."""

_BEFORE_LAYERS = -1
_RESULTS = {
    torch.topk: torch.return_types.topk,
    torch.Tensor.topk: torch.return_types.topk,
    torch.max: torch.return_types.max,
    torch.Tensor.max: torch.return_types.max,
}
_MASKING = (torch.masked_fill, torch.Tensor.masked_fill)


class ReferencePass:
    """Hidden states before each layer, and choices of experts, of every token of the prompts."""

    def __init__(self) -> None:
        self._hidden: dict[int, dict[Token, Tensor]] = {}  # by layer, each [hidden size]
        self._chosen: dict[Place, dict[Token, Tensor]] = {}  # each [experts chosen]
        self._forget_differences()

    @property
    def chooses_experts(self) -> bool:
        """Whether tokens are sent to some of the parameters only."""
        return bool(self._chosen)

    @contextmanager
    def recorded(self, tokens: Sequence[Token], watch_layers: WatchLayers) -> Iterator[None]:
        """Notes what a pass whose rows are `tokens` has."""

        def note_layer(index: int, hidden: Tensor) -> Tensor:
            if len(hidden) == len(tokens):
                self._hidden.setdefault(index, {}).update(zip(tokens, hidden.clone(), strict=True))
            return hidden

        def note_choice(place: Place, chosen: Tensor) -> Tensor:
            rows = chosen.reshape(len(tokens), -1)
            self._chosen.setdefault(place, {}).update(zip(tokens, rows, strict=True))
            return chosen

        def note_experts(layer: int, chosen: Tensor) -> Tensor:
            return note_choice((layer, 0), chosen)

        with _watched(len(tokens), watch_layers, note_layer, note_choice, note_experts):
            yield

    @contextmanager
    def replayed(self, tokens: Sequence[Token], watch_layers: WatchLayers) -> Iterator[None]:
        """Gives a pass whose rows are `tokens` what was recorded of them, and notes how its own differed."""

        def replay_layer(index: int, hidden: Tensor) -> Tensor:
            if index not in self._hidden or len(hidden) != len(tokens):
                return hidden
            wanted = _rows(self._hidden[index], tokens)
            before = _rows(self._hidden[index - 1], tokens) if index else torch.zeros_like(wanted)
            self._differences.setdefault(index, _Difference()).add(wanted, hidden, before)
            return wanted.to(hidden.dtype)

        def replay_choice(place: Place, chosen: Tensor) -> Tensor:
            recorded = _rows(self._chosen[place], tokens) if place in self._chosen else chosen
            if recorded.dtype != chosen.dtype or recorded.numel() != chosen.numel():
                return chosen  # another choice than the one recorded there
            recorded = recorded.view_as(chosen)
            if chosen.dtype != torch.bool:
                is_same = (recorded.unsqueeze(-1) == chosen.unsqueeze(-2)).any(-1)
                self._num_chosen += is_same.numel()
                self._num_others += int((~is_same).sum())
            return recorded

        def replay_experts(layer: int, chosen: Tensor) -> Tensor:
            return replay_choice(self._last_choice(layer), chosen)

        with _watched(len(tokens), watch_layers, replay_layer, replay_choice, replay_experts):
            yield

    def _last_choice(self, layer: int) -> Place:
        """Place of the choice of experts: those of groups come before it."""
        indices = [
            place
            for place, rows in self._chosen.items()
            if place[0] == layer and next(iter(rows.values())).dtype == torch.int64
        ]
        return max(indices, default=(layer, 0))

    def take_differences(self) -> tuple[float, float]:
        """The differences of the layers and choices of the passes replayed since the last call.

        The largest difference of a layer, 0 if none was watched: root mean square of what the hidden states
        differ in beyond their rounding, relative to what the layer added to them. And the share of experts
        that would have been chosen otherwise.
        """
        errors = [difference.relative for difference in self._differences.values()]
        share = self._num_others / max(1, self._num_chosen)
        self._forget_differences()
        return largest(errors), share

    def _forget_differences(self) -> None:
        self._differences: dict[int, _Difference] = {}
        self._num_chosen = self._num_others = 0


def largest(errors: Sequence[float]) -> float:
    """The largest, which is NaN if there is one; 0 of none."""
    return max(errors, key=lambda error: (error != error, error), default=0.0)


class _Difference:
    """Sums over tokens of squares, at one layer's entrance."""

    def __init__(self) -> None:
        self._error = self._step = 0.0

    def add(self, wanted: Tensor, got: Tensor, before: Tensor) -> None:
        """`[tokens, hidden]` each; `before` is what entered the layer before."""
        wanted, got, rounding = wanted.float(), got.float(), torch.finfo(wanted.dtype).eps
        beyond = ((wanted - got).abs() - rounding * wanted.abs()).clamp(min=0)
        self._error += beyond.square().sum().item()
        self._step += (wanted - before.float()).square().sum().item()

    @property
    def relative(self) -> float:
        if self._error == 0:
            return 0.0
        return (self._error / self._step) ** 0.5 if self._step else float("inf")


def _rows(recorded: dict[Token, Tensor], tokens: Sequence[Token]) -> Tensor:
    return torch.stack([recorded[token] for token in tokens])


@contextmanager
def _watched(
    num_tokens: int,
    watch_layers: WatchLayers,
    on_layer: OnLayer,
    on_choice: Callable[[Place, Tensor], Tensor],
    on_experts: OnExperts,
) -> Iterator[None]:
    choosing = _Choosing(num_tokens, on_choice)

    def enter(index: int, hidden: Tensor) -> Tensor:
        choosing.enter(index)
        return on_layer(index, hidden)

    with watch_layers(enter, on_experts), choosing:
        yield


class _Choosing(TorchFunctionMode):
    """Hands every choice among experts to `on_choice(place, chosen) -> chosen`.

    What is chosen are indices `[tokens, ..., experts chosen]`, or a mask `[tokens, experts]`.
    """

    def __init__(self, num_tokens: int, on_choice: Callable[[Place, Tensor], Tensor]) -> None:
        super().__init__()
        self._num_tokens = num_tokens
        self._on_choice = on_choice
        self._layer, self._num_choices = _BEFORE_LAYERS, 0

    def enter(self, layer: int) -> None:
        """Notes that what follows happens in that layer."""
        self._layer, self._num_choices = layer, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _MASKING and len(args) == 3 and self._is_per_token(args[0]) and args[1].dim() == 2:
            scores, mask, value = args
            return func(scores, self._choose(mask.expand_as(scores)), value)
        result = func(*args, **kwargs)
        if func in _RESULTS and isinstance(result, tuple) and self._is_per_token(args[0]):
            scores, chosen = args[0], result[1]
            if chosen.shape[:-1] == scores.shape[:-1]:
                forced = self._choose(chosen)
                return _RESULTS[func]((scores.gather(-1, forced), forced))
        return result

    def _choose(self, chosen: Tensor) -> Tensor:
        place = (self._layer, self._num_choices)
        self._num_choices += 1
        return self._on_choice(place, chosen)

    def _is_per_token(self, scores: Tensor) -> bool:
        """Attention's own maxima and masks have a dimension of heads besides."""
        is_beside = scores.dim() == 3 and scores.shape[:2] == (1, self._num_tokens)
        return 2 <= scores.dim() <= 3 and (len(scores) == self._num_tokens or is_beside)
