"""Runs a model once and notes what each of its modules was given and gave, with attention stood in for."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...attention.interface import LayerCall, paged_step
from .facts import NotPlain

NUM_TOKENS = 11
"""No model has so many heads, so that a dimension is known by its size."""
HIDDEN_MEAN = 0.5
"""Mean of a layer's input: a norm that takes off the mean must be told from one that does not."""


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module; tensors only."""

    path: str
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    @property
    def is_leaf(self) -> bool:
        return next(self.module.children(), None) is None

    @property
    def x(self) -> Tensor:
        """The first tensor it was given."""
        return next(
            argument for argument in (*self.args, *self.kwargs.values()) if isinstance(argument, Tensor)
        )

    @property
    def y(self) -> Tensor:
        """The first tensor it gave."""
        return (
            self.output
            if isinstance(self.output, Tensor)
            else next(part for part in self.output if isinstance(part, Tensor))
        )

    @property
    def is_over_tensors(self) -> bool:
        given = any(isinstance(argument, Tensor) for argument in (*self.args, *self.kwargs.values()))
        got = self.output if isinstance(self.output, (tuple, list)) else (self.output,)
        return given and any(isinstance(part, Tensor) for part in got)


@dataclass(slots=True)
class Attended:
    """The tensors that came to attention in one layer, `[heads, tokens, head_dim]`, and its answer."""

    query: Tensor
    key: Tensor
    value: Tensor
    answer: Tensor  # [tokens, heads, head_dim]
    num_calls_before: int


@dataclass(slots=True)
class _StandIn:
    """Attention that gives each token its own value."""

    calls: list[ModuleCall]
    attended: list[Attended] = field(default_factory=list)

    def attend(self, layer_index: int, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        answer = value.repeat_interleave(query.shape[0] // key.shape[0], dim=0).transpose(0, 1).contiguous()
        self.attended.append(Attended(query, key, value, answer, len(self.calls)))
        return answer


@dataclass(frozen=True, slots=True)
class LayerTrace:
    """One layer on hidden states `x`: all calls below it in the order in which they ended."""

    x: Tensor
    y: Tensor
    calls: list[ModuleCall]
    attended: Attended


@dataclass(frozen=True, slots=True)
class ModelTrace:
    """One pass over a few tokens."""

    token_ids: Tensor
    positions: Tensor
    layers: list[Any]
    layer_calls: list[ModuleCall]
    outside: list[ModuleCall]
    """Calls of modules that are in no layer."""
    logits: Tensor  # [tokens, vocabulary]

    def of_layer(self, index: int) -> LayerTrace:
        """The layer alone, in float32, on random hidden states. Raises `NotPlain` if it is not called so."""
        layer, call = self.layers[index], self.layer_calls[index]
        if any(
            parameter.dtype != torch.float32 or parameter.device.type != "cpu"
            for parameter in layer.parameters()
        ):
            layer = copy.deepcopy(layer).cpu().float()
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(call.x.shape, generator=generator) + HIDDEN_MEAN
        args, kwargs = _as_float32(call.args), _as_float32(call.kwargs)
        if args and isinstance(args[0], Tensor):
            args = (x.clone(), *args[1:])
        else:
            kwargs = kwargs | {"hidden_states": x.clone()}
        calls: list[ModuleCall] = []
        stand_in = _StandIn(calls)
        with _recorded(layer.named_modules(), calls), paged_step(stand_in):
            y = layer(*args, **kwargs)
        if len(stand_in.attended) != 1:
            raise NotPlain("a layer does not attend once")
        return LayerTrace(x, y if isinstance(y, Tensor) else y[0], calls, stand_in.attended[0])


def trace_model(model: Any, num_layers: int, first_position: int) -> ModelTrace:
    """Runs `model`, which is on paged attention, over `NUM_TOKENS` tokens. Raises `NotPlain`.

    They stand at `first_position` and after it.
    """
    layers = _find_layers(model, num_layers)
    inside = {id(module) for layer in layers for module in layer.modules()}
    vocab_size = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(0, vocab_size, (NUM_TOKENS,), generator=generator)
    positions = torch.arange(first_position, first_position + NUM_TOKENS)
    calls: list[ModuleCall] = []
    outer = [(path, module) for path, module in model.named_modules() if id(module) not in inside]
    layered = [(f"layer {index}", layer) for index, layer in enumerate(layers)]
    with _recorded([*outer, *layered], calls), paged_step(_StandIn(calls)):
        ids, places = (tensor[None].to(model.device) for tensor in (token_ids, positions))
        output = model(input_ids=ids, position_ids=places, use_cache=False)
    of_layers = {id(call.module): call for call in calls}
    if any(id(layer) not in of_layers for layer in layers):
        raise NotPlain("some of its layers are not called")
    layer_calls = [of_layers[id(layer)] for layer in layers]
    outside = [call for call in calls if id(call.module) not in inside]
    return ModelTrace(token_ids, positions, layers, layer_calls, outside, output.logits[0].cpu())


def _find_layers(model: Any, num_layers: int) -> list[Any]:
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == num_layers:
            return list(module)
    raise NotPlain(f"it has no list of {num_layers} layers")


@contextmanager
def _recorded(modules: Iterable[tuple[str, Any]], calls: list[ModuleCall]) -> Iterator[None]:
    """Appends each call of `modules` when it ends. Tensors are noted as they were then."""

    def note(path: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            call = ModuleCall(path, module, _kept(args), _kept(kwargs), _kept(output))
            if call.is_over_tensors:
                calls.append(call)

        return hook

    with ExitStack() as stack:
        for path, module in modules:
            handle = module.register_forward_hook(note(path), with_kwargs=True)
            stack.callback(handle.remove)
        yield


def _kept(value: Any) -> Any:
    """Copies of tensors, which a model may go on to change in place; all on the CPU."""
    if isinstance(value, Tensor):
        return value.to("cpu", copy=True)
    if isinstance(value, (tuple, list)):
        return tuple(_kept(item) for item in value)
    if type(value) is dict:
        return {name: _kept(item) for name, item in value.items()}
    return value


def _as_float32(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, (tuple, list)):
        return tuple(_as_float32(item) for item in value)
    if isinstance(value, dict):
        return {name: _as_float32(item) for name, item in value.items()}
    return value
