"""Spot notices from the metadata servers of AWS, Google Cloud and Azure.

AWS    an interruption about 2 minutes ahead, a recommendation to rebalance earlier or not at all
GCP    at most 30 s ahead, often less
Azure  at least 30 s ahead; the first answer may take 2 minutes, and starts the service for this machine.
       A machine that is ready earlier may acknowledge it and need not wait
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, Protocol

import httpcore
import httpx

from nightshift.fleet.workers import NoticeKind
from nightshift.outbound.http_deadline import BoundedBackend, Deadline

METADATA_URL: Final = "http://169.254.169.254"  # the same for all three
ANSWER_TIMEOUT_S: Final = 2.0
ANSWER_BYTES_MAX: Final = 256 * 1024
AZURE_FIRST_TIMEOUT_S: Final = 125.0
AWS_TOKEN_TTL_S: Final = 6 * 3600
DMI: Final = Path("/sys/class/dmi/id")  # the firmware's word on who made the machine


@dataclass(frozen=True)
class Notice:
    provider: str
    kind: NoticeKind
    at: datetime | None  # when the machine ends, if known
    event_id: str | None = None  # the event to acknowledge, if possible


@dataclass(frozen=True)
class Reply:
    status: int
    text: str

    def required(self) -> str:
        """The text of a 200. Raises ValueError for another status."""
        if self.status != httpx.codes.OK:
            raise ValueError(f"the metadata server answers {self.status}")
        return self.text


class MetadataServer:
    """A metadata server; an answer over `ANSWER_BYTES_MAX` is an error."""

    def __init__(self, url: str, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """`timeout_s`: for each read. A whole answer may take twice that."""
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s

    def ask(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        params: Mapping[str, str] | None = None,
        json: object = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """Raises the connection's errors, and ValueError for an unusable answer."""
        timeout_s = timeout_s or self._timeout_s
        request = httpx.Request(
            method,
            self._url + path,
            params=params,
            headers={"accept-encoding": "identity", **headers},
            json=json,
        )
        waits = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)
        in_time = BoundedBackend(Deadline(time.monotonic() + 2 * timeout_s))
        with (
            httpcore.ConnectionPool(network_backend=in_time) as pool,
            pool.stream(
                method,
                _core_url(request.url),
                headers=request.headers.raw,
                content=request.read(),
                extensions={"timeout": waits},
            ) as answer,
        ):
            return Reply(answer.status, _text(answer))


def _core_url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


def _text(answer: httpcore.Response) -> str:
    body = bytearray()
    for chunk in answer.iter_stream():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError("the metadata server does not come to an end")
    return body.decode()


class Provider(Protocol):
    name: str
    interval_s: float  # between polls

    def poll(self) -> Notice | None:
        """The current notice. Raises for an unusable answer."""

    def acknowledge(self, event_id: str) -> None:
        """Tells the cloud that this machine may end now. Raises likewise."""


class Aws:
    """Instance metadata service, version 2: every request carries a token."""

    name = "aws"
    interval_s = 5.0

    def __init__(self, server: MetadataServer) -> None:
        self._server = server
        self._token = ""
        self._token_ends_at_s = 0.0

    def poll(self) -> Notice | None:
        action = self._get("/latest/meta-data/spot/instance-action")
        if action is not None:
            return Notice(self.name, NoticeKind.INTERRUPTION, _iso(_object(action).get("time")))
        if self._get("/latest/meta-data/events/recommendations/rebalance") is not None:
            return Notice(self.name, NoticeKind.REBALANCE, None)
        return None

    def acknowledge(self, event_id: str) -> None:
        """This cloud takes no acknowledgement."""

    def _get(self, path: str) -> str | None:
        """The body of an answer; None for a 404."""
        reply = self._ask(path)
        if reply.status == httpx.codes.UNAUTHORIZED:  # it lost its tokens
            self._token_ends_at_s = 0.0
            reply = self._ask(path)
        return None if reply.status == httpx.codes.NOT_FOUND else reply.required()

    def _ask(self, path: str) -> Reply:
        if time.monotonic() >= self._token_ends_at_s:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_TTL_S)}
            asked_at_s = time.monotonic()
            self._token = self._server.ask("/latest/api/token", ttl, method="PUT").required()
            self._token_ends_at_s = asked_at_s + AWS_TOKEN_TTL_S / 2
        return self._server.ask(path, {"X-aws-ec2-metadata-token": self._token})


