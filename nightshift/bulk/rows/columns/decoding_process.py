"""The process that decodes Parquet and Arrow: `python -m nightshift.bulk.rows.columns.decoding_process`.

pyarrow trusts a file's own sizes, so a small file may take all memory, never end, or crash. It is read here,
within limits of memory and CPU time, and without the service's credentials: the process that reads the rows
sends the bytes. This process starts once and forks for each object, because importing pyarrow takes 0.1 s and
a fork 2 ms. Nothing of an object is left when the next one is read.

Standard input is a socket. Each message on it brings two more: the forked process serves the first; through
the second this process tells how the forked one ended, and kills it when the other end is closed.
"""

import gc
import math
import os
import resource
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress

from nightshift.bulk.rows.columns.decoded_objects import decode
from nightshift.bulk.rows.columns.messages import CPU_S, MEMORY_BYTES_MAX, Channel


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # it ends with the process that started it
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()
    _Forks(socket.socket(fileno=sys.stdin.fileno())).run()


class _Forks:
    """The forked processes, each with the socket that tells how it ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, socket.socket] = {}
        ended, wake_up = socket.socketpair()
        wake_up.setblocking(False)
        self._sockets = (control, ended, wake_up)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_up.fileno())
        self._selector.register(control, selectors.EVENT_READ, self._fork)
        self._selector.register(ended, selectors.EVENT_READ, lambda: self._reap(ended))

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _fork(self) -> None:
        _, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
        if len(descriptors) != 2:  # the process that asks has ended
            for process in self._watched:
                os.kill(process, signal.SIGKILL)
            sys.exit()
        served, watched = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        process = os.fork()
        if not process:
            for other in (*self._sockets, *self._watched.values(), watched):
                other.close()
            self._selector.close()
            _serve(served)
        served.close()
        self._watched[process] = watched
        self._selector.register(watched, selectors.EVENT_READ, lambda: self._kill(process))

    def _kill(self, process: int) -> None:
        if process in self._watched:
            self._selector.unregister(self._watched[process])
            os.kill(process, signal.SIGKILL)

    def _reap(self, ended: socket.socket) -> None:
        ended.recv(512)
        while self._watched:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            watched = self._watched.pop(process)
            with suppress(KeyError):
                self._selector.unregister(watched)
            with suppress(OSError):
                watched.sendall(b"%d" % os.waitstatus_to_exitcode(status))
            watched.close()


def _serve(served: socket.socket) -> None:
    """Decodes one object, in the forked process, which ends with it."""
    try:
        signal.set_wakeup_fd(-1)
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)  # what a library says as it crashes may quote the object
        _limit_memory()
        decode(Channel(served), _limit_cpu)
    except (EOFError, OSError):
        pass  # the process that reads has closed its end
    finally:
        os._exit(0)


def _limit_memory() -> None:
    """Limits the address space, on Linux: macOS has no such limit."""
    _limit(resource.RLIMIT_CORE, 0)
    with suppress(FileNotFoundError), open("/proc/self/statm", encoding="ascii") as pages:
        held_bytes = int(pages.read().split()[0]) * resource.getpagesize()
        _limit(resource.RLIMIT_AS, held_bytes + MEMORY_BYTES_MAX)


def _limit_cpu() -> None:
    """Gives the process CPU_S more from now on."""
    _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + CPU_S)


def _limit(kind: int, value: int) -> None:
    """Sets a limit of this process, within what its parents have left it."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main()
