"""Object stores refuse the service's key, as it starts and as a job is to be planned: the operator and the
job's owner read why where they look, and all goes on by itself once the key is taken.
"""

import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from nightshift.cli.demo import DEMO_MODEL_ID
from tests.e2e.service import START_TIMEOUT_S, command
from tests.integration import servers
from tests.integration.objectstore.s3_faults import ANY, FaultyS3, Refused, faulty_s3
from tests.integration.servers import S3Server

ROWS = 20


@dataclass
class Command:
    """A command as a script runs it: no terminal, its lines as they come."""

    process: subprocess.Popen[str]
    lines: "queue.SimpleQueue[str]" = field(default_factory=queue.SimpleQueue)

    def read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.put(line)

    def line_with(self, *words: str) -> str:
        """The next line that has all of these. Raises queue.Empty."""
        while True:
            line = self.lines.get(timeout=START_TIMEOUT_S)
            if all(word in line for word in words):
                return line


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[Command]:
    """Killed at the end if it is still there."""
    process = subprocess.Popen(
        command(*arguments),
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = Command(process)
    readers = [
        threading.Thread(target=running.read, args=(stream,)) for stream in (process.stdout, process.stderr)
    ]
    for reader in readers:
        reader.start()
    try:
        yield running
    finally:
        process.terminate()
        process.wait()
        for reader in readers:
            reader.join()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with servers.moto(tmp_path) as server:
        yield server


@pytest.fixture
def front(s3: S3Server) -> Iterator[FaultyS3]:
    with faulty_s3(s3) as front:
        yield front


@pytest.mark.exhaustive  # the watch of stores, the planning and the command have tests of their own
def test_who_looks_reads_why_and_all_goes_on_once_the_key_is_taken(
    s3: S3Server, front: FaultyS3, tmp_path: Path
) -> None:
    own, inbox = s3.new_bucket(), s3.new_bucket()
    rows = "".join(f"{number},{number}\n" for number in range(ROWS))
    s3.client.put_object(Bucket=inbox, Key="in/rows.csv", Body=f"id,text\n{rows}".encode())
    environment = front.server().environment() | {
        "NIGHTSHIFT_DATA_DIR": str(tmp_path / "data"),
        "NIGHTSHIFT_STORAGE_URL": f"s3://{own}/nightshift",
        "NIGHTSHIFT_S3_BUCKETS": inbox,
    }
    front.set(ANY, Refused(403, "InvalidAccessKeyId"))

    with started("up", "--port", "0", **environment) as up:
        up.line_with("the service's object store takes no requests", "InvalidAccessKeyId", own)
        front.heal()
        up.line_with("the service's object store takes requests again")
        url = up.line_with("base URL").split()[-1].removesuffix("/v1")

        front.set(ANY, Refused(400, "ExpiredToken"), path=f"/{inbox}")
        words = (f"s3://{inbox}/in/", "--output", f"s3://{inbox}/out/", "--endpoint", "chat")
        of_rows = ("--model", DEMO_MODEL_ID, "--input-column", "text", "--wait")
        with started("run", *words, *of_rows, **environment, NIGHTSHIFT_BASE_URL=url) as run:
            said = run.line_with("ExpiredToken")
            assert said.startswith(f"The input cannot be read at present: s3://{inbox}/in/")
            assert said.endswith("; tried again\n")
            front.heal()
            run.line_with("goes on")
            run.line_with(f"{ROWS} rows succeeded, 0 failed")
            assert run.process.wait(START_TIMEOUT_S) == 0
