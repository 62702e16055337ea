"""Processes forked from one that has imported everything already, as if their command lines had been run.

    spawn = fork_server().spawn  # for a Supervisor
    spawn(Launch((sys.executable, "-P", "-m", "scheduler"), environment), log)

Importing takes most of a start: 0.5 to 1 s of CPU for each of the service's processes. What is forked is a
child of the process that asked, in a session of its own, with the environment, folder and output it was
given; it ends with its parent, and its exit code is its parent's to collect. The kernel makes it so: the
server forks twice, and the process whose own parent ends at once falls to the nearest ancestor that takes
orphans in.

    asks ── request ──► server ──► (ends at once) ──► the process
      ▲                                                   │ falls to
      └───────────────────────────────────────────────────┘

A command that is not `python -P -m module`, or whose environment must be there before Python starts, is run
as a program.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from nightshift.cli.processes.children import Launch
from nightshift.cli.processes.supervisor import Process, run_program
from nightshift_engine import limit_spinning

# What the service's processes import, but for modules that do something when they are imported.
PRELOADED: Final = (
    *("api.app", "scheduler.__main__", "nightshift.cli.main", "nightshift.cli.processes.worker_child"),
    *(
        "workers.composition",
        "workers.pool",
        "tests.faults.kit.fake_engine",
        "nightshift.objectstore.s3",
    ),
    *("uvicorn", "uvicorn.loops.auto", "uvicorn.protocols.websockets.auto", "uvicorn.lifespan.on"),
    *("celery.bin.celery", "celery.apps.worker", "celery.fixups.django", "kombu.transport.redis"),
    *(
        "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.dialects.sqlite.pysqlite",
        "psycopg",
        "psycopg_binary",
    ),
)
# Besides, of a worker with our own engine: 5 s of CPU.
PRELOADED_WITH_ENGINE: Final = ("workers.serving.loading", "transformers.models.llama.modeling_llama")
# One of these is executed anew in the process that runs it.
RUN: Final = ("scheduler.__main__", "nightshift.cli.main", "api.services.preview_child")
# They read the environment as they are imported: each process imports them again.
READ_ENVIRONMENT: Final = ("nightshift.process.failpoints", "celery.concurrency")
NAME: Final = "fork-server"
NAME_BYTES_MAX: Final = 15
REQUEST_BYTES_MAX: Final = 128 * 1024

_libc: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36


class Forked:
    """A child that was forked elsewhere."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._returncode: int | None = None
        self._collecting = threading.Lock()  # after it, the pid may be another process's

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def returncode(self) -> int:
        assert self._returncode is not None, "not waited for"
        return self._returncode

    def wait(self) -> int:
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        with self._collecting:
            if self._returncode is None:
                _, status = os.waitpid(self._pid, 0)
                self._returncode = os.waitstatus_to_exitcode(status)
        return self._returncode

    def send_signal(self, sig: int, /) -> None:
        with self._collecting:
            if self._returncode is None:
                os.kill(self._pid, sig)


class ForkServer:
    """The process that forks, as the one it forks for sees it."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._one_at_a_time = threading.Lock()

    @classmethod
    def started(cls, *, with_engine: bool = False) -> "ForkServer":
        """Starts a fresh Python, which has imported `PRELOADED` when the first request is answered."""
        ours, theirs = _socket_pair()
        arguments = f"{theirs.fileno()}, with_engine={with_engine}"
        with theirs:
            process = subprocess.Popen(
                (sys.executable, "-P", "-c", f"from {__name__} import main; main({arguments})"),
                env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        atexit.register(_end, process, ours)
        return cls(ours)

    @classmethod
    def forked(cls) -> "ForkServer":
        """Runs in a copy of this process, which has one thread and has opened nothing yet."""
        ours, theirs = _socket_pair()
        if os.fork() == 0:
            ours.close()
            _end_with_parent()
            _serve(theirs)
        theirs.close()
        return cls(ours)

    def spawn(
        self,
        launch: Launch,
        output: IO[bytes] | None,
        *,
        given: IO[bytes] | None = None,
        errors: IO[bytes] | None = None,
    ) -> Process:
        """Stands in for the function with which a Supervisor starts its children.

        `given` is the standard input of what is forked, by default empty; `errors` take its standard error
        apart from its output.
        """
        environment = {**os.environ, **launch.environment}
        if launch.command[:3] != (sys.executable, "-P", "-m") or "LD_PRELOAD" in environment:
            return run_program(launch, output)
        request = {
            "module": launch.command[3],
            "arguments": launch.command[4:],
            "environment": environment,
            "folder": os.getcwd(),
            "parent": os.getpid(),
        }
        outputs = [output.fileno()] * 2 if output is not None else [1, 2]
        if errors is not None:
            outputs[1] = errors.fileno()
        with self._one_at_a_time, open(os.devnull, "rb") as nothing:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(
                    self._requests, [json.dumps(request).encode()], [(given or nothing).fileno(), *outputs]
                )
                answer = self._requests.recv(REQUEST_BYTES_MAX)
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)
        assert answer, "the fork server has ended"
        return Forked(int(answer))


def fork_server(*, with_engine: bool = False) -> ForkServer:
    """The one of this process; to be called first in its main thread, which the server ends with."""
    return _started(with_engine)


def run_forked(
    command: Sequence[str], *, input: bytes, env: Mapping[str, str], **_: object
) -> "subprocess.CompletedProcess[bytes]":
    """Stands in for `subprocess.run` with captured output, once `fork_server` has been called; its time limit
    is the process's own.
    """
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        given.write(input)
        for file in (given, output, errors):
            file.seek(0)
        launch = Launch(tuple(command), env)
        returncode = fork_server().spawn(launch, output, given=given, errors=errors).wait()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, returncode, output.read(), errors.read())


@functools.cache
def _started(with_engine: bool) -> ForkServer:
    return ForkServer.started(with_engine=with_engine)


def _end(process: "subprocess.Popen[bytes]", requests: socket.socket) -> None:
    requests.close()
    process.wait()


def is_server(pid: int) -> bool:
    """Whether a child is a fork server, and none of those it was asked for."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == NAME
    except OSError:  # it ends just now
        return False


