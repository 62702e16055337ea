"""Notices of metadata servers over HTTP: no fault of such a server does harm."""

import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nightshift.fleet.workers import NoticeKind
from nightshift.outbound.cloud_metadata import (
    PROVIDERS,
    MetadataServer,
    Notice,
    Provider,
    Reply,
    detected,
    open_provider,
)
from tests.faults.kit import metadata
from tests.faults.kit.metadata import EVENT_ID, MACHINE, Metadata, Trouble
from tests.unit.workers.scripted import ManualClock
from workers.health.notices import NOTICE_VALID_S, SpotWatcher

AT = datetime(2026, 11, 21, 18, tzinfo=UTC)
CLOUDS = ["aws", "gcp", "azure"]


@pytest.fixture
def cloud() -> Iterator[Metadata]:
    with metadata.serving() as served:
        yield served


def a_provider(name: str, cloud: Metadata) -> Provider:
    return PROVIDERS[name](MetadataServer(cloud.url))


class Patient(MetadataServer):
    """Waits long for an answer, however busy the machine is, but not for one that never comes."""

    def __init__(self, cloud: Metadata) -> None:
        super().__init__(cloud.url, timeout_s=120.0)
        self._cloud = cloud

    def ask(self, path: str, headers: Mapping[str, str], **more: Any) -> Reply:
        never_answers = self._cloud.trouble in (Trouble.HANGS, Trouble.DRIPS)
        return super().ask(path, headers, **more | ({"timeout_s": 0.05} if never_answers else {}))


def watching(provider: Provider, **more: Any) -> SpotWatcher:
    return SpotWatcher(provider, on_notice=lambda notice: None, **more)


@pytest.mark.parametrize(
    ("name", "at", "event_id"), [("aws", AT, None), ("gcp", None, None), ("azure", AT, EVENT_ID)]
)
def test_a_notice_is_heard_and_its_withdrawal_too(cloud, name, at, event_id):
    provider = a_provider(name, cloud)
    assert provider.poll() is None

    cloud.is_interrupted = True
    assert provider.poll() == Notice(name, NoticeKind.INTERRUPTION, at, event_id)

    cloud.is_interrupted = False
    assert provider.poll() is None


def test_aws_recommends_before_it_interrupts_and_is_asked_for_a_token_that_it_forgot(cloud):
    provider = a_provider("aws", cloud)
    cloud.is_rebalanced = True
    assert provider.poll() == Notice("aws", NoticeKind.REBALANCE, None)

    cloud.is_interrupted = True
    cloud.tokens.clear()
    assert provider.poll() == Notice("aws", NoticeKind.INTERRUPTION, AT)
    assert cloud.requests.count("/latest/api/token") == 2


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("aws", "soon"),
        ("aws", "9999-12-31T23:59:59-12:00"),  # a year 10000 in UTC
        ("azure", ""),
        ("azure", "Fri, 31 Dec 9999 23:59:59 -1200"),
    ],
)
def test_a_notice_counts_although_its_time_cannot_be_told(cloud, name, at):
    cloud.is_interrupted = True
    cloud.at = cloud.at_azure = at

    notice = a_provider(name, cloud).poll()

    assert notice is not None
    assert (notice.kind, notice.at) == (NoticeKind.INTERRUPTION, None)


@pytest.mark.parametrize(
    "odd", [None, 7, {"EventId": "0"}, {"EventType": "Preempt", "Resources": None}, {"Resources": [MACHINE]}]
)
def test_an_event_that_makes_no_sense_does_not_hide_one_that_does(cloud, odd):
    cloud.is_interrupted = True
    cloud.odd_events = [odd]

    assert a_provider("azure", cloud).poll() == Notice("azure", NoticeKind.INTERRUPTION, AT, EVENT_ID)


@pytest.mark.parametrize(("concerns", "event"), [("yet-another-vm", "Preempt"), (MACHINE, "Freeze")])
def test_an_event_about_another_machine_or_a_short_freeze_is_no_notice(cloud, concerns, event):
    cloud.is_interrupted = True
    cloud.concerns, cloud.event = concerns, event

    assert a_provider("azure", cloud).poll() is None


def test_an_event_about_this_machine_alone_can_be_acknowledged_and_one_about_others_too_cannot(cloud):
    provider = a_provider("azure", cloud)
    watcher = watching(provider)
    cloud.is_interrupted = True
    cloud.trouble = Trouble.FAILS
    assert watcher.acknowledge(EVENT_ID) is False
    cloud.trouble = None
    assert watcher.acknowledge(EVENT_ID) is True
    assert cloud.acknowledged == [EVENT_ID]

    cloud.names_others = True
    assert provider.poll() == Notice("azure", NoticeKind.INTERRUPTION, AT, event_id=None)


@pytest.mark.parametrize("trouble", Trouble)
@pytest.mark.parametrize("name", CLOUDS)
def test_a_server_in_trouble_changes_nothing_of_what_is_known(cloud, caplog, name, trouble):
    watcher = watching(PROVIDERS[name](Patient(cloud)))
    cloud.is_interrupted = True
    noticed = watcher.look()
    assert noticed is not None

    cloud.trouble = trouble
    assert watcher.look() == watcher.look() == noticed
    assert caplog.text.count("no answer from the metadata server") == 1, "it is said once"

    cloud.trouble = None
    cloud.is_interrupted = False
    assert watcher.look() is None


@pytest.mark.parametrize("name", CLOUDS)
def test_where_there_is_no_server_there_is_no_notice(name):
    assert watching(PROVIDERS[name](MetadataServer("http://127.0.0.1:1"))).look() is None


def test_a_notice_that_no_answer_confirms_comes_to_nothing_in_the_end(cloud):
    clock = ManualClock()
    watcher = watching(a_provider("gcp", cloud), clock_s=clock)
    cloud.is_interrupted = True
    watcher.look()
    cloud.trouble = Trouble.FAILS

    clock.advance(NOTICE_VALID_S - 1)
    assert watcher.look() is not None
    clock.advance(1)
    assert watcher.look() is None


def test_a_watcher_asks_on_whatever_its_listener_does(cloud):
    heard = threading.Semaphore(0)

    def stumble(notice: Notice) -> None:
        heard.release()
        raise RuntimeError("unforeseen")

    provider = a_provider("gcp", cloud)
    provider.interval_s = 0.01
    watcher = SpotWatcher(provider, on_notice=stumble)
    watcher.start()
    cloud.wait_for_asks(3)
    cloud.is_interrupted = True

    assert heard.acquire(timeout=60)
    assert heard.acquire(timeout=60)
    watcher.stop()


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"sys_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, "aws"),
        ({"product_name": "Google Compute Engine"}, "gcp"),
        ({"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"}, "azure"),
        ({"sys_vendor": "Microsoft Corporation"}, None),
        ({}, None),
    ],
)
def test_whose_machine_it_is_stands_in_its_firmware(tmp_path: Path, files, name):
    for file, words in files.items():
        (tmp_path / file).write_text(words + "\n")

    assert detected(tmp_path) == name
    provider = open_provider("auto", dmi=tmp_path)
    assert (provider and provider.name) == name


def test_no_metadata_server_is_asked_where_the_operator_says_so():
    assert open_provider("none") is None
