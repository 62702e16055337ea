"""Pub/sub hints to read the database now; lossy, and nothing depends on them.

A worker reads its orders with every heartbeat; a hint makes a cancel take effect at once.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

import redis

from nightshift.broker.token_streams import connect
from nightshift.process.settings import QueueSettings

log = logging.getLogger(__name__)

CHANNEL: Final = "ns:nudge"
LISTEN_S: Final = 1.0  # per wait for a message; `stop` is checked in between
RECONNECT_S: Final = 5.0


class HintPublisher:
    """The sending side. An unreachable Redis costs one bounded attempt."""

    def __init__(self, settings: QueueSettings) -> None:
        self._redis = connect(settings, settings.publish_timeout_s)

    def publish(self) -> bool:
        """Tells all workers to read their orders. False: Redis is away, and their next heartbeat reads
        them.
        """
        try:
            self._redis.publish(CHANNEL, b"")
        except redis.RedisError as error:
            log.info("hint not published", extra={"action": "hint_failed", "reason": str(error)})
            return False
        return True

    def close(self) -> None:
        self._redis.close()


class HintListener:
    """Subscribes on its own thread and calls `on_hint` for each hint."""

    def __init__(self, settings: QueueSettings, on_hint: Callable[[], None]) -> None:
        self._redis = connect(settings, LISTEN_S + settings.publish_timeout_s)
        self._on_hint = on_hint
        self._is_stopping = threading.Event()
        self.is_listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._redis.close()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self._listen()
            except redis.RedisError as error:
                self.is_listening.clear()
                log.info("not subscribed to hints", extra={"action": "hints_lost", "reason": str(error)})
                self._is_stopping.wait(RECONNECT_S)

    def _listen(self) -> None:
        with self._redis.pubsub() as channel:
            channel.subscribe(CHANNEL)
            while not self._is_stopping.is_set():
                message = channel.get_message(timeout=LISTEN_S)
                if message is None:
                    continue
                if message["type"] == "subscribe":
                    self.is_listening.set()
                else:
                    self._on_hint()
