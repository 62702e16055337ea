"""Handles of calls: any later process gets one by the call's name."""

import asyncio
from typing import TYPE_CHECKING

from nightshift.client.answers import LOOKS, RemoteJob
from nightshift.client.mapping.progress import progress_bar
from nightshift.client.mapping.results import MapResult, joined
from nightshift.client.mapping.rows import MapData

if TYPE_CHECKING:
    from nightshift.client.http_client import Client


class MapHandle:
    """A call that runs on the server, whether or not this process lives."""

    def __init__(self, client: "Client", job: RemoteJob, known: MapData | None = None) -> None:
        """`known`: what this process has sent."""
        self.name = str(job.data.get("name"))
        self.job_id = job.id
        self._client = client
        self._known = known

    def status(self) -> RemoteJob:
        """The job now. Raises ApiError, ServerUnreachable."""
        return self._client.get_job(self.job_id, is_followed=True)

    def result(self, data: object = None, *, partial: bool = False, progress: bool = True) -> MapResult:
        """Waits, and returns the answers joined to the data of the call, or to `data`, by the key. A handle
        that was attached to has no data: without `data` the rows are their keys alone.

        `partial`: also of a job that did not succeed. Raises MapFailed, InvalidRequest, ApiError,
        ServerUnreachable.
        """
        with progress_bar(self.name, is_wanted=progress) as show:
            job = self._client.wait_for_job(self.job_id, on_look=show)
        return self.joined(job, data, partial=partial)

    def joined(self, job: RemoteJob, data: object, *, partial: bool) -> MapResult:
        """The result of the call's job, which has ended."""
        return joined(self._client, job, data, self._known, partial=partial)

    def cancel(self) -> RemoteJob:
        """Cancels the job; answers that are there stay. Raises ApiError, ServerUnreachable."""
        return self._client.cancel_job(self.job_id)


class AsyncMapHandle:
    """The same for `AsyncClient`."""

    def __init__(self, handle: MapHandle) -> None:
        self.name = handle.name
        self.job_id = handle.job_id
        self._handle = handle

    async def status(self) -> RemoteJob:
        return await asyncio.to_thread(self._handle.status)

    async def result(self, data: object = None, *, partial: bool = False, progress: bool = True) -> MapResult:
        with progress_bar(self.name, is_wanted=progress) as show:
            looks = 0
            while not (job := await self.status()).state.is_terminal:
                show(job)
                looks += 1
                await asyncio.sleep(LOOKS.delay_s(looks))
            show(job)
        return await asyncio.to_thread(self._handle.joined, job, data, partial=partial)

    async def cancel(self) -> RemoteJob:
        return await asyncio.to_thread(self._handle.cancel)
