"""How good answers are, by the field's usual figures."""

import math
from collections.abc import Sequence


def auc(scores: Sequence[float], truth: Sequence[bool]) -> float:
    """The area under the ROC curve: how often a true one scores above a false one; a tie is half.

    Raises ValueError without one of each.
    """
    positives = sum(truth)
    negatives = len(truth) - positives
    if not positives or not negatives:
        raise ValueError("an AUC needs rows of both classes")
    order = sorted(range(len(scores)), key=scores.__getitem__)
    ranks_of_true = 0.0
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and scores[order[end]] == scores[order[start]]:
            end += 1
        mean_rank = (start + 1 + end) / 2
        ranks_of_true += mean_rank * sum(truth[at] for at in order[start:end])
        start = end
    return (ranks_of_true - positives * (positives + 1) / 2) / (positives * negatives)


def ndcg(gains: Sequence[float], first: int) -> float:
    """The discounted gain of the `first` items, by the true gains in their order; 1.0 for the best order."""

    def discounted(ordered: Sequence[float]) -> float:
        return sum(gain / math.log2(place + 2) for place, gain in enumerate(ordered[:first]))

    best = discounted(sorted(gains, reverse=True))
    return discounted(gains) / best if best else 1.0
