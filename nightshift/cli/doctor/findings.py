"""What a check found, and what to do next."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works; something about it will cost time or room
    ERROR = "error"  # something does not work, or will not
    SKIPPED = "skipped"  # it does not apply here, or cannot be looked at


@dataclass(frozen=True)
class Finding:
    """`detail`: what was found. `advice`: what to do next; empty where nothing is to be done.

    `figures`: what was measured, with units in the names.
    """

    status: Status
    detail: str
    advice: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finding of the check with this id."""

    id: str
    name: str
    finding: Finding
    seconds: float

    def to_json(self) -> dict[str, object]:
        """As `nightshift doctor --json` prints it (docs/doctor.md)."""
        return {
            "id": self.id,
            "name": self.name,
            "status": self.finding.status.value,
            "ok": self.finding.status is not Status.ERROR,
            "detail": self.finding.detail,
            "advice": self.finding.advice,
            "figures": dict(self.finding.figures),
            "seconds": round(self.seconds, 3),
        }


def ok(detail: str, **figures: float) -> Finding:
    return Finding(Status.OK, detail, figures=figures)


def warning(detail: str, advice: str, **figures: float) -> Finding:
    return Finding(Status.WARNING, detail, advice, figures)


def error(detail: str, advice: str, **figures: float) -> Finding:
    return Finding(Status.ERROR, detail, advice, figures)


def skipped(detail: str, advice: str = "") -> Finding:
    return Finding(Status.SKIPPED, detail, advice)
