"""The encoder engine with a formula for a model, whose vectors follow from the tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightshift_engine.core.request import PriorityClass
from nightshift_engine.encoders.config import DynamicBatching, EncoderConfig
from nightshift_engine.encoders.engine import EncoderEngine
from nightshift_engine.encoders.request import EncodeOutput, EncodeRequest
from nightshift_engine.encoders.texts import token_ids_objection

TEN_SECONDS_US = 10_000_000


def vector_of(token_ids: Sequence[int]) -> NDArray[np.float32]:
    """An embedding that only these tokens, in this order, can have made."""
    return np.array([len(token_ids), sum((i + 1) * t for i, t in enumerate(token_ids))], dtype=np.float32)


@dataclass
class FormulaEncoder:
    """Encodes by `vector_of`, and remembers the lengths of each forward pass."""

    max_length: int = 100
    max_num_batched_tokens: int = 1_000
    vocab_size: int = 1_000
    passes: list[list[int]] = field(default_factory=list)
    failures_left: int = 0

    def objection(self, input: Sequence[int]) -> str | None:
        return token_ids_objection(input, self.vocab_size)

    def encode(self, inputs: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        if self.failures_left:
            self.failures_left -= 1
            raise RuntimeError("out of memory")
        self.passes.append([len(token_ids) for token_ids in inputs])
        return np.stack([vector_of(token_ids) for token_ids in inputs])


class FakeClock:
    """Microseconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_us = 0

    def __call__(self) -> int:
        return self.now_us


def batching(**fields: Any) -> EncoderConfig:
    """A configuration whose fields may be those of `dynamic_batching`, too."""
    inner = {name: fields.pop(name) for name in list(fields) if name in DynamicBatching.__slots__}
    return EncoderConfig(**fields, dynamic_batching=DynamicBatching(**inner))


def engine_of(
    model: FormulaEncoder | None = None, clock_us: FakeClock | None = None, **fields: Any
) -> EncoderEngine:
    return EncoderEngine(model or FormulaEncoder(), batching(**fields), clock_us=clock_us or FakeClock())


def request(id: str, *lengths: int, priority: PriorityClass = "standard") -> EncodeRequest:
    """A request whose inputs have these lengths; no two inputs are the same."""
    tokens = Random(id)
    return EncodeRequest(id, [[tokens.randrange(1_000) for _ in range(n)] for n in lengths], priority)


def run_to_end(engine: EncoderEngine) -> list[EncodeOutput]:
    outputs: list[EncodeOutput] = []
    while engine.has_work:
        outputs += engine.step()
        engine.check_integrity()
    return outputs


def assert_answers(output: EncodeOutput, request: EncodeRequest) -> None:
    assert output.id == request.id
    assert output.num_prompt_tokens == sum(map(len, request.inputs))
    np.testing.assert_array_equal(output.embeddings, [vector_of(token_ids) for token_ids in request.inputs])
