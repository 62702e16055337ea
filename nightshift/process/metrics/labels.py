"""Labels with few values, however many there are."""

from collections.abc import Iterable
from typing import Final

MODELS_MAX: Final = 50  # on one page, those with most to show
OTHERS: Final = "(others)"  # no model's id has a parenthesis first


def model_labels(by_importance: Iterable[str], limit: int = MODELS_MAX) -> dict[str, str]:
    """The label of each model: its id, or of those beyond the limit one for all."""
    return {id: id if place < limit else OTHERS for place, id in enumerate(dict.fromkeys(by_importance))}
