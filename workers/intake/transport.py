"""kombu's transport for Redis, which no message can break.

Any client of Redis can put anything into a queue, and Celery ends a worker whose event loop raises. So what
cannot be read is dropped on arrival. A ring that is dropped by mistake, or fetched by a worker that died, is
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
RECONNECT_S: Final = 1.0  # from one connection to the next


class Message(virtual.Message):
    """A message that is readable to its end, and names the queue to give it back to."""

    def __init__(self, payload: Mapping[str, Any], channel: Any = None, **options: Any) -> None:
        """Raises whatever the message makes kombu raise."""
        super().__init__(payload, channel, **options)  # type: ignore[no-untyped-call]
        loads(self.body, self.content_type, self.content_encoding, accept=ACCEPTED)
        if not all(isinstance(self.delivery_info[name], str) for name in ("exchange", "routing_key")):
            raise ValueError("a message that names no queue")


class QoS(virtual.QoS):
    """Messages fetched and not acknowledged: this process alone knows them, and gives them back as it ends.

    kombu's own has Redis record each, for redelivery after a visibility timeout: two round trips, one of them
    while a client waits, for messages that polling the database replaces within seconds.
    """

    def restore_unacked(self) -> list[Any]:
        """Give all of them back, in order, up to the first that Redis does not take: the others are no loss,
        and kombu would wait for each and write it to a file.
        """
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
        """Acknowledges in any case: a message that cannot be given back must not take a place for ever."""
        try:
            if requeue:
                self._give_back(self._delivered[delivery_tag])
        except (RedisError, OSError) as error:
            fields = {"action": "not_restored", "count": 1, "reason": repr(error)}
            log.warning("message not given back", extra=fields)
        self._quick_ack(delivery_tag)

    def _give_back(self, message: Any) -> None:
        """Drops a message that kombu cannot give back. Raises RedisError or OSError."""
        try:
            self.channel._restore(message)
        except (RedisError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 the edge of the event loop: a message may contain anything
            drop(message, error)


class Channel(redis.Channel):
    """Fetches messages from their lists."""

    Message = Message
    ack_emulation = False  # by Redis

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]
        self.QoS = QoS  # type: ignore[assignment]  # it has just been set to kombu's

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
        """At most one a second: Redis may accept connections and refuse every command."""
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
        """Acknowledge it, or `restore_unacked` would give it back."""
        for channel in self.channels:
            for tag, delivered in list(channel.qos._delivered.items()):
                if delivered._raw is message:
                    channel.basic_ack(tag)


def drop(message: Any, error: BaseException) -> None:
    """Log it, and have it counted: the pool listens to this signal."""
    log.warning("message dropped", extra={"action": "message_dropped", "reason": repr(error)})
    task_rejected.send(sender=None, message=message, exc=error)


def install() -> None:
    """Have kombu find this transport by the scheme of a Redis URL."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = "workers.intake.transport:Transport"
