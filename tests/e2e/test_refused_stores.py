"""Object stores refuse the service's key, as it starts and as a job is to be planned: the operator and the
job's owner read why where they look, and all goes on by itself once the key is taken.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from nightshift.cli.demo import DEMO_MODEL_ID
from tests.e2e.service import START_TIMEOUT_S, command
from tests.helpers.waiting import wait_for
from tests.integration import servers
from tests.integration.objectstore.s3_faults import ANY, FaultyS3, Refused, faulty_s3
from tests.integration.servers import S3Server

ROWS = 20


@dataclass(frozen=True)
class Command:
    """A command as a script runs it: no terminal, and what it says in a file."""

    process: subprocess.Popen[bytes]
    said: Path

    def line_with(self, *words: str) -> str:
        """A line that has all of these; waited for."""

        def line() -> str | None:
            lines = self.said.read_text().splitlines(keepends=True)
            return next((line for line in lines if all(word in line for word in words)), None)

        return str(wait_for(f"a line with {words}", line, START_TIMEOUT_S, said=self.said.read_text))


@contextmanager
def started(folder: Path, *arguments: str, **environment: str) -> Iterator[Command]:
    """Ended with the block if it is still there."""
    said = folder / arguments[0]
    with said.open("wb") as file:
        process = subprocess.Popen(
            command(*arguments), env=os.environ | environment, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield Command(process, said)
    finally:
        process.terminate()
        process.wait()


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

    with started(tmp_path, "up", "--port", "0", **environment) as up:
        up.line_with("the service's object store takes no requests", "InvalidAccessKeyId", own)
        front.heal()
        up.line_with("the service's object store takes requests again")
        url = up.line_with("base URL").split()[-1].removesuffix("/v1")

        front.set(ANY, Refused(400, "ExpiredToken"), path=f"/{inbox}")
        words = (f"s3://{inbox}/in/", "--output", f"s3://{inbox}/out/", "--endpoint", "chat")
        of_rows = ("--model", DEMO_MODEL_ID, "--input-column", "text", "--wait")
        with started(tmp_path, "run", *words, *of_rows, **environment, NIGHTSHIFT_BASE_URL=url) as run:
            said = run.line_with("ExpiredToken")
            assert said.startswith(f"The input cannot be read at present: s3://{inbox}/in/")
            assert said.endswith("; tried again\n")
            front.heal()
            run.line_with("goes on")
            run.line_with(f"{ROWS} rows succeeded, 0 failed")
            assert run.process.wait(START_TIMEOUT_S) == 0
