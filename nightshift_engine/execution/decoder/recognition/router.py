"""The rule that a mixture's router follows: found by trying it on random tokens, with random weights.

Its own weights would not do: a correction is often all zeros, and then any use of it looks alike.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, get_args

import torch
from torch import Tensor

from ...experts.kernels import ExpertKernels, GroupScoring, RoutingRule, Scoring
from .facts import MixtureFacts, NotPlain, RouterFacts
from .trace import ModuleCall
from .values import NamedFactors, factor_of


@dataclass(frozen=True, slots=True)
class _Setting:
    """Settings of one trial."""

    tokens: int
    offsets: tuple[float, float]
    """Numbers that all logits of a token have in common, from the first token to the last."""
    spread: float
    """Spread of biases and corrections."""


SETTINGS = (_Setting(96, (-20.0, 3.0), 0.3), *3 * (_Setting(32, (0.0, 0.0), 0.1),))
"""First, scores of a sigmoid go from near 0, where a constant in a denominator shows, to near 1, and neither
logits nor corrections alone decide. Then scores differ most and corrections least, so that logits decide
which groups are best: rules may agree in all but that."""


class _Listener(torch.nn.Module):
    """Stands in for experts, and keeps what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen = self.weights = torch.empty(0)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        self.chosen, self.weights = top_k_index.long().contiguous(), top_k_weights.float().contiguous()
        return hidden_states


@dataclass(frozen=True, slots=True)
class _Trial:
    """Output of a router with random tensors for random tokens."""

    logits: Tensor  # [tokens, experts], float32, without bias
    vectors: dict[str, Tensor]  # by name, each [experts], float32
    chosen: Tensor  # [tokens, choices]
    weights: Tensor  # [tokens, choices]


def recognise_router(block: ModuleCall, experts: Any, others: set[str], factors: NamedFactors) -> RouterFacts:
    """The router of the mixture called in `block`, whose experts are `experts`. Raises `NotPlain`.

    `others` are paths of linear layers that are none of it.
    """
    names = {f"{path.removeprefix(block.path + '.')}.weight" for path in others}
    weight = _weight_name(block.module, experts, names)
    trials = _try(block.module, experts, weight)
    first, kernels = trials[0], ExpertKernels()
    num_experts = first.logits.shape[1]
    if num_experts > kernels.experts_max:
        raise NotPlain(f"it has {num_experts} experts")
    for bias, correction in _uses(list(first.vectors)):
        for rule in _rules(block.module, num_experts, first.chosen.shape[1]):
            factor = _explains(kernels, trials, rule, bias, correction)
            if factor is not None:
                rule = replace(rule, factor=factors.exactly(factor))
                return RouterFacts(weight, bias, correction, rule)
    raise NotPlain("its router follows none of the known rules")


@torch.inference_mode()
def rounds_logits(mixture: Any, facts: MixtureFacts) -> bool:
    """Whether a mixture in bfloat16 rounds its router's logits to that before anything else.

    `mixture` is the module; it computes the logits in float32 otherwise.
    """
    router, kernels = facts.router, ExpertKernels()
    experts = mixture.get_submodule(facts.experts.removeprefix(facts.path + "."))
    trial, *_ = _try(mixture, experts, router.weight)
    errors = []
    for dtype in (torch.float32, torch.bfloat16):
        logits = trial.logits + trial.vectors[router.bias] if router.bias else trial.logits
        weights = torch.empty_like(trial.weights)
        correction = trial.vectors[router.correction] if router.correction else None
        kernels.choose(router.rule, logits.to(dtype), correction, trial.chosen, weights, keeps_choice=True)
        errors.append(float((weights - trial.weights).norm()))
    return errors[1] < errors[0]


def _weight_name(block: Any, experts: Any, others: set[str]) -> str:
    shape = len(experts.gate_up_proj)
    of_experts = {id(parameter) for parameter in experts.parameters()}
    names: list[str] = [
        name
        for name, parameter in block.named_parameters()
        if id(parameter) not in of_experts
        and name not in others
        and parameter.dim() == 2
        and len(parameter) == shape
        and parameter.shape[1] > 1
    ]
    if len(names) != 1:
        raise NotPlain(f"its router has {len(names)} weights")
    return names[0]


