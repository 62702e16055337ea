"""kombu's transport for Redis, which neither a message can break nor a Redis that refuses to write.

Anybody who can write to Redis can put anything into a queue. What kombu or Celery cannot read raises in the
worker's event loop, and Celery ends the worker for it. So it is dropped as it arrives; a ring dropped by
mistake does no harm, it is rung again. And a Redis without memory cannot note what was fetched from it: that
is heard all the same, and rung again if this worker dies.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from celery.signals import task_rejected
from kombu.serialization import loads
from kombu.transport import TRANSPORT_ALIASES, redis, virtual
from redis import RedisError, ResponseError

log = logging.getLogger(__name__)

ACCEPTED: Final = frozenset({"application/json"})
RECONNECT_S: Final = 1.0  # from one connection to the next


class Message(virtual.Message):
    """A message that could be read to its end."""

    def __init__(self, payload: Mapping[str, Any], channel: Any = None, **options: Any) -> None:
        """Raises whatever a stranger's message makes kombu raise."""
        super().__init__(payload, channel, **options)  # type: ignore[no-untyped-call]
        loads(self.body, self.content_type, self.content_encoding, accept=ACCEPTED)


class QoS(redis.QoS):
    """Knows which messages are fetched and not acknowledged; Redis has a note of them."""

    def append(self, message: virtual.Message, delivery_tag: str) -> None:
        try:
            super().append(message, delivery_tag)  # type: ignore[no-untyped-call]
        except ResponseError as error:  # it was fetched all the same, and it may be heard
            log.warning("message not noted", extra={"action": "message_not_noted", "reason": repr(error)})
            virtual.QoS.append(self, message, delivery_tag)

    def restore_visible(self, *arguments: Any, **options: Any) -> None:
        try:
            super().restore_visible(*arguments, **options)  # type: ignore[no-untyped-call]
        except ResponseError as error:
            log.warning("messages not restored", extra={"action": "not_restored", "reason": repr(error)})


class Channel(redis.Channel):
    """Takes messages off their lists."""

    Message = Message
    QoS = QoS

    def _brpop_read(self, **options: Any) -> bool:
        try:
            return bool(super()._brpop_read(**options))  # type: ignore[no-untyped-call]
        except (ValueError, RecursionError) as error:  # it is not even JSON, and it has left its list
            drop(None, error)
            return True


class Transport(redis.Transport):
    """Hands messages to their consumers."""

    Channel = Channel
    _connects_from_s = 0.0  # of all connections of this process

    def establish_connection(self) -> Any:
        """A Redis that takes a connection and refuses what is said on it is not asked without pause."""
        time.sleep(max(0.0, Transport._connects_from_s - time.monotonic()))
        Transport._connects_from_s = time.monotonic() + RECONNECT_S
        return super().establish_connection()  # type: ignore[no-untyped-call]

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            super()._deliver(message, queue)  # type: ignore[no-untyped-call]
        except (RedisError, OSError):  # not `connection_errors`: to kombu, a missing key is one, too
            raise
        except Exception as error:  # noqa: BLE001 the edge of the event loop: a message may contain anything
            self._forget(message)
            drop(message, error)

    def _forget(self, message: Any) -> None:
        """It must not come back as one that was fetched and never acknowledged."""
        for channel in self.channels:
            for tag, delivered in list(channel.qos._delivered.items()):
                if delivered._raw is message:
                    channel.basic_ack(tag)


def drop(message: Any, error: BaseException) -> None:
    """Tell whoever counts."""
    log.warning("message dropped", extra={"action": "message_dropped", "reason": repr(error)})
    task_rejected.send(sender=None, message=message, exc=error)


def install() -> None:
    """From now on kombu finds this transport by the scheme of a Redis URL."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = "workers.transport:Transport"
