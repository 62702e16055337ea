"""Which experts a token goes to, rows sorted by expert, and their sum: against the same in torch."""

import random

import pytest
import torch
from torch import Tensor

from nightshift_engine.execution.experts.kernels import ExpertKernels, RoutingRule
from nightshift_engine.execution.linears.native import NativeLinear

pytestmark = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels"
)

ROUNDS = 40


def random_rule(rng: random.Random) -> RoutingRule:
    groups = rng.choice([1, 1, 2, 4, 8])
    size = rng.randint(2, 40)
    kept = rng.randint(1, groups)
    return RoutingRule(
        experts=groups * size,
        choices=rng.randint(1, min(kept * size, 12)),
        scoring=rng.choice(["softmax", "sigmoid"]),
        renormalises=rng.random() < 0.5,
        factor=rng.choice([1.0, 2.5]),
        groups=groups,
        groups_kept=kept,
        group_scoring=rng.choice(["largest", "two largest"]),
    )


def reference(rule: RoutingRule, logits: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Routes in float64, as transformers' DeepSeek routers do."""
    logits = logits.double()
    scores = logits.softmax(-1) if rule.scoring == "softmax" else logits.sigmoid()
    keys = scores if correction is None else scores + correction.double()
    by_group = keys.view(len(keys), rule.groups, -1)
    best = by_group.topk(2 if rule.group_scoring == "two largest" else 1, dim=-1)[0].sum(-1)
    kept = torch.zeros_like(best).scatter(1, best.topk(rule.groups_kept, dim=-1)[1], 1.0).bool()
    masked = by_group.masked_fill(~kept[..., None], -torch.inf).flatten(1)
    chosen = masked.topk(rule.choices, dim=-1)[1]
    weights = scores.gather(1, chosen)
    if rule.renormalises:
        weights = weights / weights.sum(-1, keepdim=True)
    return chosen, weights * rule.factor


def choose(
    rule: RoutingRule, logits: Tensor, correction: Tensor | None = None, given: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    shape = len(logits), rule.choices
    chosen = torch.empty(shape, dtype=torch.int64) if given is None else given.clone()
    weights = torch.empty(shape)
    ExpertKernels().choose(rule, logits, correction, chosen, weights, keeps_choice=given is not None)
    return chosen, weights


def test_experts_and_weights_are_those_of_the_rule() -> None:
    seed = random.randrange(2**32)
    print(f"{seed=}")
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    for _ in range(ROUNDS):
        rule, tokens = random_rule(rng), rng.choice([1, 7, 300])
        dtype = rng.choice([torch.float32, torch.bfloat16])
        logits = (3 * torch.randn(tokens, rule.experts, generator=generator)).to(dtype)
        logits += 1e-3 * torch.arange(rule.experts)  # hardly any are equal
        correction = torch.randn(rule.experts, generator=generator) if rng.random() < 0.5 else None

        chosen, weights = choose(rule, logits, correction)

        wanted_chosen, wanted = reference(rule, logits, correction)
        is_clear = (chosen == wanted_chosen).all(-1)  # others are equal within rounding
        assert is_clear.float().mean() > 0.9 or dtype == torch.bfloat16, rule
        again, of_given = choose(rule, logits, correction, wanted_chosen)
        assert torch.equal(again, wanted_chosen)
        torch.testing.assert_close(of_given.double(), wanted, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(weights[is_clear], of_given[is_clear], rtol=0, atol=0)


def test_of_equal_experts_the_first_are_chosen() -> None:
    rule = RoutingRule(8, 3, "softmax", renormalises=True)
    chosen, weights = choose(rule, torch.tensor([[0.0, 1, 1, 0, 1, 1, 0, 2]]))
    assert chosen.tolist() == [[7, 1, 2]]
    assert weights.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_logits_that_are_not_numbers_choose_distinct_experts_and_have_no_weights(scoring: str) -> None:
    rule = RoutingRule(6, 4, scoring, renormalises=True, groups=3, groups_kept=2)  # type: ignore[arg-type]
    chosen, weights = choose(rule, torch.full((1, 6), torch.nan))
    assert len(set(chosen[0].tolist())) == 4
    assert set(chosen[0].tolist()) <= set(range(6))
    assert weights.isnan().all()


def test_a_token_gets_the_same_bits_whatever_stands_beside_it() -> None:
    rule = RoutingRule(40, 6, "softmax", renormalises=True)
    logits = torch.randn(500, 40, generator=torch.Generator().manual_seed(0))
    chosen, weights = choose(rule, logits)
    for row in range(0, 500, 37):
        alone = choose(rule, logits[row : row + 1])
        assert torch.equal(alone[0][0], chosen[row])
        assert torch.equal(alone[1][0], weights[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "choices", "hidden"), [(1, 1, 5), (9, 3, 33), (400, 4, 64)])
def test_rows_are_sorted_by_expert_and_summed_again(
    tokens: int, choices: int, hidden: int, dtype: torch.dtype
) -> None:
    generator, experts = torch.Generator().manual_seed(tokens), 11
    x = torch.randn(tokens, hidden + 3, generator=generator)[:, :hidden].to(dtype)
    chosen = torch.stack([torch.randperm(experts, generator=generator)[:choices] for _ in range(tokens)])
    out = torch.empty(tokens * choices, hidden, dtype=dtype)
    starts, places = torch.empty(experts + 1, dtype=torch.int64), torch.empty_like(chosen)
    kernels = ExpertKernels()

    kernels.sort(x, chosen, out, starts, places)

    order = chosen.flatten().argsort(stable=True)
    assert torch.equal(out, x[order // choices])
    assert starts.diff().tolist() == chosen.flatten().bincount(minlength=experts).tolist()
    assert torch.equal(places.flatten()[order], torch.arange(tokens * choices))

    weights, shared = torch.rand(tokens, choices, generator=generator), torch.randn(tokens, hidden)
    gates, residual = torch.randn(tokens, 1), torch.randn(tokens, hidden)
    y = out.float()
    wanted = (weights.sum(1, keepdim=True) * x.float()) + gates.sigmoid() * shared
    summed, added = torch.empty(tokens, hidden), residual.clone()
    kernels.combine(y, places, weights, summed, shared=shared, gates=gates)
    kernels.combine(y, places, weights, added, shared=shared, gates=gates, factor=0.5)
    torch.testing.assert_close(summed, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(added, residual + 0.5 * wanted, rtol=1e-4, atol=1e-5)
