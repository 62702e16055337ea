"""`python -m benchmarks.service.worker_process`: `nightshift worker` with a pool of `worker_app`."""

import os

from nightshift.cli.worker import keep_running
from nightshift.processes.worker_child import worker_child
from nightshift.settings import PREFIX, WorkerSettings

APP = "benchmarks.service.worker_app"
POOL = "BENCH_POOL"
"""A setting: which of its pools."""

if __name__ == "__main__":
    keep_running(worker_child(WorkerSettings(), app=APP, pool=f"{APP}:{os.environ[PREFIX + POOL]}"))
