"""`nightshift up` for a test: a process that prints where it is, with other processes beneath it."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx
import openai
import pyarrow.parquet as pq

from nightshift.cli.demo import DEMO_MODEL_ID
from nightshift.cli.processes.children import Launch
from nightshift.cli.processes.supervisor import Process
from nightshift.client import Client
from tests.e2e.forked_command import THIS
from tests.faults.kit.forks import fork_server, forked_module, is_server
from tests.faults.kit.processes import is_running
from tests.helpers.waiting import wait_for

START_TIMEOUT_S = 180.0  # loading torch takes long on a machine that is busy with other tests
STOP_TIMEOUT_S = 90.0
JOB_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_S = 60.0  # a machine may be busy with other tests


@dataclass
class Service:
    """A running service and everything a client needs."""

    process: Process
    base_url: str
    data_dir: Path

    @property
    def api_key(self) -> str:
        return (self.data_dir / "api_key").read_text().strip()

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.base_url, api_key=self.api_key)

    def http(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.api_key}"}
        return httpx.Client(base_url=self.base_url, headers=headers, timeout=ANSWER_TIMEOUT_S)

    def client(self) -> Client:
        return Client(self.base_url.removesuffix("/v1"), self.api_key)

    def environment(self) -> dict[str, str]:
        """Variables by which the commands find the service."""
        return {
            "NIGHTSHIFT_DATA_DIR": str(self.data_dir),
            "NIGHTSHIFT_BASE_URL": self.base_url.removesuffix("/v1"),
        }

    def processes(self) -> dict[int, str]:
        """Everything running beneath it, by process id, with its command line."""
        return _descendants(self.process.pid)

    def worker_pid(self) -> int:
        """The Celery process that has the model."""
        return next(pid for pid, command in self.processes().items() if "celery" in command)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Tells it to stop and waits. Returns the exit code."""
        self.process.send_signal(how)
        wait_for("it has ended", lambda: not is_running(self.process.pid), STOP_TIMEOUT_S, said=self.logs)
        return self.process.wait()

    def logs(self) -> str:
        """The ends of all processes' logs."""
        paths = sorted((self.data_dir / "logs").glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in paths)


