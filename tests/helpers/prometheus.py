"""A real Prometheus for tests: it scrapes what it is told to, evaluates rules and answers queries."""

import math
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

from tests.helpers.waiting import WAIT_MAX_S, wait_for
from tests.integration.servers import HOST, free_port

RULES: Final = Path(__file__).resolve().parents[2] / "infra" / "prometheus" / "rules.yml"
INTERVAL: Final = "500ms"  # between scrapes, and between evaluations of rules
_MINUTES: Final = re.compile(r"(?<=\[)(\d+)m(?=\])|(?<=for: )(\d+)m$", re.MULTILINE)


@dataclass(frozen=True)
class Prometheus:
    http: httpx.Client

    def query(self, expression: str) -> list[float]:
        """The values of all series now, those that are no number left out."""
        answer = self.http.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        series = answer["data"]["result"]
        if answer["data"]["resultType"] == "scalar":
            return [float(series[1])]
        values = [float(series["value"][1]) for series in series]
        return [value for value in values if not math.isnan(value)]

    def firing(self) -> dict[str, dict[str, str]]:
        """The annotations of alerts that fire, by name."""
        alerts: list[Any] = self.http.get("/api/v1/alerts").json()["data"]["alerts"]
        return {
            alert["labels"]["alertname"]: alert["annotations"]
            for alert in alerts
            if alert["state"] == "firing"
        }

    def wait_until_firing(self, name: str, wait_max_s: float = WAIT_MAX_S) -> dict[str, str]:
        """Its annotations."""
        self._wait(f"{name} fires", lambda: name in self.firing(), wait_max_s)
        return self.firing().get(name, {})

    def wait_until_clear(self, name: str, wait_max_s: float = WAIT_MAX_S) -> None:
        self._wait(f"{name} is clear", lambda: name not in self.firing(), wait_max_s)

    def _wait(self, what: str, is_so: Callable[[], bool], wait_max_s: float) -> None:
        wait_for(what, is_so, wait_max_s, said=lambda: str(self.firing()))


def minutes_as_seconds(rules: str) -> str:
    """The rules, sixty times faster: ranges and `for` in minutes become as many seconds."""
    return _MINUTES.sub(lambda match: f"{match[1] or match[2]}s", rules)


@contextmanager
def prometheus(folder: Path, ports: Mapping[str, int], rules: str | None = None) -> Iterator[Prometheus]:
    """Scrapes `GET /metrics` on these ports of this machine, each as a job of its name. Skips the test where
    Prometheus is not installed.
    """
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (infra/test_tools.sh does it)")
    folder.mkdir(exist_ok=True)
    config = _config(ports)
    if rules is not None:
        (folder / "rules.yml").write_text(rules)
        config["rule_files"] = ["rules.yml"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"{HOST}:{free_port()}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (
        (folder / "log").open("wb") as log,
        httpx.Client(base_url=f"http://{address}", trust_env=False) as http,
    ):
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait_until_ready(http, process, folder / "log")
            yield Prometheus(http)
        finally:
            process.kill()
            process.wait()


def _config(ports: Mapping[str, int]) -> dict[str, Any]:
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [f"{HOST}:{port}"]}]}
        for name, port in ports.items()
    ]
    return {
        "global": {
            "scrape_interval": INTERVAL,
            "scrape_timeout": INTERVAL,
            "evaluation_interval": INTERVAL,
        },
        "scrape_configs": jobs,
    }


def _wait_until_ready(http: httpx.Client, process: "subprocess.Popen[bytes]", log: Path) -> None:
    def said() -> str:
        return log.read_text(errors="replace")

    def is_ready() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"Prometheus did not start: {said()}")
        try:
            return http.get("/-/ready").is_success
        except httpx.TransportError:
            return False

    wait_for("Prometheus is ready", is_ready, said=said)
