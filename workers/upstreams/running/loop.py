"""The thread on which everything of upstreams runs: an asyncio loop of a worker's own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from workers.serving.model_server import OnFatal

T = TypeVar("T")


class LoopThread:
    """A thread with a loop. An exception that no part handles ends the process, as one in an engine does."""

    def __init__(self, on_fatal: OnFatal) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(
            lambda loop, context: on_fatal(context.get("exception") or RuntimeError(context["message"]))
        )
        self._thread = threading.Thread(target=self._run, name="upstreams", daemon=True)
        self._thread.start()

    def call(self, callback: Callable[[], None]) -> None:
        """Calls it on the thread, soon; from any thread."""
        self._loop.call_soon_threadsafe(callback)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs it on the thread and waits for it; from any other thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs it on the thread until the thread ends; an exception ends the process."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                task.result()

        self.call(lambda: asyncio.ensure_future(coroutine).add_done_callback(ended))

    def stop(self) -> None:
        """Ends the thread. What still runs on it is cancelled."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self._loop.close()