def running(data_dir: Path, *arguments: str, **settings: str) -> AbstractContextManager[Service]:
    """`nightshift up` on a free port as a user starts it, ready; killed at the end if it is still there.

    `settings` are NIGHTSHIFT_ variables without their prefix.
    """

    def start(words: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> Process:
        return subprocess.Popen(command(*words), stdout=output, env=environment)

    return _running(start, data_dir, arguments, settings)


def forked(data_dir: Path, *arguments: str, **settings: str) -> AbstractContextManager[Service]:
    """The same, its processes forked from one that has imported everything: 10 s of CPU less.

    A worker's engine is in its own process, unless the settings say otherwise.
    """

    def start(words: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> Process:
        launch = Launch((sys.executable, "-P", "-m", THIS, *words), environment)
        return fork_server(with_engine=True).spawn(launch, output)

    return _running(start, data_dir, arguments, {"ENGINE_PROCESS": "false"} | settings)


@contextmanager
def _running(
    start: Callable[[Sequence[str], Mapping[str, str], IO[bytes]], Process],
    data_dir: Path,
    arguments: Sequence[str],
    settings: Mapping[str, str],
) -> Iterator[Service]:
    environment = os.environ | {f"NIGHTSHIFT_{name}": value for name, value in settings.items()}
    words = ("up", "--data-dir", str(data_dir), "--port", "0", *map(str, arguments))
    said, output = os.pipe()
    with os.fdopen(output, "wb") as file:
        process = start(words, environment, file)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(said, lines))
    reader.start()
    try:
        yield Service(process, _base_url(lines, data_dir), data_dir)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        reader.join()


def command(*arguments: str) -> list[str]:
    """The nightshift command, as this Python has it."""
    return [sys.executable, "-m", "nightshift.cli.main", *arguments]


def nightshift(
    service: Service,
    *arguments: str,
    cwd: Path | None = None,
    timeout_s: float = START_TIMEOUT_S,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Runs a command against the service, as cron would."""
    return subprocess.run(
        command(*arguments),
        env=os.environ | service.environment() | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def batch_lines(numbers: Sequence[int]) -> bytes:
    """A batch file that asks the demo model for these numbers in words."""
    requests = (
        {
            "custom_id": f"number-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": DEMO_MODEL_ID,
                "messages": [{"role": "user", "content": str(number)}],
                "temperature": 0,
            },
        }
        for number in numbers
    )
    return "".join(json.dumps(request) + "\n" for request in requests).encode()


def submit_batch(client: openai.OpenAI, numbers: Sequence[int]) -> str:
    """Upload and create; the batch's id."""
    uploaded = client.files.create(file=("numbers.jsonl", batch_lines(numbers)), purpose="batch")
    return client.batches.create(
        input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
    ).id


def batch_of(service: Service, url: str, bodies: Mapping[str, Any]) -> dict[str, Any]:
    """Submits a batch of requests to a route, by their custom ids; returns it once it has ended."""
    lines = [{"custom_id": id, "method": "POST", "url": url, "body": body} for id, body in bodies.items()]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with service.http() as http:
        file = http.post("/files", data={"purpose": "batch"}, files={"file": ("rows.jsonl", content)}).json()
        wishes = {"input_file_id": file["id"], "endpoint": url, "completion_window": "24h"}
        batch = http.post("/batches", json=wishes).raise_for_status().json()
        wait_until_ended(service, batch["id"])
        return dict(http.get(f"/batches/{batch['id']}").json())


def answers_of(service: Service, url: str, bodies: Mapping[str, Any]) -> dict[str, Any]:
    """The answers of a batch of requests that succeeded, by custom id."""
    batch = batch_of(service, url, bodies)
    with service.openai() as client:
        lines = output_lines(client, batch["id"])
    return {line["custom_id"]: line["response"]["body"] for line in lines}


def run(service: Service, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`nightshift run` in this folder, to the job's end."""
    return nightshift(service, "run", *arguments, "--wait", cwd=folder)


def wait_until_ended(service: Service, id: str) -> None:
    """Waits for the events of a job or a batch to end. Raises TimeoutError with the service's logs."""
    ends_at_s = time.monotonic() + JOB_TIMEOUT_S

    def check_time() -> None:
        if time.monotonic() > ends_at_s:
            raise TimeoutError(f"{id} has not ended within {JOB_TIMEOUT_S:.0f} s:\n{service.logs()}")

    with service.client() as client:
        for _ in client.events(job_of(id), on_keep_alive=check_time):
            check_time()


def ended_batch(service: Service, batch_id: str) -> openai.types.Batch:
    """The batch, once it has ended."""
    wait_until_ended(service, batch_id)
    with service.openai() as client:
        return client.batches.retrieve(batch_id)


def wait_for_rows(service: Service, id: str) -> int:
    """Waits until the first rows of a job or a batch are counted; returns how many are. Its events tell
    later, too late to catch it at work.
    """
    with service.client() as client:
        return wait_for(
            f"a row of {id} is done",
            lambda: client.get_job(job_of(id)).counts.succeeded,
            JOB_TIMEOUT_S,
            said=service.logs,
        )


def parquet_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows of a finished output in Parquet, in the order of its files."""
    return [row for path in sorted(folder.rglob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def kill_worker_in_the_middle(service: Service, id: str) -> int:
    """Ends the worker by SIGKILL as soon as rows of a job or a batch are counted; returns how many were."""
    worker_pid = service.worker_pid()
    done = wait_for_rows(service, id)
    os.kill(worker_pid, signal.SIGKILL)
    return done


def job_of(id: str) -> str:
    """The job's id, of a batch too."""
    return id.replace("batch_", "job_")


def output_lines(client: openai.OpenAI, batch_id: str) -> list[dict[str, Any]]:
    """Every line of a finished batch's output file."""
    output_file_id = client.batches.retrieve(batch_id).output_file_id
    assert output_file_id is not None, "the batch has no output"
    return [json.loads(line) for line in client.files.content(output_file_id).text.splitlines()]


def answer_of(line: dict[str, Any]) -> str:
    """The text a line of output has for its row."""
    return str(line["response"]["body"]["choices"][0]["message"]["content"])


def _read(said: int, lines: "queue.SimpleQueue[str | None]") -> None:
    """Reads until the end, so that the process never waits for us."""
    with os.fdopen(said) as file:
        for line in file:
            lines.put(line)
    lines.put(None)


def _base_url(lines: "queue.SimpleQueue[str | None]", data_dir: Path) -> str:
    said = ""
    while (line := lines.get(timeout=START_TIMEOUT_S)) is not None:
        said += line
        if line.strip().startswith("base URL"):
            return line.split()[-1]
    logs = "\n".join(path.read_text()[-2000:] for path in (data_dir / "logs").glob("*.log"))
    raise RuntimeError(f"nightshift up did not start: {said}\n{logs}")


def _descendants(pid: int) -> dict[int, str]:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    below: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in below | {pid}} - below:
        below |= more
    return {child: _command_line(child) for child in below if not is_server(child)}


def _command_line(pid: int) -> str:
    try:
        if module := forked_module(pid):
            return f"python -m {module}"
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
