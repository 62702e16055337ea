"""What computed a sequence's tokens, so that another engine can tell whether it may continue them.

Tokens are all a request needs to continue: KV is computed again, text is a function of the tokens, and draws
are functions of seed and index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import IncompatibleState, InvalidState


@dataclass(frozen=True, slots=True)
class MadeBy:
    """Everything that has a part in the numbers a token is sampled from."""

    model_id: str
    """For people; the same model under two names is no difference."""
    model_digest: str
    """Of the model's files: see `weights.model_digest`."""
    dtype: str
    weight_dtype: str
    """int8, or auto where weights are kept as they are."""
    device: str
    """cpu or cuda."""
    isa: str
    """Instruction set of the CPU, or name of the GPU."""
    torch_version: str
    attention_backend: str
    kv_cache_dtype: str
    deterministic: bool

    def accepts(self, other: MadeBy) -> bool:
        """Whether what `other` began continues here exactly: bit for bit, if both are deterministic.

        Raises `IncompatibleState` for another model, and for any difference if one of the two is
        deterministic: the result would not be what deterministic mode promises.
        """
        if self.model_digest != other.model_digest:
            theirs, ours = (f"{each.model_id} ({each.model_digest})" for each in (other, self))
            raise IncompatibleState("model", theirs, ours)
        names = [field.name for field in fields(self) if not field.name.startswith("model_")]
        differing = [name for name in names if getattr(self, name) != getattr(other, name)]
        if differing and (self.deterministic or other.deterministic):
            name = differing[0]
            raise IncompatibleState(name, getattr(other, name), getattr(self, name))
        return not differing

    @classmethod
    def from_json(cls, data: Any) -> MadeBy:
        """Raises `InvalidState` naming the first field that is missing or of another type."""
        if not isinstance(data, Mapping):
            raise InvalidState("made_by", "is no object")
        for field in fields(cls):
            wanted = bool if field.name == "deterministic" else str
            if not isinstance(data.get(field.name), wanted):
                raise InvalidState(f"made_by.{field.name}", f"is no {wanted.__name__}")
        return cls(**{field.name: data[field.name] for field in fields(cls)})
