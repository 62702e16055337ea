"""Runs checks one after the other, each in a thread of its own that is left alone past its time limit."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from types import TracebackType
from typing import Final, Self

import openai

from conformance.expectations import ConformanceError, NotOffered, Skipped, Wrong, shown
from conformance.node import VERSION
from conformance.outcomes import Outcome, Result
from conformance.registry import Area, Check
from conformance.session import CleanUp, Once, Options, Session

CLEAN_UP_TIME_LIMIT_S: Final = 30.0
UNREACHABLE: Final = frozenset({"ConnectError", "ConnectTimeout", "UnsupportedProtocol", "ProxyError"})


class Unreachable(ConformanceError):
    """The server cannot be reached, or does not admit the key."""


@dataclass
class Caught:
    """A context that ends quietly and keeps the error, for the edge of a thread."""

    error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = error
        return True


@dataclass
class Run:
    """One run against one server. `left_behind` grows while it runs."""

    options: Options
    left_behind: list[str] = field(default_factory=list)
    _shared: Once = field(default_factory=Once)
    _shared_clean_up: CleanUp = field(default_factory=CleanUp)

    def results(self, checks: Sequence[tuple[Area, Check]]) -> Iterator[Result]:
        """Run the checks in order. What they share is deleted at the end."""
        try:
            for area, check in checks:
                yield self._result_of(area, check)
        finally:
            self._delete(self._shared_clean_up)

    @property
    def node_client_version(self) -> str | None:
        """The version of the Node client. None: no check ran with it."""
        version: str | None = self._shared.made(VERSION)
        return version

    def _result_of(self, area: Area, check: Check) -> Result:
        options, clean_up = self.options, CleanUp()
        client = options.client()
        limit_s = options.check_time_limit_s + check.is_slow * options.batch_time_limit_s
        session = Session(options, client, self._shared, clean_up, self._shared_clean_up, limit_s)

        def run() -> None:
            if area.is_own:
                session.require_nightshift()
            session.require(area.method, area.path)
            check.run(session)

        started_s = time.monotonic()
        try:
            error = within(limit_s, run)
            seconds = time.monotonic() - started_s
        finally:
            client.close()  # ends what a thread that was left alone still waits for
            self._delete(clean_up)
        outcome, detail = verdict(error)
        return Result(area.name, check.name, check.statement, outcome, seconds, detail)

    def _delete(self, clean_up: CleanUp) -> None:
        """Delete what was created, the latest first, and note what cannot be deleted."""
        if clean_up.is_empty:
            return
        deadline_s = time.monotonic() + CLEAN_UP_TIME_LIMIT_S
        with self.options.client() as client:
            once = client.with_options(max_retries=0, timeout=CLEAN_UP_TIME_LIMIT_S)
            while (created := clean_up.take()) is not None:
                name, delete = created
                error = within(max(0.0, deadline_s - time.monotonic()), partial(delete, once))
                is_gone = isinstance(error, openai.NotFoundError | openai.ConflictError)
                if error is not None and not is_gone:
                    self.left_behind.append(name)


def check_reachable(options: Options) -> None:
    """Raises Unreachable if nothing answers at the URL, or the key is refused."""

    def ask() -> None:
        with options.client() as client:
            client.with_options(max_retries=0).get("/models", cast_to=object)

    error = within(options.check_time_limit_s, ask)
    if isinstance(error, openai.AuthenticationError):
        raise Unreachable(f"{options.base_url} refuses the API key: {error.message}")
    if isinstance(error, openai.APIConnectionError) and type(error.__cause__).__name__ in UNREACHABLE:
        raise Unreachable(f"{options.base_url} cannot be reached: {error.__cause__}")


def within(limit_s: float, run: Callable[[], object]) -> BaseException | None:
    """Run it in a thread. The error it ended with, None, or TimeoutError when the limit has passed."""
    caught = Caught()

    def guarded() -> None:
        with caught:
            run()

    thread = Thread(target=guarded, name="conformance-check", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return TimeoutError(f"it does not come to an end within {limit_s:.0f} s (--time-limit); OpenAI does")
    return caught.error


def verdict(error: BaseException | None) -> tuple[Outcome, str]:
    """The outcome of a check that raised this error, and one line on what the server does."""
    if error is None:
        return Outcome.PASSED, ""
    if isinstance(error, NotOffered):
        return Outcome.NOT_OFFERED, error.message
    if isinstance(error, Skipped):
        return Outcome.SKIPPED, error.message
    return Outcome.FAILED, " ".join(_explained(error).split())


def _explained(error: BaseException) -> str:
    if isinstance(error, Wrong | TimeoutError):
        return str(error)
    if isinstance(error, openai.APIStatusError):
        request = f"{error.request.method} {error.request.url.path}"
        return f"it answers {error.status_code} to {request} ({shown(error.message)}); OpenAI answers 200"
    if isinstance(error, openai.APITimeoutError):
        return f"it does not answer {error.request.method} {error.request.url.path} in time"
    if isinstance(error, openai.APIConnectionError):
        request = f"{error.request.method} {error.request.url.path}"
        return f"it ends the connection without an answer to {request} ({shown(error.__cause__)})"
    return f"the client cannot use its answer: {type(error).__name__}: {shown(str(error))}"
