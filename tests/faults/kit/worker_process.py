"""`python -m tests.faults.kit.worker_process`: `nightshift worker` with the fake engine in it, or with our
own or upstreams if it is told `real`. The same supervisor, the same restarts, the same release of a dead
worker's leases.
"""

import sys

from nightshift.cli.processes.gpus import WHOLE_MACHINE
from nightshift.cli.processes.supervisor import run_program
from nightshift.cli.processes.worker import keep_running
from nightshift.cli.processes.worker_child import worker_children
from nightshift.process.settings import WorkerSettings
from tests.faults.kit.forks import ForkServer, was_forked

APP = "tests.faults.kit.worker_app"

if __name__ == "__main__":
    spawn = ForkServer.forked().spawn if was_forked() else run_program
    is_fake = sys.argv[1:] != ["real"]
    fakes = {"app": APP, "pool": f"{APP}:FakePool"} if is_fake else {}
    keep_running(worker_children(WorkerSettings(), [WHOLE_MACHINE], **fakes), spawn)
