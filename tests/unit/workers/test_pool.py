"""Messages as Celery hands them over: understood, or acknowledged and dropped; no exception in its loop."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery.exceptions import Reject

from nightshift.broker.queue import BULK_TASK, ONLINE_TASK
from nightshift.errors import ConfigurationError, DatabaseUnavailable, DatabaseUnusable, InvalidRequest
from nightshift.process.exit_codes import CONFIGURATION_EXIT, UNAVAILABLE_EXIT
from workers.intake.messages import Receipt
from workers.pool import EnginePool

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@dataclass
class Intake:
    online: list[tuple[str, int]] = field(default_factory=list)
    senders: list[str | None] = field(default_factory=list)
    bulk: list[int] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    dropped: int = 0

    def online_rang(
        self, shard_id: str, priority: int, receipt: Receipt, traceparent: str | None = None
    ) -> None:
        self.online.append((shard_id, priority))
        self.senders.append(traceparent)
        self.receipts.append(receipt)

    def bulk_rang(self, priority: int, receipt: Receipt) -> None:
        self.bulk.append(priority)
        self.receipts.append(receipt)

    def message_dropped(self) -> None:
        self.dropped += 1


@dataclass
class Runtime:
    intake: Intake = field(default_factory=Intake)


@dataclass
class Delivered:
    """Notes what Celery is told about one message."""

    accepted: int = 0
    done: int = 0
    failed: list[ExceptionInfo] = field(default_factory=list)


@pytest.fixture
def pool() -> EnginePool:
    pool = EnginePool()
    pool._runtime = Runtime()  # type: ignore[assignment]
    return pool


def deliver(
    pool: EnginePool,
    task: str,
    body: Any,
    *,
    content_type: str = "application/json",
    priority: int = 0,
    **more: Any,
) -> Delivered:
    told = Delivered()

    def accept(pid: int, at: float) -> None:
        told.accepted += 1

    def done(result: tuple[int, None, float]) -> None:
        told.done += 1

    headers = {"delivery_info": {"priority": priority}} | more
    arguments = (task, "id", headers, body, content_type, "utf-8")
    pool.on_apply(
        lambda: None, arguments, {}, accept_callback=accept, callback=done, error_callback=told.failed.append
    )
    return told


def message(*arguments: Any) -> str:
    return json.dumps([list(arguments), {}, {"callbacks": None}])


def test_an_online_message_names_a_shard_and_keeps_its_priority(pool: EnginePool) -> None:
    told = deliver(pool, ONLINE_TASK, message("shard_1"), priority=4)

    assert pool._runtime.intake.online == [("shard_1", 4)]
    assert told.done == 0, "it is acknowledged when its claim has committed"

    told = deliver(pool, ONLINE_TASK, message("shard_2", {"hint": "of a later version"}))
    assert pool._runtime.intake.online[1:] == [("shard_2", 0)]
    assert told.done == 0


@pytest.mark.parametrize("traceparent", [TRACEPARENT, None, 7, ["a"], {}, b"00", "x" * 10_000_000, True])
def test_an_online_message_may_name_the_span_that_has_sent_it(pool: EnginePool, traceparent: Any) -> None:
    deliver(pool, ONLINE_TASK, message("shard_1"), traceparent=traceparent)

    assert pool._runtime.intake.online == [("shard_1", 0)]
    assert pool._runtime.intake.senders == [traceparent if traceparent == TRACEPARENT else None]


def test_a_bulk_message_says_nothing_but_that_there_is_work(pool: EnginePool) -> None:
    deliver(pool, BULK_TASK, message(), priority=8)

    assert pool._runtime.intake.bulk == [8]


PICKLE = {"content_type": "application/x-python-serialize"}
UNREADABLE = [message(), message(5), message(["a"]), '["a", {}]', "{not json", "null", "[]", "7", b"\xff\xfe"]


@pytest.mark.parametrize(
    ("task", "body", "more"),
    [
        *((ONLINE_TASK, body, {}) for body in [*UNREADABLE, message("shard_\x00")]),
        (ONLINE_TASK, "cos\nsystem\n(S'true'\ntR.", PICKLE),
        ("nightshift.of_tomorrow", message("shard_1"), {}),
    ],
)
def test_an_unreadable_message_is_acknowledged_and_dropped(
    pool: EnginePool, task: str, body: Any, more: dict[str, str]
) -> None:
    told = deliver(pool, task, body, **more)

    assert told.done == 1
    assert pool._runtime.intake.online == []
    assert pool._runtime.intake.dropped == 1


def test_a_token_that_is_not_needed_goes_back_into_the_queue(pool: EnginePool) -> None:
    told = deliver(pool, BULK_TASK, message())

    pool._runtime.intake.receipts[0].give_back()

    assert told.done == 0
    assert told.failed[0].type is Reject
    assert told.failed[0].exception.exc.requeue


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError(), CONFIGURATION_EXIT),
        (DatabaseUnusable(), CONFIGURATION_EXIT),
        (InvalidRequest("'ftp://x' is not a location"), CONFIGURATION_EXIT),
        (NotADirectoryError(), CONFIGURATION_EXIT),
        (DatabaseUnavailable(), UNAVAILABLE_EXIT),
    ],
)
def test_a_worker_that_cannot_start_says_whether_later_is_better(error: Exception, code: int) -> None:
    class Unable(EnginePool):
        def compose(self) -> Any:
            raise error

    with pytest.raises(SystemExit) as ended:
        Unable().on_start()

    assert ended.value.code == code


@pytest.mark.parametrize("priority", ["high", None, [], 4.5, {"high": 1}, float("nan")])
def test_messages_are_sorted_by_a_number_even_if_they_have_none(pool: EnginePool, priority: Any) -> None:
    deliver(pool, ONLINE_TASK, message("shard_1"), priority=priority)
    deliver(pool, BULK_TASK, message(), priority=priority)

    assert pool._runtime.intake.online == [("shard_1", 0)]
    assert pool._runtime.intake.bulk == [0]
