"""A Celery pool without a process or thread per message: each becomes an entry in the intake's heap.

Celery imports it before it has put anything on its path, so the package must be installed. With `acks_late`,
it acknowledges a message on success and requeues it on a rejection.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import bootsteps
from celery.concurrency.base import BasePool
from celery.exceptions import Reject
from celery.signals import task_rejected, task_unknown, worker_shutting_down
from celery.worker import state
from kombu import serialization
from kombu.exceptions import ContentDisallowed, DecodeError

from nightshift.broker.queue import BULK_QUEUE, BULK_TASK, ONLINE_TASK, TRACEPARENT_HEADER
from nightshift.errors import ConfigurationError, DatabaseUnavailable
from nightshift.jobs.ids import is_id
from nightshift.process import failpoints
from nightshift.process.exit_codes import CONFIGURATION_EXIT, UNAVAILABLE_EXIT
from nightshift.process.starting import starting
from nightshift.process.tracing.spans import TRACEPARENT_CHARS
from workers.composition import compose
from workers.runtime import Runtime

log = logging.getLogger(__name__)

_ACCEPTED = frozenset({"application/json"})

# One per process, for the bootstep that Celery creates itself.
_runtimes: list[Runtime] = []


class EnginePool(BasePool):  # type: ignore[misc]
    signal_safe = False  # a drain waits for threads
    body_can_be_buffer = False

    def on_start(self) -> None:
        """Loads the models before Celery connects, so that no message waits for a model."""
        with starting():
            self._runtime = self.compose()
        try:
            worker_shutting_down.connect(self._shutting_down)
            self._runtime.start(stop_celery=_stop_celery)
        except ConfigurationError as error:
            log.critical("cannot start: %s", error, extra={"action": "misconfigured"})
            raise SystemExit(CONFIGURATION_EXIT) from error
        except DatabaseUnavailable as error:
            log.critical("cannot start yet: %s", error, extra={"action": "start_postponed"})
            raise SystemExit(UNAVAILABLE_EXIT) from error
        _runtimes.append(self._runtime)
        for refusal in (task_rejected, task_unknown):  # these never reach `on_apply`
            refusal.connect(self._refused)

    def compose(self) -> Runtime:
        """Raises ConfigurationError."""
        return compose()

    def _shutting_down(self, **about: Any) -> None:
        """Called on SIGTERM, before Celery closes its connections."""
        self._runtime.told_to_stop()

    def _refused(self, **about: Any) -> None:
        self._runtime.intake.message_dropped()

    def on_stop(self) -> None:
        """The exit code may have changed since Celery was told one."""
        self._runtime.drain()
        if self._runtime.exit_code != (state.should_stop or 0):
            raise SystemExit(self._runtime.exit_code)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        accept_callback: Callable[[int, float], None],
        callback: Callable[[tuple[int, None, float]], None],
        error_callback: Callable[[ExceptionInfo], None],
        **options: Any,
    ) -> None:
        """`args` is (task, id, headers, body, content type, content encoding)."""
        task, _, headers, body, content_type, content_encoding = args
        failpoints.hit("worker.received")
        receipt = CeleryReceipt(callback, error_callback)
        accept_callback(0, time.monotonic())
        priority = _priority(headers)
        if task == BULK_TASK:
            self._runtime.intake.bulk_rang(priority, receipt)
            return
        shard_id = _shard_id(body, content_type, content_encoding)
        if task == ONLINE_TASK and shard_id is not None:
            self._runtime.intake.online_rang(shard_id, priority, receipt, _traceparent(headers))
        else:
            log.warning("message dropped", extra={"action": "message_dropped", "task": task})
            self._runtime.intake.message_dropped()
            receipt.acknowledge()

    def _get_info(self) -> dict[str, Any]:
        return {"implementation": "workers.pool:EnginePool", "max-concurrency": self.limit}


@dataclass(frozen=True)
class CeleryReceipt:
    succeeded: Callable[[tuple[int, None, float]], None]
    failed: Callable[[ExceptionInfo], None]

    def acknowledge(self) -> None:
        self.succeeded((0, None, 0.0))

    def give_back(self) -> None:
        try:
            raise Reject("no place is free here", requeue=True)
        except Reject:  # Celery wants a traceback
            self.failed(ExceptionInfo())


class CelerySubscription:
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def pause(self) -> None:
        self._consumer.call_soon(self._consumer.cancel_task_queue, BULK_QUEUE)

    def resume(self) -> None:
        self._consumer.call_soon(self._consumer.add_task_queue, BULK_QUEUE)


class SubscriptionStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Runs at every connection to the broker."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        for runtime in _runtimes:
            runtime.intake.attach(CelerySubscription(consumer))

    def stop(self, consumer: Any) -> None:
        """Stops the pool, which ends with the connection."""


def _stop_celery(exit_code: int) -> None:
    """Stops Celery as SIGTERM does: unacknowledged messages go back to the queue."""
    state.should_stop = exit_code


# Any client of Redis can write a message, so nothing in it is trusted.


def _priority(headers: dict[str, Any]) -> int:
    """0, Celery's most urgent, unless there is a number."""
    delivery_info = headers.get("delivery_info")
    priority = delivery_info.get("priority") if isinstance(delivery_info, dict) else None
    return priority if isinstance(priority, int) else 0


def _traceparent(headers: dict[str, Any]) -> str | None:
    """The `traceparent` of the span that has sent the message, not looked at yet."""
    traceparent = headers.get(TRACEPARENT_HEADER)
    return traceparent if isinstance(traceparent, str) and len(traceparent) <= TRACEPARENT_CHARS else None


def _shard_id(body: Any, content_type: str, content_encoding: str) -> str | None:
    """The first argument; later versions may add others. None if it is no id in JSON."""
    try:
        arguments, *_ = serialization.loads(body, content_type, content_encoding, accept=_ACCEPTED)
    except (DecodeError, ContentDisallowed, LookupError, TypeError, ValueError):
        return None
    known = arguments[:1] if isinstance(arguments, list) else []
    return known[0] if known and isinstance(known[0], str) and is_id(known[0]) else None
