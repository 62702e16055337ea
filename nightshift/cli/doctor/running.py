"""Runs checks one after the other, each for a bounded time.

A check has a thread of its own, which is left behind when it does not end in time: a server that hangs hangs
that thread, and the process ends without it.
"""

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from nightshift.cli.doctor.findings import Finding, Result, Status, error, skipped
from nightshift.errors import NightshiftError

TIMEOUT_S: Final = 10.0

_USER = re.compile(r"(?<=://)[^\s/\"'<>]+@")
_QUERY = re.compile(r"(?P<url>://[^\s\"'<>?]+)\?[^\s\"'<>]+")

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """`id` is stable: scripts read it. `name` is for people.

    `needs`: ids of checks without which this one could only fail the same way. `is_slow`: it starts a process
    that loads much, and has `SLOW_FACTOR` times the time of others.
    """

    id: str
    name: str
    look: Callable[[], Finding]
    needs: Collection[str] = ()
    is_slow: bool = False


SLOW_FACTOR: Final = 12


def examine(checks: Sequence[Check], timeout_s: float = TIMEOUT_S) -> Iterator[Result]:
    """Each check's result, as soon as it is known. `timeout_s`: the most one check may take."""
    lame: set[str] = set()  # what cannot be relied on
    for check in checks:
        began_s = time.monotonic()
        missing = [need for need in check.needs if need in lame]
        limit_s = timeout_s * (SLOW_FACTOR if check.is_slow else 1)
        finding = _not_without(missing[0]) if missing else _bounded(check.look, limit_s)
        if finding.status is Status.ERROR or missing:
            lame.add(check.id)
        shown = replace(finding, detail=_hidden(finding.detail), advice=_hidden(finding.advice))
        yield Result(id=check.id, name=check.name, finding=shown, seconds=time.monotonic() - began_s)


def _hidden(text: str) -> str:
    """A text whose URLs, those in errors of drivers too, are without user, password and query."""
    return _QUERY.sub(r"\g<url>", _USER.sub("[hidden]@", text))


def _not_without(need: str) -> Finding:
    return skipped(f"not looked at, because '{need}' is not well")


def _bounded(look: Callable[[], Finding], limit_s: float) -> Finding:
    finding = within(limit_s, lambda: _looked(look))
    return finding or error(
        f"gave no answer within {limit_s:g} s",
        "a server takes connections and then says nothing: look at it and at the network; `--timeout` waits "
        "longer",
    )


def within(limit_s: float, call: Callable[[], T]) -> T | None:
    """What the call, which raises nothing, returns. None: it did not within this time, and goes on."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(call()), name="check", daemon=True)
    thread.start()
    thread.join(limit_s)
    return found[0] if found else None


def _looked(look: Callable[[], Finding]) -> Finding:
    try:
        return look()
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
