"""The worker's Celery application with the fake engine: `celery --app tests.faults.kit.worker_app`."""

import os
from typing import Any, Final

from kombu.transport import virtual

from nightshift.process import failpoints
from tests.faults.kit.fake_engine import load_fakes
from workers import composition, runtime
from workers.app import app
from workers.intake import claiming
from workers.pool import EnginePool
from workers.runtime import Runtime

__all__ = ["FakePool", "app"]

ONLINE_DRAIN_S: Final = "NIGHTSHIFT_FAKE_ONLINE_DRAIN_S"  # how long a drain waits for online requests
POLL_S: Final = "NIGHTSHIFT_FAKE_POLL_S"  # between two looks into the database


class FakePool(EnginePool):
    """The worker's pool; only the models are not."""

    def compose(self) -> Runtime:
        return composition.compose(load_fakes)


def _die_with_a_message_in_hand() -> None:
    """kombu has taken a message off its list and not given it to Celery yet."""
    append = virtual.QoS.append

    def hit_and_append(self: Any, *arguments: Any, **options: Any) -> Any:
        failpoints.hit("worker.fetched")
        return append(self, *arguments, **options)

    virtual.QoS.append = hit_and_append


runtime.ONLINE_DRAIN_S = float(os.environ.get(ONLINE_DRAIN_S, runtime.ONLINE_DRAIN_S))
claiming.POLL_S = float(os.environ.get(POLL_S, claiming.POLL_S))  # type: ignore[misc]
_die_with_a_message_in_hand()
