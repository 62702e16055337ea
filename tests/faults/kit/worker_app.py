"""The worker's Celery application with the fake engine: `celery --app tests.faults.kit.worker_app`."""

import os
from typing import Any, Final

from kombu.transport import virtual

from nightshift.process import failpoints
from tests.faults.kit.fake_engine import load_fakes
from workers.app import app
from workers.composition import compose
from workers.intake.claiming import IntakeTimes
from workers.pool import EnginePool
from workers.runtime import Runtime, RuntimeTimes

__all__ = ["FakePool", "app"]

ONLINE_DRAIN_S: Final = "NIGHTSHIFT_FAKE_ONLINE_DRAIN_S"  # how long a drain waits for online requests
POLL_S: Final = "NIGHTSHIFT_FAKE_POLL_S"  # between two looks into the database


class FakePool(EnginePool):
    """The worker's pool; only the models are not."""

    def compose(self) -> Runtime:
        usual = RuntimeTimes()
        poll_s = float(os.environ.get(POLL_S, usual.intake.poll_s))
        online_drain_s = float(os.environ.get(ONLINE_DRAIN_S, usual.online_drain_s))
        return compose(load_fakes, RuntimeTimes(online_drain_s, IntakeTimes(poll_s)))


def _die_with_a_message_in_hand() -> None:
    """kombu has taken a message off its list and not given it to Celery yet."""
    append = virtual.QoS.append

    def hit_and_append(self: Any, *arguments: Any, **options: Any) -> Any:
        failpoints.hit("worker.fetched")
        return append(self, *arguments, **options)

    virtual.QoS.append = hit_and_append


_die_with_a_message_in_hand()
