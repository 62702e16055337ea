"""A kombu transport for Redis that drops what it cannot read.

Any client can put anything into a queue, and Celery ends a worker whose event loop raises. Lost rings are
rung again.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from celery.signals import task_rejected
from kombu.serialization import loads
from kombu.transport import TRANSPORT_ALIASES, redis, virtual
from redis import RedisError

log = logging.getLogger(__name__)

ACCEPTED: Final = frozenset({"application/json"})
RECONNECT_S: Final = 1.0  # between connections


class Message(virtual.Message):
    """A message that names the queue to give it back to."""

    def __init__(self, payload: Mapping[str, Any], channel: Any = None, **options: Any) -> None:
        """Raises anything that kombu does."""
        super().__init__(payload, channel, **options)  # type: ignore[no-untyped-call]
        loads(self.body, self.content_type, self.content_encoding, accept=ACCEPTED)
        if not all(isinstance(self.delivery_info[name], str) for name in ("exchange", "routing_key")):
            raise ValueError("a message that names no queue")


class QoS(virtual.QoS):
    """Messages fetched and not acknowledged, which this process gives back as it ends.

    kombu's own records each in Redis: two round trips, one while a client waits, for messages that polling
    the database replaces.
    """

    def restore_unacked(self) -> list[Any]:
        """Gives messages back up to the first that Redis does not take: kombu would wait for each."""
        self._flush()  # type: ignore[no-untyped-call]
        try:
            while self._delivered:
                _, message = self._delivered.popitem(last=False)
                self._give_back(message)
        except (RedisError, OSError) as error:
            count = len(self._delivered) + 1
            fields = {"action": "not_restored", "count": count, "reason": repr(error)}
            log.warning("messages not given back", extra=fields)
            self._delivered.clear()
        return []

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Acknowledges in any case: the message must not keep its place."""
        try:
            if requeue:
                self._give_back(self._delivered[delivery_tag])
        except (RedisError, OSError) as error:
            fields = {"action": "not_restored", "count": 1, "reason": repr(error)}
            log.warning("message not given back", extra=fields)
        self._quick_ack(delivery_tag)

    def _give_back(self, message: Any) -> None:
        """Raises RedisError or OSError; drops what kombu cannot give back."""
        try:
            self.channel._restore(message)
        except (RedisError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 a message may contain anything
            drop(message, error)


class Channel(redis.Channel):
    Message = Message
    ack_emulation = False  # by Redis

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]
        self.QoS = QoS  # type: ignore[assignment]  # kombu's was just set

    def _brpop_read(self, **options: Any) -> bool:
        try:
            return bool(super()._brpop_read(**options))  # type: ignore[no-untyped-call]
        except (ValueError, RecursionError) as error:  # no JSON; it has left its list
            drop(None, error)
            return True


class Transport(redis.Transport):
    Channel = Channel
    _connects_from_s = 0.0  # for all of this process

    def establish_connection(self) -> Any:
        """Makes at most one a second: Redis may accept connections and refuse every command."""
        time.sleep(max(0.0, Transport._connects_from_s - time.monotonic()))
        Transport._connects_from_s = time.monotonic() + RECONNECT_S
        return super().establish_connection()  # type: ignore[no-untyped-call]

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            super()._deliver(message, queue)  # type: ignore[no-untyped-call]
        except (RedisError, OSError):  # not kombu's `connection_errors`, which has KeyError
            raise
        except Exception as error:  # noqa: BLE001 a message may contain anything
            self._forget(message)
            drop(message, error)

    def _forget(self, message: Any) -> None:
        """Acknowledges it; else `restore_unacked` gives it back."""
        for channel in self.channels:
            for tag, delivered in list(channel.qos._delivered.items()):
                if delivered._raw is message:
                    channel.basic_ack(tag)


def drop(message: Any, error: BaseException) -> None:
    """Logs it; the pool counts the signal."""
    log.warning("message dropped", extra={"action": "message_dropped", "reason": repr(error)})
    task_rejected.send(sender=None, message=message, exc=error)


def install() -> None:
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = "workers.transport:Transport"