class Gcp:
    name = "gcp"
    interval_s = 1.0  # its notice comes only 30 s ahead

    def __init__(self, server: MetadataServer) -> None:
        self._server = server

    def poll(self) -> Notice | None:
        reply = self._server.ask("/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
        is_preempted = {"TRUE": True, "FALSE": False}[reply.required().strip().upper()]
        return Notice(self.name, NoticeKind.INTERRUPTION, None) if is_preempted else None

    def acknowledge(self, event_id: str) -> None:
        """This cloud takes no acknowledgement."""


class Azure:
    """Scheduled events, each with the names of the machines it concerns."""

    name = "azure"
    interval_s = 1.0

    _ENDING: Final = frozenset({"Preempt", "Terminate", "Reboot", "Redeploy"})  # all but a short freeze
    _PATH: Final = "/metadata/scheduledevents"
    _HEADERS: Final[Mapping[str, str]] = {"Metadata": "true"}
    _PARAMS: Final[Mapping[str, str]] = {"api-version": "2020-07-01"}

    def __init__(self, server: MetadataServer) -> None:
        self._server = server
        self._first_timeout_s: float | None = AZURE_FIRST_TIMEOUT_S
        self._machine: str | None = None

    def poll(self) -> Notice | None:
        reply = self._server.ask(
            self._PATH, self._HEADERS, params=self._PARAMS, timeout_s=self._first_timeout_s
        )
        events = _object(reply.required()).get("Events", ())
        self._first_timeout_s = None
        for event in filter(_is_event, events):
            concerned = event["Resources"]
            if event["EventType"] in self._ENDING and self._name_of_this_machine() in concerned:
                # An acknowledgement starts the event on every machine it names, so one of several is not
                # sent.
                event_id = event.get("EventId") if len(concerned) == 1 else None
                return Notice(
                    self.name, NoticeKind.INTERRUPTION, _http_date(event.get("NotBefore")), event_id
                )
        return None

    def acknowledge(self, event_id: str) -> None:
        started = {"StartRequests": [{"EventId": event_id}]}
        self._server.ask(
            self._PATH, self._HEADERS, method="POST", params=self._PARAMS, json=started
        ).required()

    def _name_of_this_machine(self) -> str:
        if self._machine is None:
            params = {"api-version": "2021-02-01", "format": "text"}
            reply = self._server.ask("/metadata/instance/compute/name", self._HEADERS, params=params)
            self._machine = reply.required().strip()
        return self._machine


PROVIDERS: Final[Mapping[str, Callable[[MetadataServer], Provider]]] = {
    "aws": Aws,
    "gcp": Gcp,
    "azure": Azure,
}


def open_provider(chosen: str, metadata_url: str = "", *, dmi: Path = DMI) -> Provider | None:
    """The cloud `aws`, `gcp` or `azure`; `auto` asks the firmware, without network. None: `none`, or no
    known cloud.
    """
    name = detected(dmi) if chosen == "auto" else chosen
    if name is None or name == "none":
        return None
    return PROVIDERS[name](MetadataServer(metadata_url or METADATA_URL))


def detected(dmi: Path = DMI) -> str | None:
    """The cloud that the firmware names."""
    words = " ".join(_line(dmi / name) for name in ("sys_vendor", "product_name", "bios_version")).lower()
    if "amazon" in words:
        return "aws"
    if "google" in words:
        return "gcp"
    # Microsoft's firmware is also on other machines; this tag is Azure's.
    is_azure = _line(dmi / "chassis_asset_tag") == "7783-7084-3265-9085-8269-3286-77"
    return "azure" if is_azure else None


def _object(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("the metadata server answers with no object")
    return data


def _is_event(event: object) -> bool:
    """Whether it has a type and resources; malformed events may stand beside valid ones."""
    return (
        isinstance(event, dict)
        and isinstance(event.get("EventType"), str)
        and isinstance(event.get("Resources"), list)
    )


def _iso(text: object) -> datetime | None:
    """The time in an ISO text; None for text that is no time, or one outside UTC's range."""
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _http_date(text: object) -> datetime | None:
    try:
        return parsedate_to_datetime(str(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
