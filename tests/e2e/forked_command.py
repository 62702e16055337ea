"""`python -m tests.e2e.forked_command up …`: the nightshift command, started by a fork server; each process
it starts is forked as well, with what was imported already.
"""

import functools
from dataclasses import replace
from typing import IO, Final

from nightshift.cli import main
from nightshift.cli.processes import up, worker
from nightshift.cli.processes.children import Launch
from nightshift.cli.processes.supervisor import Process, Supervisor
from tests.faults.kit.forks import ForkServer

COMMAND: Final = "nightshift.cli.main"
THIS: Final = "tests.e2e.forked_command"


def run() -> None:
    server = ForkServer.forked()

    def spawn(launch: Launch, output: IO[bytes] | None) -> Process:
        command = tuple(THIS if part == COMMAND else part for part in launch.command)
        return server.spawn(replace(launch, command=command), output)

    up.Supervisor = functools.partial(Supervisor, spawn=spawn)  # type: ignore[assignment,misc]
    worker.keep_running = functools.partial(worker.keep_running, spawn=spawn)
    main.main()


if __name__ == "__main__":
    run()
