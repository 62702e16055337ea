"""The watchdog tells what is stuck from what is not."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from nightshift.broker.queue import BULK_QUEUE, ONLINE_QUEUE
from nightshift.errors import QueueUnavailable
from nightshift.fleet.workers import (
    EXIT_ENGINE_DIED,
    EXIT_QUEUE_CONNECTION_LOST,
    EXIT_STUCK_LOAD,
    EXIT_STUCK_STEP,
)
from nightshift.jobs.priorities import ROOM_FOR_ALL, Room
from tests.unit.workers.scripted import ManualClock
from workers.health.watchdog import (
    DeadThread,
    Finding,
    SilentConsumer,
    Stuck,
    Watchdog,
    queues_with_places,
)


@dataclass
class UnderWay:
    """A step or a load."""

    began_s: float | None = None

    def stuck(self, limit_s: float, exit_code: int = EXIT_STUCK_STEP) -> Stuck:
        return Stuck(lambda: {"a step": self.began_s}, limit_s, exit_code)


def codes(findings: list[Finding | None]) -> list[int | None]:
    return [finding and finding.exit_code for finding in findings]


@pytest.mark.parametrize("exit_code", [EXIT_STUCK_STEP, EXIT_STUCK_LOAD])
def test_a_step_that_does_not_end_is_stuck_and_many_that_do_are_not(exit_code: int) -> None:
    step = UnderWay(100.0)
    check = step.stuck(3, exit_code)
    assert codes([check.look(1.0) for _ in range(3)]) == [None] * 3

    step.began_s = 103.0
    assert codes([check.look(1.0) for _ in range(3)]) == [None] * 3
    step.began_s = None
    assert check.look(60.0) is None, "it is idle"
    step.began_s = 110.0

    findings = [check.look(1.0) for _ in range(4)]
    assert findings == [None, None, None, Finding(exit_code, "a step has not ended for 3 s")]
    without_limit = step.stuck(0, exit_code)
    assert codes([without_limit.look(1.0) for _ in range(100)]) == [None] * 100


def test_a_process_that_was_stopped_as_a_whole_is_not_stuck() -> None:
    clock = ManualClock()
    watchdog = Watchdog([UnderWay(1.0).stuck(10)], on_finding=lambda finding: None, clock_s=clock)
    watchdog.look()
    clock.advance(3600)

    assert watchdog.look() is None


def test_a_thread_that_has_ended_is_as_bad_as_a_dead_engine() -> None:
    alive = {"intake": True, "heartbeat": True}
    check = DeadThread({name: lambda name=name: alive[name] for name in alive})
    assert check.look(1.0) is None

    alive["heartbeat"] = False
    finding = check.look(1.0)

    assert finding == Finding(EXIT_ENGINE_DIED, "the thread `heartbeat` has ended")


@dataclass
class Consumer:
    """A worker with two free places and a queue."""

    received: int = 0
    without_message: int = 0
    subscribed_to: tuple[str, ...] = (ONLINE_QUEUE, BULK_QUEUE)
    waiting: dict[str, int] = field(default_factory=dict)
    is_away: bool = False

    def lengths(self, queues: Sequence[str]) -> list[int]:
        if self.is_away:
            raise QueueUnavailable
        return [self.waiting.get(queue, 0) for queue in queues]

    def check(self, limit_s: float = 10) -> SilentConsumer:
        return SilentConsumer(
            self, lambda: self.received, lambda: self.without_message, lambda: self.subscribed_to, limit_s
        )


def test_a_consumer_that_receives_nothing_while_messages_wait_is_silent() -> None:
    consumer = Consumer(waiting={ONLINE_QUEUE: 1})
    check, without_limit = consumer.check(limit_s=10), consumer.check(limit_s=0)
    for _ in range(5):
        assert codes([check.look(5.0), check.look(4.0)]) == [None] * 2
        consumer.received += 1  # one is enough
        assert check.look(1.0) is None

    assert codes([check.look(1.0) for _ in range(10)]) == [None] * 9 + [EXIT_QUEUE_CONNECTION_LOST]
    assert codes([without_limit.look(5.0) for _ in range(100)]) == [None] * 100


def test_requests_found_by_polling_count_like_messages_that_wait() -> None:
    consumer = Consumer()
    check = consumer.check(limit_s=10)
    consumer.without_message += 1
    assert check.look(5.0) is None
    consumer.without_message += 1

    assert codes([check.look(5.0)]) == [EXIT_QUEUE_CONNECTION_LOST]


@pytest.mark.parametrize(
    "well",
    [
        {"waiting": {}},
        {"waiting": {ONLINE_QUEUE: 1, BULK_QUEUE: 5}, "subscribed_to": ()},
        {"waiting": {BULK_QUEUE: 5}, "subscribed_to": (ONLINE_QUEUE,)},
        {"waiting": {ONLINE_QUEUE: 1}, "is_away": True},
    ],
    ids=["nothing waits", "no places", "tokens for others", "redis is away"],
)
def test_a_consumer_that_has_nothing_to_receive_is_not_silent(well: dict[str, object]) -> None:
    check = Consumer(**well).check(limit_s=10)  # type: ignore[arg-type]

    assert codes([check.look(5.0) for _ in range(20)]) == [None] * 20


def test_a_worker_takes_messages_from_the_queues_it_has_places_for() -> None:
    assert queues_with_places(online_free=1, bulk_room=None) == (ONLINE_QUEUE,)
    assert queues_with_places(online_free=0, bulk_room=ROOM_FOR_ALL) == (BULK_QUEUE,)
    assert queues_with_places(online_free=0, bulk_room=Room(full_models=frozenset({"demo"}))) == ()
