"""Notices that the machine will be taken away: heard over HTTP, and what a worker does then."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightshift.fleet import DeathCause, WorkerState
from tests.faults import metadata, oracle
from tests.faults.metadata import Metadata
from tests.faults.processes import wait_for
from tests.faults.service import Parts, Service
from tests.faults.workload import some_rows, submit_bulk
from workers.spot import Notice, NoticeKind, SpotWatcher, detected, open_provider

AT = datetime(2026, 11, 21, 18, tzinfo=UTC)


@pytest.fixture
def cloud() -> Iterator[Metadata]:
    with metadata.serving() as found:
        yield found


def a_provider(name: str, cloud: Metadata):
    provider = open_provider(name, cloud.url)
    assert provider is not None
    return provider


@pytest.mark.parametrize(("name", "at"), [("aws", AT), ("gcp", None), ("azure", AT)])
def test_a_notice_is_heard_and_its_withdrawal_too(cloud, name, at):
    provider = a_provider(name, cloud)
    assert provider.poll() is None

    cloud.is_interrupted = True
    assert provider.poll() == Notice(name, NoticeKind.INTERRUPTION, at)

    cloud.is_interrupted = False
    assert provider.poll() is None


def test_a_recommendation_to_rebalance_is_told_from_an_interruption(cloud):
    provider = a_provider("aws", cloud)
    cloud.is_rebalanced = True
    assert provider.poll() == Notice("aws", NoticeKind.REBALANCE, None)

    cloud.is_interrupted = True
    assert provider.poll() == Notice("aws", NoticeKind.INTERRUPTION, AT)


def test_a_token_that_aws_has_forgotten_is_asked_for_again(cloud):
    provider = a_provider("aws", cloud)
    provider.poll()
    cloud.is_interrupted = True
    cloud.tokens.clear()

    assert provider.poll() is not None
    assert cloud.asked.count("/latest/api/token") == 2


def test_an_event_about_another_machine_or_a_short_freeze_is_no_notice(cloud):
    provider = a_provider("azure", cloud)
    cloud.is_interrupted = True
    cloud.concerns = "yet-another-vm"
    assert provider.poll() is None

    cloud.concerns, cloud.event = metadata.MACHINE, "Freeze"
    assert provider.poll() is None


@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
def test_a_server_that_fails_changes_nothing_of_what_is_known(cloud, caplog, name):
    watcher = SpotWatcher(a_provider(name, cloud), on_notice=lambda notice: None)
    cloud.is_interrupted = True
    noticed = watcher.look()

    cloud.is_broken = True
    assert watcher.look() == watcher.look() == noticed

    assert caplog.text.count("no answer from the metadata server") == 1


def test_a_watcher_asks_until_it_is_stopped(cloud):
    heard = threading.Semaphore(0)
    provider = a_provider("gcp", cloud)
    provider.interval_s = 0.01
    watcher = SpotWatcher(provider, on_notice=lambda notice: heard.release())
    watcher.start()
    cloud.wait_for_asks(3)
    cloud.is_interrupted = True

    assert heard.acquire(timeout=20)
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


def test_nobody_is_asked_where_the_operator_says_so():
    assert open_provider("none") is None


# -- in the service ------------------------------------------------------------------------------------


def states(service: Service) -> dict[str, WorkerState]:
    with service.store.snapshot() as tx:
        return {worker.id: worker.state for worker in tx.workers.list()}


def test_a_worker_under_notice_drains_waits_and_starts_again_when_it_is_withdrawn(service_of, cloud):
    service = service_of(Parts(), SPOT_PROVIDER="gcp", SPOT_METADATA_URL=cloud.url, CAPACITY="spot")
    job = submit_bulk(service, some_rows(40, step_ms=20, tokens=(40, 60)))
    wait_for("rows are under way", lambda: rows_are_under_way(service))
    (first,) = states(service)

    cloud.is_interrupted = True
    wait_for("it has stopped", lambda: states(service)[first] is WorkerState.STOPPED)
    wait_for(
        "its successor waits",
        lambda: [state for id, state in states(service).items() if id != first] == [WorkerState.DRAINING],
    )
    with service.store.snapshot() as tx:
        (drained,) = (worker for worker in tx.workers.list() if worker.id == first)
        assert tx.leases.of_worker(first, 10) == []
    assert drained.ended_cause is DeathCause.DRAINED
    assert drained.capacity == "spot"

    cloud.is_interrupted = False
    oracle.quiesce(service, [job])
    verdict = oracle.check(service, [job])
    assert verdict.attempts_most == 1, "an interruption is no attempt"


def test_a_worker_advised_to_rebalance_leaves_its_work_to_another_that_is_ready(service_of, cloud):
    aws = {"SPOT_PROVIDER": "aws", "SPOT_METADATA_URL": cloud.url, "CAPACITY": "spot"}
    service = service_of(Parts(), **aws)
    (alone,) = states(service)
    cloud.is_rebalanced = True
    cloud.wait_for_asks(4)  # two looks at least
    assert states(service) == {alone: WorkerState.READY}, "nobody would go on in its place"

    with service.store.transaction() as tx:
        now = tx.now()
        tx.workers.register(metadata_free_worker(service, now))
    wait_for("it has left", lambda: states(service)[alone] in (WorkerState.DRAINING, WorkerState.STOPPED))


def rows_are_under_way(service: Service) -> bool:
    with service.store.snapshot() as tx:
        return any(tx.leases.of_worker(worker.id, 10) for worker in tx.workers.list())


def metadata_free_worker(service: Service, now: datetime):
    """Another worker with the same model, on a machine that stays. It is heard of this once."""
    from nightshift.testing import a_worker

    return a_worker(models=(service.model,), started_at=now, heartbeat_at=now, state=WorkerState.READY)