def forked_module(pid: int) -> str | None:
    """The beginning of the name of the module that a forked process runs. None: it was not forked, or is a
    server. Raises OSError: it has gone.
    """
    process = Path(f"/proc/{pid}")
    name = (process / "comm").read_text().strip()
    is_fork = __name__.encode() in (process / "cmdline").read_bytes()
    return name if is_fork and name != NAME else None


def was_forked() -> bool:
    """Whether this process comes from a fork server."""
    return _was_forked


_was_forked = False


def main(requests_fd: int, *, with_engine: bool = False) -> None:
    """The server: `python -c "from tests.faults.kit.forks import main; main(3)"`."""
    _end_with_parent()
    for module in PRELOADED:
        importlib.import_module(module)
    if with_engine:
        _import_engine()
    _serve(socket.socket(fileno=requests_fd))


def _import_engine() -> None:
    """As a worker does that downloads nothing: what is imported reads the environment."""
    limit_spinning(os.environ)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for module in PRELOADED_WITH_ENGINE:
        importlib.import_module(module)


def _serve(requests: socket.socket) -> NoReturn:
    """Fork for each request; each process that is forked runs what was asked for."""
    _libc.prctl(_PR_SET_NAME, NAME.encode()[:NAME_BYTES_MAX])
    gc.collect()
    gc.freeze()  # a collection would touch, and so copy, every page that the processes share
    while True:
        message, standard, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not message:
            os._exit(0)
        is_adopted, adopted = os.pipe()
        pid = _fork_twice()
        if pid == 0:
            os.close(adopted)
            requests.close()
            os.read(is_adopted, 1)
            os.close(is_adopted)
            _become(json.loads(message), standard)
        requests.send(str(pid).encode())
        for descriptor in (*standard, is_adopted, adopted):
            os.close(descriptor)


def _fork_twice() -> int:
    """The grandchild's process id, once its parent has ended; 0 in the grandchild."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            os.close(reader)
            os.close(writer)
            return 0
        os.write(writer, str(grandchild).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as file:
        return int(file.read())


def _become(request: dict[str, Any], standard: list[int]) -> NoReturn:
    """Runs the module as `python -m` does, in this process."""
    global _was_forked
    _was_forked = True
    os.setsid()
    _end_with_parent()
    if os.getppid() != request["parent"]:  # it was gone before this process could ask
        os._exit(128 + signal.SIGKILL)
    _libc.prctl(_PR_SET_NAME, request["module"].encode()[:NAME_BYTES_MAX])
    for descriptor, file in enumerate(standard):
        os.dup2(file, descriptor)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for module in READ_ENVIRONMENT:
        importlib.reload(importlib.import_module(module))
    sys.argv = [request["module"], *request["arguments"]]
    for name in (request["module"], f"{request['module']}.__main__"):
        if name in RUN:
            sys.modules.pop(name, None)
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        _leave(ended.code)
    _leave(None)


def _leave(code: object) -> NoReturn:
    """Ends as Python does, but for taking every module apart, which would copy what the processes share."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code or 0)


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
