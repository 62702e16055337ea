"""The module that `celery -A workers.app worker -P custom` imports.

The tasks' bodies never run: Celery needs them to accept their messages, which the pool reads.
"""

import faulthandler
import sys
import warnings
from typing import Any

from celery.exceptions import SecurityWarning
from celery.signals import setup_logging

from nightshift.broker.queue import BULK_TASK, ONLINE_TASK, celery_app
from nightshift.process.logs import set_up_logging
from nightshift.process.settings import QueueSettings
from workers import transport
from workers.pool import SubscriptionStep

_WRONG_POOL = "start the worker with `nightshift worker`: this task runs only in workers.pool:EnginePool"


def _log_as_the_operator_wants(**_: Any) -> None:
    """Keeps Celery from changing the root logger, which it leaves as it is where there is a receiver."""
    set_up_logging("worker")


# It warns root about pickle; this worker accepts JSON only.
warnings.filterwarnings("ignore", category=SecurityWarning)

if sys.__stderr__ is not None:
    faulthandler.enable(sys.__stderr__)  # a crash in native code says where every thread was

set_up_logging("worker")
setup_logging.connect(_log_as_the_operator_wants)
transport.install()
app = celery_app(QueueSettings())
app.steps["consumer"].add(SubscriptionStep)


@app.task(name=ONLINE_TASK)  # type: ignore[untyped-decorator]
def online(shard_id: str) -> None:
    """Names the task of a ring for an online shard. Raises RuntimeError outside our pool."""
    raise RuntimeError(_WRONG_POOL)


@app.task(name=BULK_TASK)  # type: ignore[untyped-decorator]
def bulk() -> None:
    """Names the task of a ring for bulk work. Raises RuntimeError outside our pool."""
    raise RuntimeError(_WRONG_POOL)
