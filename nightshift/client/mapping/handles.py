"""Handles of calls: any later process gets one by the call's name."""

from collections.abc import Awaitable, Callable
from typing import Any

from nightshift.client.answers import RemoteJob
from nightshift.client.exchanges import Exchange
from nightshift.client.mapping import programs
from nightshift.client.mapping.programs import Started
from nightshift.client.mapping.results import MapResult


class _Handle:
    def __init__(self, started: Started) -> None:
        self._started = started

    @property
    def name(self) -> str:
        return self._started.name

    @property
    def job_id(self) -> str:
        return self._started.job.id


class MapHandle(_Handle):
    """A call that runs on the server, whether or not this process lives."""

    def __init__(self, run: Callable[[Exchange[Any]], Any], started: Started) -> None:
        super().__init__(started)
        self._run = run

    def status(self) -> RemoteJob:
        """The job now. Raises ApiError, ServerUnreachable."""
        job: RemoteJob = self._run(programs.described(self.job_id))
        return job

    def result(self, data: object = None, *, partial: bool = False, progress: bool = True) -> MapResult:
        """Waits, and returns the answers joined to the data of the call, or to `data`, by the key. A handle
        that was attached to has no data: without `data` the rows are their keys alone.

        `partial`: also of a job that did not succeed. Raises MapFailed, InvalidRequest, ApiError,
        ServerUnreachable.
        """
        finished = programs.finished(self._started, data, partial=partial, progress=progress)
        result: MapResult = self._run(finished)
        return result

    def cancel(self) -> RemoteJob:
        """Cancels the job; answers that are there stay. Raises ApiError, ServerUnreachable."""
        job: RemoteJob = self._run(programs.cancelled(self.job_id))
        return job


class AsyncMapHandle(_Handle):
    """The same for `AsyncClient`."""

    def __init__(self, run: Callable[[Exchange[Any]], Awaitable[Any]], started: Started) -> None:
        super().__init__(started)
        self._run = run

    async def status(self) -> RemoteJob:
        job: RemoteJob = await self._run(programs.described(self.job_id))
        return job

    async def result(self, data: object = None, *, partial: bool = False, progress: bool = True) -> MapResult:
        finished = programs.finished(self._started, data, partial=partial, progress=progress)
        result: MapResult = await self._run(finished)
        return result

    async def cancel(self) -> RemoteJob:
        job: RemoteJob = await self._run(programs.cancelled(self.job_id))
        return job
