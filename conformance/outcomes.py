"""The outcomes of the checks, and the exit code that follows."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

EXIT_PASSED: Final = 0
EXIT_FAILED: Final = 1


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_OFFERED = "not offered"
    SKIPPED = "skipped"  # it says nothing about the server, and counts as failed nowhere


@dataclass(frozen=True)
class Result:
    """One check's outcome.

    `detail`: in a line, what the server did and what OpenAI does, or why it was skipped; empty if passed.
    """

    area: str
    name: str  # the check's name within its area, as `--only` takes it
    statement: str  # what the check found true, or not
    outcome: Outcome
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """All results, in the order of the checks.

    `left_behind`: what could not be deleted on the server. `node_client_version`: None if it did not run.
    """

    client_version: str
    results: Sequence[Result]
    left_behind: Sequence[str] = ()
    node_client_version: str | None = None

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome is outcome for result in self.results)

    def exit_code(self, *, is_strict: bool) -> int:
        """1 if a check failed; if strict, also if one was not offered."""
        wrong = {Outcome.FAILED, Outcome.NOT_OFFERED} if is_strict else {Outcome.FAILED}
        return EXIT_FAILED if any(result.outcome in wrong for result in self.results) else EXIT_PASSED
