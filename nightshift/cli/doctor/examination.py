"""Runs checks one after the other, each for a bounded time.

A check has a thread of its own, which is left behind when it does not end in time: a server that hangs hangs
that thread, and the process ends without it.
"""

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from nightshift.errors import NightshiftError

TIMEOUT_S: Final = 10.0
SLOW_FACTOR: Final = 12

_USER: Final = re.compile(r"(?<=://)[^\s/\"'<>]+@")
_QUERY: Final = re.compile(r"(?P<url>://[^\s\"'<>?]+)\?[^\s\"'<>]+")


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works; something about it will cost time or room
    ERROR = "error"  # something does not work, or will not
    SKIPPED = "skipped"  # it does not apply here, or cannot be looked at


@dataclass(frozen=True)
class Finding:
    """A check's outcome: its details, advice where something is to be done, and measured figures.

    The names of figures have units.
    """

    status: Status
    detail: str
    advice: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def ok(detail: str, **figures: float) -> Finding:
    return Finding(Status.OK, detail, figures=figures)


def warning(detail: str, advice: str, **figures: float) -> Finding:
    return Finding(Status.WARNING, detail, advice, figures)


def error(detail: str, advice: str, **figures: float) -> Finding:
    return Finding(Status.ERROR, detail, advice, figures)


def skipped(detail: str, advice: str = "") -> Finding:
    return Finding(Status.SKIPPED, detail, advice)


class NotApplicable(Exception):
    """The message says why a check is skipped."""


@dataclass(frozen=True)
class Check:
    """A question to one part of the installation.

    `id` is stable, since scripts read it; `name` is for people. A check is skipped when one of those in
    `needs` fails. `is_slow`: it starts a process that loads much, and has `SLOW_FACTOR` times the time.
    """

    id: str
    name: str
    look: Callable[[], Finding]
    needs: Collection[str] = ()
    is_slow: bool = False


@dataclass(frozen=True)
class Result:
    check: Check
    finding: Finding
    seconds: float

    def to_json(self) -> dict[str, object]:
        """The object that `nightshift doctor --json` prints (docs/doctor.md)."""
        return {
            "id": self.check.id,
            "name": self.check.name,
            "status": self.finding.status.value,
            "ok": self.finding.status is not Status.ERROR,
            "detail": self.finding.detail,
            "advice": self.finding.advice,
            "figures": dict(self.finding.figures),
            "seconds": round(self.seconds, 3),
        }


def examine(checks: Sequence[Check], timeout_s: float = TIMEOUT_S) -> Iterator[Result]:
    """Yields each check's result as soon as it is known. A check may take `timeout_s` at most."""
    unreliable: set[str] = set()
    for check in checks:
        began_s = time.monotonic()
        broken = next((need for need in check.needs if need in unreliable), None)
        if broken is None:
            finding = _bounded(check.look, timeout_s * (SLOW_FACTOR if check.is_slow else 1))
        else:
            finding = skipped(f"not looked at, because '{broken}' is not well")
        if finding.status is Status.ERROR or broken:
            unreliable.add(check.id)
        shown = replace(
            finding, detail=_without_secrets(finding.detail), advice=_without_secrets(finding.advice)
        )
        yield Result(check, shown, time.monotonic() - began_s)


def _without_secrets(text: str) -> str:
    """Removes user, password and query from URLs, also in errors of drivers."""
    return _QUERY.sub(r"\g<url>", _USER.sub("[hidden]@", text))


def _bounded(look: Callable[[], Finding], limit_s: float) -> Finding:
    findings: list[Finding] = []
    thread = threading.Thread(target=lambda: findings.append(_caught(look)), name="check", daemon=True)
    thread.start()
    thread.join(limit_s)
    if findings:
        return findings[0]
    return error(
        f"gave no answer within {limit_s:g} s",
        "a server takes connections and then says nothing: look at it and at the network; `--timeout` waits "
        "longer",
    )


def _caught(look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except NotApplicable as reason:
        return skipped(str(reason))
    except NightshiftError as refusal:
        return error("does not work", refusal.message)
    except OSError as refusal:
        return error(
            f"the machine refused it: {refusal}",
            "run doctor as the user that runs the service, in its environment",
        )
    except Exception as bug:  # noqa: BLE001 the other checks are still worth running
        return error(
            f"the check itself failed: {type(bug).__name__}: {' '.join(str(bug).split())}", "report this"
        )
