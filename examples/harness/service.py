"""`nightshift up` of an example's own, and the commands that run against it."""

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ANSWER_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Service:
    """A running `nightshift up`. `base_url` ends in /v1."""

    process: "subprocess.Popen[str]"
    base_url: str
    api_key: str

    def post(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of an online request, such as `post("rerank", …)`. Raises httpx.HTTPStatusError."""
        answer = httpx.post(
            f"{self.base_url}/{route}",
            json=body,
            headers={"authorization": f"Bearer {self.api_key}"},
            timeout=ANSWER_TIMEOUT_S,
        )
        answer.raise_for_status()
        decoded: dict[str, Any] = answer.json()
        return decoded

    def run(self, rows: Path, output: Path, *options: str) -> None:
        """`nightshift run ROWS --output OUTPUT … --wait`, as cron would; it prints how the job ended.

        Raises subprocess.CalledProcessError unless every row succeeded.
        """
        sys.stdout.flush()
        environment = {
            "NIGHTSHIFT_BASE_URL": self.base_url.removesuffix("/v1"),
            "NIGHTSHIFT_API_KEY": self.api_key,
        }
        command = nightshift("run", str(rows), "--output", str(output), "--wait", *options)
        subprocess.run(command, env=os.environ | environment, check=True)


def nightshift(*arguments: str) -> list[str]:
    """The command, as this Python has it."""
    return [sys.executable, "-m", "nightshift.cli.main", *arguments]


@contextmanager
def running(
    data_dir: Path, *, models: Sequence[Path] = (), logs: Path | None = None, **settings: str
) -> Iterator[Service]:
    """`nightshift up` on a free port once it is ready, stopped by SIGTERM at the end.

    Without `models` it serves the demo model. `settings` are NIGHTSHIFT_ variables without their prefix.
    `logs` is where its logs are copied to if it has to be killed. Raises SystemExit if it does not start.
    """
    arguments = [argument for model in models for argument in ("--model", str(model))]
    process = subprocess.Popen(
        nightshift("up", "--data-dir", str(data_dir), "--port", "0", *arguments),
        stdout=subprocess.PIPE,
        env=os.environ | {f"NIGHTSHIFT_{name}": value for name, value in settings.items()},
        text=True,
    )
    try:
        base_url = _base_url(process)
        yield Service(process, base_url, (data_dir / "api_key").read_text().strip())
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            if logs is not None:
                shutil.copytree(data_dir / "logs", logs, dirs_exist_ok=True)
            process.kill()
            process.wait()


def _base_url(process: "subprocess.Popen[str]") -> str:
    """The address it prints once it is ready. A thread reads on, so that the pipe never fills."""
    addresses: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                name, _, value = line.strip().partition("   ")
                if name == "base URL":
                    addresses.put(value.strip())
        addresses.put(None)

    threading.Thread(target=read, daemon=True).start()
    base_url = addresses.get()
    if base_url is None:
        raise SystemExit("nightshift up did not start; what it said is above")
    return base_url
