"""The Celery application of a worker: what `celery -A workers.app worker -P custom` imports.

It declares; the pool, which Celery makes before it connects to the broker, starts the work
(`workers/intake/pool.py`).
"""

import faulthandler
import sys
import warnings
from typing import Any

from celery.exceptions import SecurityWarning
from celery.signals import setup_logging

from nightshift.broker.queue import celery_app
from nightshift.observability import set_up_logging
from nightshift.settings import QueueSettings
from workers.intake import tasks, transport
from workers.intake.pool import ConsumerTap


def _log_as_the_operator_wants(**_: Any) -> None:
    """Where this signal is answered, Celery leaves the root logger and its level as they are."""
    set_up_logging("worker")


# Celery's warning to root is about pickle; this worker accepts JSON alone.
warnings.filterwarnings("ignore", category=SecurityWarning)

if sys.__stderr__ is not None:
    faulthandler.enable(sys.__stderr__)  # a crash in native code says where every thread was

set_up_logging("worker")
setup_logging.connect(_log_as_the_operator_wants)
transport.install()
app = celery_app(QueueSettings())
tasks.declare(app)
app.steps["consumer"].add(ConsumerTap)
