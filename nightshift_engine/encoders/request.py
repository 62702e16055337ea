"""Requests and outputs of an encoder engine."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.request import PriorityClass

Vector = NDArray[np.float32]

Input = Sized
"""An input of a model's own type, such as the token ids of a text. Its length is its cost in tokens."""


@dataclass(slots=True)  # one for each row: frozen ones take longer to make
class EncodeRequest:
    """Inputs to encode together; one vector comes back for each, in order."""

    id: str
    inputs: Sequence[Input]
    priority: PriorityClass = "standard"
    flow: str = ""
    """Whose it is. Flows of a class have the same time each, however many inputs wait of one."""


@dataclass(slots=True, eq=False)  # one for each row: frozen ones take longer to make
class EncodeOutput:
    """All vectors of one request, in the order of its inputs; each float32 [dimensions]."""

    id: str
    embeddings: list[Vector]
    num_prompt_tokens: int
    """Tokens of all inputs together, padding not counted."""
    added_s: float = 0.0
    launched_s: float | None = None
    """The start of the last step; both as in `RequestTimes`, without tokens."""
    first_token_s: ClassVar[None] = None
    last_token_s: ClassVar[float] = 0.0
