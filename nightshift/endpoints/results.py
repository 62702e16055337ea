"""A model's answer to a request, as values. Its JSON body is written only for readers of JSON."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nightshift.endpoints.answers import answer_id
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.priorities import PriorityClass

Values = Mapping[str, str | bytes | None]
"""A cell for each column: a text; a number or a vector as little-endian float32 bytes, a count as int32."""


TRUNCATED: Final = "truncated_inputs"
"""The column of how many of a row's inputs were cut, null where the row did not ask for that."""


def count_bytes(count: int) -> bytes:
    return count.to_bytes(4, "little")


def count_of(cell: bytes) -> int:
    return int.from_bytes(cell, "little")


@dataclass(frozen=True, slots=True)
class Identity:
    """The source of an answer's ids and seeds: a row that runs twice gives the same bytes."""

    name: str  # unique for the row, the same at every attempt; an online request's is its job's id
    created_s: int  # shown as `created`: when the job was

    def id(self, prefix: str) -> str:
        """An id for this answer, such as `chatcmpl-…`, the same at every attempt."""
        return answer_id(prefix, self.name)

    @property
    def seed(self) -> int:
        """The seed of a request that gives none."""
        return int.from_bytes(hashlib.sha256(f"seed {self.name}".encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class Origin:
    """The parts of an answer's body beside its values."""

    identity: Identity
    model: str
    priority: PriorityClass


@dataclass(slots=True)  # one for each row: frozen ones take longer to make
class Result:
    """A model's answer, or an error."""

    status_code: int  # as over HTTP
    usage: Usage
    values: Values = field(default_factory=dict)
    body: JsonObject | None = None  # None: the endpoint writes it from the values

    @property
    def succeeded(self) -> bool:
        return self.status_code < 400
