"""Points in the code at which a process can kill itself, to test what its end leaves behind.

    NIGHTSHIFT_FAILPOINT=worker.claimed        kill -9 itself there, at every start
    NIGHTSHIFT_FAILPOINT=worker.row_heard:17   … at the 17th hit
    NIGHTSHIFT_FAILPOINT_DIR=/run/failpoints   a file of that name arms the point while the service runs;
                                               the first process there removes the file and dies
    NIGHTSHIFT_FAILPOINT_LOG=/run/points.log   no process dies: each writes the time of its hit

The environment is read at import; without these variables `hit` does nothing. docs/failpoints.md says what
each point leaves behind and what repairs it.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

FAILPOINT: Final = "NIGHTSHIFT_FAILPOINT"
FAILPOINT_DIR: Final = "NIGHTSHIFT_FAILPOINT_DIR"
FAILPOINT_LOG: Final = "NIGHTSHIFT_FAILPOINT_LOG"

NAMES: Final = (
    "api.before_commit",  # a job is written, not committed
    "api.committed",  # … committed; neither workers nor client are told
    "api.rung",  # the workers are told; the outbox still has the ring
    "api.bytes_stored",  # those of a file or of a part of an upload; they are not on record
    "api.file_forgotten",  # a file is off the record, its bytes are there
    "api.parts_forgotten",  # an upload has ended; the bytes of its parts are there
    "worker.fetched",  # a message was taken from Redis and not read; hit in Celery's library
    "worker.received",  # a message has arrived, nothing is claimed
    "worker.claimed",  # a claim is committed, its message not acknowledged
    "worker.row_heard",  # the engine has reported on a row of a shard
    "worker.segment_stored",  # a segment is stored, not listed
    "worker.segment_listed",  # … listed
    "worker.carry_over_stored",  # tokens of unfinished rows are stored, not recorded
    "worker.answered",  # online answers are committed, not announced
    "worker.handed_back",  # a drained shard is back in the queue
    "scheduler.planning",  # an attempt to plan a job is counted, its input not read
    "scheduler.page_planned",  # a page of a job's shards has committed, others follow
    "scheduler.planned",  # a job's shards have committed and were not announced
    "part.claimed",  # a part of an output is leased
    "part.begun",  # … one of its files is on record as begun; none of its bytes are sent
    "part.staged",  # … all its files are staged, and none is in its place
    "part.published",  # … all are in their places; the part is not recorded as written
    "scheduler.before_output",  # every row has run; the output is not complete
    "scheduler.output_begun",  # a manifest or _SUCCESS is on record as begun
    "scheduler.part_written",  # one of a batch's two files is there
    "scheduler.output_written",  # all output is written, the job has not ended
    "scheduler.job_ended",  # the job has ended; its webhook is owed
    "scheduler.webhook_sent",  # the receiver has answered; no attempt is recorded
    "scheduler.aged",  # what has had its time is recorded as deleted, and is there
    "scheduler.rows_deleted",  # some rows of a deleted job are gone
    "scheduler.bytes_deleted",  # … and its bytes; it is still recorded as deleted
    "scheduler.files_forgotten",  # expired files are off the record, their bytes are there
)


def from_environment(environment: Mapping[str, str]) -> Callable[[str], None]:
    """The function `hit` for this environment. Raises ValueError for an unknown name."""
    one, directory = environment.get(FAILPOINT), environment.get(FAILPOINT_DIR)
    checks = [_at(one)] if one else []
    checks += [_armed_in(Path(directory))] if directory else []
    checks += [_logged_to(Path(log))] if (log := environment.get(FAILPOINT_LOG)) else []
    if not checks:
        return _do_nothing

    def hit(name: str) -> None:
        assert name in NAMES, f"no such failpoint: {name}"
        if any(is_due(name) for is_due in checks):
            _die(name)

    return hit


def _do_nothing(name: str) -> None:
    """Does nothing, since no failpoint is set."""


def _at(wanted: str) -> Callable[[str], bool]:
    name, _, count = wanted.partition(":")
    if name not in NAMES or (":" in wanted and not count.isdecimal()):
        raise ValueError(f"{FAILPOINT}={wanted}: want name or name:n, with a name of {', '.join(NAMES)}")
    last = int(count or 1)
    # Appending is thread-safe without a lock.
    times: list[None] = []

    def is_due(at: str) -> bool:
        if at == name:
            times.append(None)
        return at == name and len(times) >= last

    return is_due


def _armed_in(directory: Path) -> Callable[[str], bool]:
    def is_due(at: str) -> bool:
        try:
            os.unlink(directory / at)  # for one process only
        except FileNotFoundError:
            return False
        return True

    return is_due


def _logged_to(log: Path) -> Callable[[str], bool]:
    """Lines of CLOCK_MONOTONIC in ns, which a machine's processes share, and the name."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def is_due(at: str) -> bool:
        os.write(file, f"{time.monotonic_ns()} {at}\n".encode())
        return False

    return is_due


def _die(name: str) -> None:
    os.write(2, f"failpoint {name}: this process kills itself\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


hit: Final = from_environment(os.environ)
