"""Checks by area. A module of `checks/` makes an Area and adds its functions to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from conformance.session import Session


@dataclass(frozen=True)
class Check:
    """`name` is its function's. `is_slow`: it waits for batches, and has their time limit."""

    name: str
    statement: str
    run: Callable[[Session], None]
    is_slow: bool = False


@dataclass
class Area:
    """Checks of one route: `method` and `path` (below the base URL). Where it is missing, none is offered.

    `is_own`: OpenAI has nothing like it, so the checks are skipped where the server is not Nightshift.
    """

    name: str
    method: str
    path: str
    is_own: bool = False
    checks: list[Check] = field(default_factory=list)

    def add(
        self, statement: str, *, is_slow: bool = False
    ) -> Callable[[Callable[[Session], None]], Callable[[Session], None]]:
        """Decorate a function as the area's next check."""

        def register(run: Callable[[Session], None]) -> Callable[[Session], None]:
            self.checks.append(Check(run.__name__.replace("_", "-"), statement, run, is_slow))
            return run

        return register


def selected(areas: Sequence[Area], only: Sequence[str]) -> list[tuple[Area, Check]]:
    """The checks that `only` names, as "area" or "area.check"; all if it is empty."""
    return [
        (area, check)
        for area in areas
        for check in area.checks
        if not only or area.name in only or f"{area.name}.{check.name}" in only
    ]


def unknown(areas: Sequence[Area], only: Sequence[str]) -> list[str]:
    """Names in `only` that do not exist."""
    names = {area.name for area in areas}
    names |= {f"{area.name}.{check.name}" for area in areas for check in area.checks}
    return [name for name in only if name not in names]