def _try(block: Any, experts: Any, weight_name: str) -> list[_Trial]:
    listener = _Listener()
    probe = copy.deepcopy(block, {id(experts): listener})
    generator = torch.Generator().manual_seed(0)
    return [_trial(probe, listener, weight_name, setting, generator) for setting in SETTINGS]


def _trial(
    probe: Any,
    listener: _Listener,
    weight_name: str,
    setting: _Setting,
    generator: torch.Generator,
) -> _Trial:
    tensors = dict(probe.named_parameters()) | dict(probe.named_buffers())
    weight = tensors[weight_name]
    num_experts, hidden = weight.shape
    x = torch.randn(setting.tokens, hidden, generator=generator)
    x[:, 0] = torch.linspace(*setting.offsets, setting.tokens)
    drawn = torch.randn(num_experts, hidden, generator=generator) / hidden**0.5
    drawn[:, 0] = 1
    weight.data.copy_(drawn)
    vectors = {}
    for name, tensor in tensors.items():
        if tensor.numel() == num_experts and tensor.is_floating_point() and name != weight_name:
            tensor.data.copy_(torch.randn(tensor.shape, generator=generator) * setting.spread)
            vectors[name] = tensor.detach().float().flatten().clone()
    x = x.to(weight.dtype)
    try:
        probe(x[None])
    except Exception as error:  # the module's own code, on other numbers than it expects
        raise NotPlain(f"it does not run alone: {type(error).__name__}: {error}") from error
    logits = x.float() @ weight.detach().float().T
    return _Trial(logits, vectors, listener.chosen, listener.weights)


def _uses(names: list[str]) -> Iterator[tuple[str | None, str | None]]:
    """Possible pairs of the linear layer's bias and the correction; each uses all the vectors."""
    if len(names) > 2:
        return
    padded: list[str | None] = [*names, None, None]
    yield from dict.fromkeys((bias, correction) for bias, correction in permutations(padded[:2], 2))


def _rules(block: Any, num_experts: int, choices: int) -> Iterator[RoutingRule]:
    """All that are possible with the numbers that the router's modules hold."""
    numbers = {value for module in block.modules() for value in vars(module).values() if type(value) is int}
    sizes = sorted(number for number in numbers if 1 <= number <= num_experts)
    groupings: list[tuple[int, int, GroupScoring]] = [(1, 1, "largest")]
    groupings += [
        (groups, kept, scoring)
        for groups in sizes
        for kept in sizes
        for scoring in get_args(GroupScoring)
        if kept < groups
    ]
    for groups, kept, group_scoring in groupings:
        for scoring in get_args(Scoring):
            for renormalises in (True, False):
                rule = RoutingRule(
                    num_experts, choices, scoring, renormalises, 1.0, groups, kept, group_scoring
                )
                if rule.is_valid:
                    yield rule


def _explains(
    kernels: ExpertKernels, trials: list[_Trial], rule: RoutingRule, bias: str | None, correction: str | None
) -> float | None:
    """The factor with which the rule gives what the router gave in all trials; None if it does not."""
    choices = []
    for trial in trials:
        logits = trial.logits + trial.vectors[bias] if bias else trial.logits
        chosen, weights = torch.empty_like(trial.chosen), torch.empty_like(trial.weights)
        kernels.choose(rule, logits, trial.vectors[correction] if correction else None, chosen, weights)
        got, wanted = _by_expert(chosen, weights, rule), _by_expert(trial.chosen, trial.weights, rule)
        if not torch.equal(got != 0, wanted != 0):
            return None
        choices.append((wanted, got))
    wanted, got = (torch.cat(tensors) for tensors in zip(*choices, strict=True))
    return _common_factor(wanted, got)


def _by_expert(chosen: Tensor, weights: Tensor, rule: RoutingRule) -> Tensor:
    return torch.zeros(len(chosen), rule.experts).scatter(1, chosen, weights)


def _common_factor(wanted: Tensor, got: Tensor) -> float | None:
    """Row by row, since a few rows have nearly all of the weight."""
    size = got.norm(dim=1, keepdim=True)
    return factor_of(wanted / size, got / size)
