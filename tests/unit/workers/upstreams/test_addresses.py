"""A host's addresses are upstreams of their own, which come and go."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nightshift.errors import ConfigurationError
from nightshift.process.upstreams import Upstream
from tests.helpers.upstreams import Settings, SimulatedUpstream, simulated_upstream
from tests.helpers.upstreams.behaviours import holds
from tests.helpers.waiting import wait_for
from tests.unit.workers.upstreams.conftest import Asker, Opening
from workers.upstreams import addresses
from workers.upstreams.addresses import addresses_of as looked_up
from workers.upstreams.faults import Unavailable

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


class Pods:
    """Upstreams with one port and an address each, and the addresses that their host resolves to."""

    def __init__(self, stack: ExitStack) -> None:
        self.by_address: dict[str, SimulatedUpstream] = {}
        self.port = 0
        self.resolved: set[str] = set()
        self.num_lookups = 0
        self._stack = stack

    def start(self, address: str, settings: Settings | None = None) -> SimulatedUpstream:
        pod = self._stack.enter_context(simulated_upstream(settings, host=address, port=self.port))
        self.by_address[address], self.port = pod, pod.port
        return pod

    async def look_up(self, config: Upstream) -> set[str]:
        self.num_lookups += 1
        if not self.resolved:
            raise Unavailable("has a host that does not resolve")
        return self.resolved

    def become(self, *resolved: str) -> None:
        """Returns once the host's new addresses were looked up, and what follows from them was done."""
        self.resolved = {*resolved}
        before = self.num_lookups
        wait_for("the next look-up has ended", lambda: self.num_lookups >= before + 3)


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    with ExitStack() as stack:
        pods = Pods(stack)
        monkeypatch.setattr(addresses, "addresses_of", pods.look_up)
        monkeypatch.setattr(addresses, "LOOK_UP_S", 0.02)
        yield pods


@pytest.fixture
def asker(pods: Pods, opened: Opening, tmp_path: Path) -> Asker:
    """A model of the first two hosts."""
    for host in HOSTS[:2]:
        pods.start(host)
    pods.resolved = {*HOSTS[:2]}
    file = tmp_path / "upstreams.yaml"
    file.write_text(f"upstreams: [{{url: 'http://pods:{pods.port}/v1', name: pods, each_address: true}}]")
    return opened(str(file))


def served_by(asker: Asker) -> set[str]:
    return {place.upstream.name for place in asker.server.places}


def test_rows_go_to_each_address(asker: Asker, pods: Pods) -> None:
    for pod in pods.by_address.values():
        pod.behave(holds())
    rows = [asker.chat(f"row {number}") for number in range(8)]
    for pod in pods.by_address.values():
        pod.wait_until("it has rows", lambda seen: seen.in_flight)
        pod.behave()
    assert all(row.result.succeeded for row in rows)


def test_addresses_come_and_go(asker: Asker, pods: Pods) -> None:
    assert served_by(asker) == {"pods/127.0.0.2", "pods/127.0.0.3"}
    pods.start(HOSTS[2])

    pods.become(HOSTS[2], HOSTS[1])
    assert served_by(asker) == {"pods/127.0.0.3", "pods/127.0.0.4"}

    pods.become(HOSTS[0])
    assert served_by(asker) == {"pods/127.0.0.2"}
    assert asker.chat("a row").result.succeeded


def test_a_row_ends_where_it_is_after_its_address_has_gone(asker: Asker, pods: Pods) -> None:
    leaving = pods.by_address[HOSTS[0]]
    pods.become(HOSTS[0])
    leaving.behave(holds())
    row = asker.chat("a row")
    leaving.wait_until("it has the row", lambda seen: seen.in_flight)
    pods.become(HOSTS[1])
    leaving.behave()
    assert row.result.succeeded
    assert leaving.seen.cancelled == 0


def test_a_host_that_does_not_resolve_keeps_its_addresses(asker: Asker, pods: Pods) -> None:
    pods.become()
    assert served_by(asker) == {"pods/127.0.0.2", "pods/127.0.0.3"}


def test_an_address_with_another_model_of_that_name_gets_no_row(asker: Asker, pods: Pods) -> None:
    pods.start(HOSTS[2], Settings(root="example/another"))
    pods.become(*HOSTS)
    assert served_by(asker) == {"pods/127.0.0.2", "pods/127.0.0.3"}


def test_an_address_that_does_not_answer_yet_is_asked_again(asker: Asker, pods: Pods) -> None:
    pods.become(*HOSTS)
    assert len(served_by(asker)) == 2
    pods.start(HOSTS[2])
    wait_for("the third is used", lambda: len(served_by(asker)) == 3)


def test_a_host_with_no_usable_address_ends_the_worker_with_the_reason(
    pods: Pods, opened: Opening, tmp_path: Path
) -> None:
    pods.start(HOSTS[0], Settings(max_model_len=None))
    pods.resolved = {HOSTS[0]}
    file = tmp_path / "upstreams.yaml"
    file.write_text(f"upstreams: [{{url: 'http://pods:{pods.port}/v1', each_address: true}}]")
    with pytest.raises(ConfigurationError, match="does not say the context length of 'simulated'"):
        opened(str(file))


def test_a_hosts_addresses_are_the_systems() -> None:
    assert asyncio.run(looked_up(Upstream(url="http://127.0.0.1:8000/v1"))) == {"127.0.0.1"}
    assert asyncio.run(looked_up(Upstream(url="http://localhost:8000/v1"))) <= {"127.0.0.1", "::1"}
