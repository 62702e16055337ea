"""Notices that this machine is about to be taken away: AWS, Google Cloud, Azure.

Each cloud has a metadata server that every machine may ask and that only it can reach. One thread asks it
every few seconds; what follows from a notice is somebody else's decision (`runtime.py`). Nothing depends on
hearing one: a machine that goes without a word loses the same as one that is killed.

    AWS    an interruption about 2 minutes ahead, a recommendation to rebalance earlier or not at all
    GCP    at most 30 s ahead, often less
    Azure  at least 30 s ahead; the first answer may take 2 minutes, and starts the service for this machine
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

import httpx

log = logging.getLogger(__name__)

METADATA_URL: Final = "http://169.254.169.254"  # the same address in all three
ANSWER_TIMEOUT_S: Final = 2.0
AZURE_FIRST_TIMEOUT_S: Final = 125.0
AWS_TOKEN_TTL_S: Final = 6 * 3600
DMI: Final = Path("/sys/class/dmi/id")  # what the machine's firmware says of who made it


class NoticeKind(StrEnum):
    REBALANCE = "rebalance"  # an interruption has become likely
    INTERRUPTION = "interruption"  # it is certain


@dataclass(frozen=True)
class Notice:
    provider: str
    kind: NoticeKind
    at: datetime | None  # when the machine goes, if that was said


class Provider(Protocol):
    name: str
    interval_s: float  # between two looks

    def poll(self) -> Notice | None:
        """The notice that stands now. Raises httpx.HTTPError, and ValueError for an answer that is none."""


class Aws:
    """Instance metadata service, version 2: a token first, then everything with it."""

    name = "aws"
    interval_s = 5.0

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._token = ""
        self._token_ends_at_s = 0.0

    def poll(self) -> Notice | None:
        action = self._get("/latest/meta-data/spot/instance-action")
        if action is not None:
            at = _iso(_object(action).get("time"))
            return Notice(self.name, NoticeKind.INTERRUPTION, at)
        if self._get("/latest/meta-data/events/recommendations/rebalance") is not None:
            return Notice(self.name, NoticeKind.REBALANCE, None)
        return None

    def _get(self, path: str) -> httpx.Response | None:
        """None: there is nothing of the kind."""
        answer = self._ask(path)
        if answer.status_code == httpx.codes.UNAUTHORIZED:  # it has forgotten its tokens
            self._token_ends_at_s = 0.0
            answer = self._ask(path)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        return answer.raise_for_status()

    def _ask(self, path: str) -> httpx.Response:
        if time.monotonic() >= self._token_ends_at_s:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_TTL_S)}
            asked_at_s = time.monotonic()
            self._token = self._http.put("/latest/api/token", headers=ttl).raise_for_status().text
            self._token_ends_at_s = asked_at_s + AWS_TOKEN_TTL_S / 2
        return self._http.get(path, headers={"X-aws-ec2-metadata-token": self._token})


class Gcp:
    name = "gcp"
    interval_s = 1.0  # there is no time to lose

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def poll(self) -> Notice | None:
        answer = self._http.get(
            "/computeMetadata/v1/instance/preempted", headers={"Metadata-Flavor": "Google"}
        ).raise_for_status()
        is_preempted = answer.text.strip().upper() == "TRUE"
        return Notice(self.name, NoticeKind.INTERRUPTION, None) if is_preempted else None


class Azure:
    """Scheduled events. They name the machines they are about, which need not be this one."""

    name = "azure"
    interval_s = 1.0

    _ENDING: Final = frozenset({"Preempt", "Terminate", "Reboot", "Redeploy"})  # all but a short freeze
    _HEADERS: Final[Mapping[str, str]] = {"Metadata": "true"}

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._timeout_s = AZURE_FIRST_TIMEOUT_S
        self._machine: str | None = None

    def poll(self) -> Notice | None:
        asked = {"api-version": "2020-07-01"}
        answer = self._http.get(
            "/metadata/scheduledevents", params=asked, headers=self._HEADERS, timeout=self._timeout_s
        ).raise_for_status()
        self._timeout_s = ANSWER_TIMEOUT_S
        ending = [event for event in _object(answer).get("Events", ()) if event["EventType"] in self._ENDING]
        for event in ending:
            if self._name_of_this_machine() in event.get("Resources", ()):
                return Notice(self.name, NoticeKind.INTERRUPTION, _http_date(event.get("NotBefore")))
        return None

    def _name_of_this_machine(self) -> str:
        if self._machine is None:
            asked = {"api-version": "2021-02-01", "format": "text"}
            answer = self._http.get("/metadata/instance/compute/name", params=asked, headers=self._HEADERS)
            self._machine = answer.raise_for_status().text.strip()
        return self._machine


PROVIDERS: Final[Mapping[str, Callable[[httpx.Client], Provider]]] = {"aws": Aws, "gcp": Gcp, "azure": Azure}


def open_provider(chosen: str, metadata_url: str = "", *, dmi: Path = DMI) -> Provider | None:
    """The cloud whose notices are listened for: `aws`, `gcp`, `azure`, `none`, or `auto`, which asks the
    firmware and no network. None: there is nobody to ask.
    """
    name = detected(dmi) if chosen == "auto" else chosen
    if name is None or name == "none":
        return None
    http = httpx.Client(base_url=metadata_url or METADATA_URL, timeout=ANSWER_TIMEOUT_S, trust_env=False)
    return PROVIDERS[name](http)


def detected(dmi: Path = DMI) -> str | None:
    """Whose machine this is, as far as its firmware says."""
    words = " ".join(_line(dmi / name) for name in ("sys_vendor", "product_name", "bios_version")).lower()
    if "amazon" in words:
        return "aws"
    if "google" in words:
        return "gcp"
    # Microsoft makes machines of other kinds too; this tag is what Azure's have.
    is_azure = _line(dmi / "chassis_asset_tag") == "7783-7084-3265-9085-8269-3286-77"
    return "azure" if is_azure else None


class SpotWatcher:
    """Asks a provider again and again, on a thread of its own."""

    def __init__(self, provider: Provider, on_notice: Callable[[Notice], None]) -> None:
        """`on_notice` is called after every look that finds a notice, so more than once for each of them."""
        self._provider = provider
        self._on_notice = on_notice
        self._is_failing = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spot", daemon=True)
        self.standing: Notice | None = None  # as of the last look that had an answer
        self.has_looked = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Look no more. A look under way is not waited for."""
        self._stopping.set()

    def look(self) -> Notice | None:
        """Ask once. What was known stays, if there is no answer."""
        try:
            self.standing = self._provider.poll()
            self._is_failing = False
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            if not self._is_failing:
                log.warning(
                    "no answer from the metadata server: %s",
                    error,
                    extra={"action": "spot_unanswered", "provider": self._provider.name},
                )
            self._is_failing = True
        self.has_looked.set()
        return self.standing

    def _run(self) -> None:
        while not self._stopping.is_set():
            notice = self.look()
            if notice is not None:
                self._on_notice(notice)
            self._stopping.wait(self._provider.interval_s)


def _object(answer: httpx.Response) -> dict[str, Any]:
    data = answer.json()
    if not isinstance(data, dict):
        raise ValueError(f"{answer.url} answered with no object")
    return data


def _iso(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except ValueError:
        return None


def _http_date(text: object) -> datetime | None:
    try:
        return parsedate_to_datetime(str(text)).astimezone(UTC)
    except ValueError:
        return None


def _line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
