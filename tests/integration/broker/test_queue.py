"""The queue on a real Valkey: what is sent, in which order it is received, and what a dead one costs."""

import base64
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from kombu import Message, compression
from kombu.exceptions import ContentDisallowed

from nightshift.broker.queue import BULK_QUEUE, BULK_TASK, ONLINE_QUEUE, ONLINE_TASK, Queue, celery_app
from nightshift.errors import QueueUnavailable
from nightshift.jobs import JobKind
from nightshift.jobs.shard import Ring
from nightshift.process.settings import QueueSettings
from tests.integration.servers import ValkeyServer

PUBLISH_TIMEOUT_S = 0.2
WAIT_MAX_S = 6.0  # far above the publish timeout, below the ten seconds a worker waits for its broker

AWAY: dict[str, Callable[[ValkeyServer], None]] = {
    "killed": lambda server: server.kill(),
    "frozen": lambda server: server.freeze(),
    "full": lambda server: fill(server),
}


def fill(server: ValkeyServer) -> None:
    server.client.config_set("maxmemory", 1)


def online(shard_id: str = "shard_1", rank: int = 0) -> Ring:
    return Ring(1, JobKind.ONLINE, shard_id, rank)


def bulk(rank: int = 1) -> Ring:
    return Ring(1, JobKind.BULK, None, rank)


def settings_of(server: ValkeyServer) -> QueueSettings:
    return server.settings.model_copy(update={"publish_timeout_s": PUBLISH_TIMEOUT_S})


@pytest.fixture
def queue(valkey: ValkeyServer) -> Iterator[Queue]:
    queue = Queue(valkey.settings)
    yield queue
    queue.close()


def heard(server: ValkeyServer, *queues: str, count: int) -> list[Message]:
    """Messages that a worker hears next, one at a time, each acknowledged."""
    app = celery_app(server.settings)
    messages: list[Message] = []

    def listen(body: Any, message: Message) -> None:
        messages.append(message)
        message.ack()

    with app.connection_for_read() as connection:
        wanted = [app.amqp.queues[name] for name in queues]
        with connection.Consumer(wanted, callbacks=[listen], accept=["json"]) as consumer:
            consumer.qos(prefetch_count=1)
            while len(messages) < count:
                connection.drain_events(timeout=WAIT_MAX_S)
    return messages


def arguments(message: Message) -> list[Any]:
    """The positional arguments of the task a message calls."""
    positional, named, _ = message.payload
    assert named == {}
    return list(positional)


def waiting(server: ValkeyServer) -> list[str]:
    """The shards whose rings no worker has fetched yet, the latest first."""
    envelopes = [json.loads(raw) for raw in server.client.lrange("ns:online", 0, -1)]
    return [json.loads(base64.b64decode(envelope["body"]))[0][0] for envelope in envelopes]


def test_an_online_ring_names_the_shard_and_nothing_else_and_a_bulk_ring_nothing(
    queue: Queue, valkey: ValkeyServer
) -> None:
    queue.ping()
    assert queue.length(ONLINE_QUEUE) == 0
    queue.ring([online("shard_k3v9"), bulk(), bulk()])
    assert (queue.length(ONLINE_QUEUE), queue.length(BULK_QUEUE)) == (1, 2)

    [message] = heard(valkey, ONLINE_QUEUE, count=1)
    assert (message.headers["task"], arguments(message)) == (ONLINE_TASK, ["shard_k3v9"])
    [message] = heard(valkey, BULK_QUEUE, count=1)
    assert (message.headers["task"], arguments(message)) == (BULK_TASK, [])


def test_messages_lie_in_redis_as_json_under_our_prefix(queue: Queue, valkey: ValkeyServer) -> None:
    queue.ring([online("shard_1", rank=0), bulk(rank=2)])

    keys = {key for key in valkey.client.scan_iter() if not key.startswith(b"ns:_kombu.")}
    assert keys == {b"ns:online", b"ns:bulk:8"}
    envelope = json.loads(valkey.client.lrange("ns:online", 0, -1)[0])
    assert envelope["content-type"] == "application/json"
    assert json.loads(base64.b64decode(envelope["body"]))[0] == ["shard_1"]


def test_better_classes_are_fetched_first_and_each_in_order(queue: Queue, valkey: ValkeyServer) -> None:
    queue.ring([online(f"{rank}-{n}", rank=rank) for n in range(2) for rank in (2, 1, 0)])

    order = [arguments(message)[0] for message in heard(valkey, ONLINE_QUEUE, count=6)]

    assert order == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]


