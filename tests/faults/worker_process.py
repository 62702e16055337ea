"""`python -m tests.faults.worker_process`: `nightshift worker` with the fake engine in it. The same
supervisor, the same restarts, the same release of a dead worker's leases.
"""

from nightshift.cli.worker import keep_running
from nightshift.processes.worker_child import worker_child
from nightshift.settings import WorkerSettings

APP = "tests.faults.worker_app"

if __name__ == "__main__":
    keep_running(worker_child(WorkerSettings(), app=APP, pool=f"{APP}:FakePool"))
