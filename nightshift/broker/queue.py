"""Sends rings, messages that say "there is work", through Celery over Redis.

An online message names a shard; a bulk message names nothing, and its receiver claims the best shard. The
scheduler sends a lost message again, and a duplicate finds nothing to claim, so losing all of Redis loses no
work.
"""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

from celery import Celery
from kombu import compression
from kombu.exceptions import BatchPublishError, ContentDisallowed, LimitExceeded, OperationalError
from kombu.messaging import Producer
from redis.exceptions import RedisError

from nightshift.errors import QueueUnavailable
from nightshift.jobs import JobKind
from nightshift.jobs.shard import Ring
from nightshift.process.settings import QueueSettings

log = logging.getLogger(__name__)

ONLINE_QUEUE: Final = "online"
BULK_QUEUE: Final = "bulk"
ONLINE_TASK: Final = "nightshift.online"
BULK_TASK: Final = "nightshift.bulk"

# kombu's Redis priorities: 0 is fetched first.
PRIORITY_STEPS: Final = list(range(10))
PRIORITY_OF_RANK: Final = (0, 4, 8)

TRACEPARENT_HEADER: Final = "traceparent"  # a message's header: the span that has sent it

KEY_PREFIX: Final = "ns:"
PING_KEY: Final = "ping"  # behind the prefix
PING_S: Final = 60  # it is kept for
PUBLISHERS_MAX: Final = 64  # connections, one per thread ringing at once; more threads wait


def celery_app(settings: QueueSettings) -> Celery:
    """The Celery application of the API, the scheduler and the workers."""
    _refuse_compressed_messages()
    app = Celery("nightshift", broker=settings.redis_url, set_as_current=False)
    app.conf.update(
        broker_transport_options={
            "priority_steps": PRIORITY_STEPS,
            "sep": ":",
            "queue_order_strategy": "priority",
            "health_check_interval": 5,
            "socket_timeout": 10,
            "socket_connect_timeout": settings.publish_timeout_s,
            "socket_keepalive": True,
            "global_keyprefix": KEY_PREFIX,
        },
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,  # a Redis that refuses a command counts as away
        broker_pool_limit=4,
        task_acks_late=True,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_create_missing_queues=True,
        task_default_queue=BULK_QUEUE,
        task_publish_retry=False,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
    )
    return app


def _refuse_compressed_messages() -> None:
    """kombu unpacks what a message says is compressed, whatever it grows to. Ours never are."""

    def refuse(body: bytes) -> bytes:
        raise ContentDisallowed("compressed messages are not accepted")

    for name in compression.encoders():
        compression.register(compression.get_encoder(name)[0], refuse, name)


class Queue:
    """Sends rings. Every failure is QueueUnavailable, after a bounded time. Thread-safe."""

    def __init__(self, settings: QueueSettings) -> None:
        self._publish_timeout_s = settings.publish_timeout_s
        self._app = celery_app(settings)
        # A worker waits for its broker; a sender tries to connect once, within the publish timeout.
        self._app.conf.update(
            broker_transport_options={
                **self._app.conf.broker_transport_options,
                "socket_timeout": settings.publish_timeout_s,
                "max_retries": 0,
            },
            broker_pool_limit=PUBLISHERS_MAX,
        )

    def ring(self, rings: Sequence[Ring]) -> None:
        """Sends these rings. Raises QueueUnavailable; some may have been sent."""
        try:
            with self._app.producer_pool.acquire(block=True, timeout=self._publish_timeout_s) as producer:
                with producer.batch() if len(rings) > 1 else nullcontext():
                    for ring in rings:
                        self._send(ring, producer)
        except (OperationalError, OSError, LimitExceeded, BatchPublishError) as error:
            raise QueueUnavailable from error

    def length(self, queue: str) -> int:
        """Messages not yet fetched. Raises QueueUnavailable."""
        return self.lengths([queue])[0]

    def lengths(self, queues: Sequence[str]) -> list[int]:
        """The lengths of several queues, over one connection."""
        try:
            with self._app.connection_for_read() as connection:
                connection.ensure_connection(max_retries=0, timeout=self._publish_timeout_s)
                # `passive` makes kombu look without our key prefix, and find nothing.
                declared = [connection.default_channel.queue_declare(queue) for queue in queues]
        except (OperationalError, OSError) as error:
            raise QueueUnavailable from error
        return [int(one.message_count) for one in declared]

    def ping(self) -> None:
        """Raises QueueUnavailable when the broker does not answer, or takes nothing: it is full, or its user
        may not write.
        """
        try:
            with self._app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=0, timeout=self._publish_timeout_s)
                connection.default_channel.client.set(PING_KEY, "", ex=PING_S)
        except (OperationalError, OSError, RedisError) as error:
            raise QueueUnavailable from error

    def close(self) -> None:
        self._app.close()

    def _send(self, ring: Ring, producer: Producer) -> None:
        is_online = ring.kind is JobKind.ONLINE
        self._app.send_task(
            ONLINE_TASK if is_online else BULK_TASK,
            args=[ring.shard_id] if is_online else [],
            queue=ONLINE_QUEUE if is_online else BULK_QUEUE,
            priority=PRIORITY_OF_RANK[ring.priority_rank],
            retry=False,
            ignore_result=True,
            producer=producer,
            headers=None if ring.traceparent is None else {TRACEPARENT_HEADER: ring.traceparent},
        )