def test_of_one_class_online_work_is_fetched_before_bulk_work(queue: Queue, valkey: ValkeyServer) -> None:
    for rank in (1, 0):
        queue.ring([bulk(rank), online("a", rank), online("b", rank)])

    order = [message.headers["task"] for message in heard(valkey, ONLINE_QUEUE, BULK_QUEUE, count=6)]

    assert order == [ONLINE_TASK, ONLINE_TASK, BULK_TASK] * 2


def test_rings_of_many_threads_all_arrive(valkey: ValkeyServer) -> None:
    """The first use of a queue, too, may be from many threads at once."""
    queue, threads, rings_each = Queue(valkey.settings), 32, 5
    start = Barrier(threads)

    def ring_some(name: int) -> None:
        start.wait(WAIT_MAX_S)
        for n in range(rings_each):
            queue.ring([online(f"shard_{name}_{n}")])

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(ring_some, name) for name in range(threads)]:
            future.result(WAIT_MAX_S)

    everything = [f"shard_{name}_{n}" for name in range(threads) for n in range(rings_each)]
    assert sorted(waiting(valkey)) == sorted(everything)
    queue.close()


@pytest.mark.parametrize("fault", AWAY)
@pytest.mark.parametrize(
    ("was_used_before", "count"),
    [
        (True, 3),
        (False, 1),
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in ((True, 1), (False, 3))),
    ],
)
def test_a_ring_fails_when_redis_is_away(
    own_valkey: ValkeyServer, fault: str, was_used_before: bool, count: int
) -> None:
    queue = Queue(settings_of(own_valkey))
    if was_used_before:
        queue.ring([online()])
    AWAY[fault](own_valkey)

    for _ in range(2):
        with pytest.raises(QueueUnavailable):
            queue.ring([online()] * count)


@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_redis_that_is_away_does_not_answer_a_ping_or_a_count(own_valkey: ValkeyServer, fault: str) -> None:
    queue = Queue(settings_of(own_valkey))
    AWAY[fault](own_valkey)

    with pytest.raises(QueueUnavailable):
        queue.ping()
    with pytest.raises(QueueUnavailable):
        queue.length(ONLINE_QUEUE)


def test_a_frozen_redis_delays_no_sender_for_long_however_many_ring(own_valkey: ValkeyServer) -> None:
    """A generous limit, no measurement: these threads used to wait ten seconds each, and for each other."""
    queue, threads = Queue(settings_of(own_valkey)), 16
    queue.ring([online()])
    own_valkey.freeze()

    def ring() -> None:
        with pytest.raises(QueueUnavailable):
            queue.ring([online(), bulk()])

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(ring) for _ in range(threads)]:
            future.result(WAIT_MAX_S)


def test_a_thawed_redis_is_rung_again(own_valkey: ValkeyServer) -> None:
    queue = Queue(settings_of(own_valkey))
    queue.ring([online("before")])
    own_valkey.freeze()
    with pytest.raises(QueueUnavailable):
        queue.ring([online("meanwhile")])
    own_valkey.thaw()

    queue.ring([online("after")])

    # The one sent meanwhile may still arrive, from the kernel's buffers: a ring too many does no harm.
    assert {"before", "after"} <= set(waiting(own_valkey))


@pytest.mark.parametrize("count", [1, 3])
def test_a_redis_that_was_restarted_is_rung_again(own_valkey: ValkeyServer, count: int) -> None:
    queue = Queue(settings_of(own_valkey))
    queue.ring([online("before")] * count)
    own_valkey.kill()
    with pytest.raises(QueueUnavailable):
        queue.ring([online("meanwhile")] * count)
    own_valkey.start()
    own_valkey.client.flushall()  # whether a second of its log was lost is another test's subject

    queue.ring([online("after")])

    assert [arguments(message) for message in heard(own_valkey, ONLINE_QUEUE, count=1)] == [["after"]]


def test_rings_after_a_flush_arrive(queue: Queue, valkey: ValkeyServer) -> None:
    """Losing all of Redis loses the bindings of its queues, too."""
    queue.ring([online("lost")])
    valkey.client.flushall()

    queue.ring([online("kept")])

    assert [arguments(message) for message in heard(valkey, ONLINE_QUEUE, count=1)] == [["kept"]]


@pytest.mark.parametrize("name", compression.encoders())
def test_a_message_that_says_it_is_compressed_is_not_unpacked(valkey: ValkeyServer, name: str) -> None:
    celery_app(valkey.settings)
    body, content_type = compression.compress(b"[]", name)

    message = Message(body=body, content_type="application/json", headers={"compression": content_type})

    with pytest.raises(ContentDisallowed):
        message._reraise_error()  # as a consumer does
    assert message.body == body
