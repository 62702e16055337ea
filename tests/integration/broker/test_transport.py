"""How a worker takes messages from Redis: noted nowhere else, given back as it ends."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery.signals import task_rejected
from kombu import Message
from kombu.transport import TRANSPORT_ALIASES

from nightshift.broker.queue import ONLINE_QUEUE, Queue, celery_app
from nightshift.jobs import JobKind
from nightshift.jobs.shard import Ring
from tests.integration.broker.test_queue import AWAY
from tests.integration.servers import ValkeyServer
from workers import transport

WAIT_MAX_S = 10.0
SILENT_S = 1.0  # so long a Redis that does not answer is waited for


@pytest.fixture(autouse=True)
def as_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("redis", "rediss"):
        monkeypatch.setitem(TRANSPORT_ALIASES, scheme, TRANSPORT_ALIASES[scheme])  # put back afterwards
    monkeypatch.setattr("kombu.transport._transport_cache", {})
    transport.install()


@contextmanager
def listening(server: ValkeyServer, count: int) -> Iterator[list[Message]]:
    """The next messages, as a worker holds them that has acknowledged none. At the end it leaves."""
    app = celery_app(server.settings)
    app.conf.broker_transport_options |= {"socket_timeout": SILENT_S}
    held: list[Message] = []
    with app.connection_for_read() as connection:
        queues = [app.amqp.queues[ONLINE_QUEUE]]
        with connection.Consumer(queues, callbacks=[lambda body, message: held.append(message)]) as consumer:
            consumer.qos(prefetch_count=count)
            while len(held) < count:
                connection.drain_events(timeout=WAIT_MAX_S)
            yield held


@pytest.fixture
def rung(valkey: ValkeyServer) -> ValkeyServer:
    """Two rings, of shards a and b."""
    ring_for(valkey, "a", "b")
    return valkey


def ring_for(server: ValkeyServer, *shards: str) -> None:
    queue = Queue(server.settings)
    queue.ring([Ring(1, JobKind.ONLINE, shard, 0) for shard in shards])
    queue.close()


def lying(server: ValkeyServer) -> list[dict[str, Any]]:
    """The messages no worker holds, the next one first."""
    return [json.loads(raw) for raw in reversed(server.client.lrange("ns:online", 0, -1))]


def test_redis_notes_nothing_of_what_a_worker_holds(rung: ValkeyServer) -> None:
    with listening(rung, 2) as held:
        assert lying(rung) == []
        assert rung.client.keys("ns:unacked*") == []
        for message in held:
            message.ack()

    assert lying(rung) == []


def test_what_a_worker_holds_as_it_leaves_is_given_back(rung: ValkeyServer) -> None:
    with listening(rung, 2) as held:
        held[0].ack()

    [given_back] = lying(rung)
    assert given_back["headers"]["argsrepr"] == "['b']"
    assert given_back["redelivered"]


def test_a_message_that_is_refused_rings_for_another(rung: ValkeyServer) -> None:
    with listening(rung, 1) as held:
        held[0].reject(requeue=True)

        assert [message["headers"]["argsrepr"] for message in lying(rung)] == ["['b']", "['a']"]
    with listening(rung, 2):
        pass
    assert [message["headers"]["argsrepr"] for message in lying(rung)] == ["['b']", "['a']"], "in its order"


@pytest.mark.parametrize("fault", AWAY)
def test_what_cannot_be_given_back_is_tried_once_and_takes_no_place(
    own_valkey: ValkeyServer, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    ring_for(own_valkey, "a", "b", "c", "d")
    with listening(own_valkey, 4) as held:
        channel = held[0].channel
        AWAY[fault](own_valkey)
        held[0].reject(requeue=True)
        assert channel.qos.can_consume()
        assert channel.qos.restore_unacked() == []

    said = [record for record in caplog.records if record.name == "workers.transport"]
    assert [record.count for record in said] == [1, 3]


def with_infinite_priority(message: dict[str, Any]) -> None:
    message["properties"]["priority"] = float("inf")


def from_nowhere_that_can_be_written(message: dict[str, Any]) -> None:
    message["properties"]["delivery_info"] = {"exchange": "", "routing_key": "\ud800"}


@pytest.mark.parametrize("make_strange", [with_infinite_priority, from_nowhere_that_can_be_written])
@pytest.mark.parametrize("leaves", [False, True], ids=["refused", "held as it leaves"])
def test_a_strangers_message_that_cannot_be_given_back_ends_here_and_keeps_no_other(
    valkey: ValkeyServer, make_strange: Callable[[dict[str, Any]], None], leaves: bool
) -> None:
    ring_for(valkey, "a", "b", "c")
    messages = lying(valkey)
    make_strange(messages[0])
    valkey.client.delete("ns:online")
    valkey.client.lpush("ns:online", *map(json.dumps, messages))

    with listening(valkey, 3) as held:
        for message in [] if leaves else held:
            message.reject(requeue=True)

    assert [message["headers"]["argsrepr"] for message in lying(valkey)] == ["['b']", "['c']"]


@pytest.mark.parametrize("delivery_info", [{}, {"exchange": ""}, {"exchange": "", "routing_key": ["b"]}, 7])
def test_a_strangers_message_that_could_not_be_given_back_is_dropped_as_it_arrives(
    rung: ValkeyServer, delivery_info: dict[str, Any]
) -> None:
    dropped: list[Any] = []

    def note(message: Any, **about: Any) -> None:
        dropped.append(message)

    [strange, ours] = lying(rung)
    strange["properties"]["delivery_info"] = delivery_info
    rung.client.delete("ns:online")
    rung.client.lpush("ns:online", json.dumps(strange), json.dumps(ours))
    task_rejected.connect(note)
    try:
        with listening(rung, 1) as held:
            assert held[0].headers["argsrepr"] == "['b']"
            held[0].ack()
    finally:
        task_rejected.disconnect(note)

    assert len(dropped) == 1
    assert lying(rung) == []
