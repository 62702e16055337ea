"""How large an answer may become, seen before it is computed: short bodies may ask for long answers. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Final

from nightshift.errors import InvalidRequest

ANSWER_TOO_LARGE: Final = "answer_too_large"
ANSWER_HEAD_BYTES: Final = 1024  # an answer's ids, names, times and counts
NUMBER_BYTES: Final = 25  # a float of 64 bits as JSON, and a comma


@dataclass(frozen=True)
class AnswerSize:
    """An upper bound of an answer's bytes as JSON: `head_bytes` and, for each of what the counts ask for
    together, `unit_bytes`.
    """

    unit_bytes: int
    counts: Mapping[str, int]  # by the field that says how many
    head_bytes: int = ANSWER_HEAD_BYTES
    also: Mapping[str, int | str] = field(default_factory=dict)  # fields that make the unit large

    @property
    def total_bytes(self) -> int:
        return self.head_bytes + self.unit_bytes * prod(self.counts.values())

    def check(self, bytes_max: int) -> None:
        """Raises InvalidRequest naming the fields, and the value of each that fits beside the others."""
        if self.total_bytes <= bytes_max:
            return
        large = [*((name, count) for name, count in self.counts.items() if count > 1), *self.also.items()]
        said = ", ".join(f"'{name}' {value}" for name, value in large)
        fits = [f"'{name}' {fit}" for name in self.counts if (fit := self._fitting(name, bytes_max)) >= 1]
        advice = f" Beside the others, at most {' or '.join(fits)} fits." if fits else ""
        raise InvalidRequest(
            f"The answer may have {self.total_bytes} bytes, and at most {bytes_max} are accepted: it is "
            f"asked for with {said}.{advice}",
            param=large[0][0] if large else None,
            code=ANSWER_TOO_LARGE,
        )

    def _fitting(self, name: str, bytes_max: int) -> int:
        """The largest value of a count beside the others; 0 for one that would have to be larger."""
        others = prod(count for other, count in self.counts.items() if other != name)
        fit = (bytes_max - self.head_bytes) // max(1, self.unit_bytes * others)
        return fit if fit < self.counts[name] else 0
