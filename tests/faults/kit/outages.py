"""Outages of Redis and of the database, and how soon requests are answered again after them.

    python -m tests.faults.kit.outages --database postgresql --times 5 --seconds 20

An outage lasts as long as its `with` block. The tests of faults do work in it; the command line measures,
with the timeouts of production and a fake engine:

waiting   a request that had been accepted and rung for when the outage began: until its answer. With Redis
          away it is found meanwhile; with the database away this counts from the outage's end
prompt    from the outage's end until requests are answered at once again, and not found by looking
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import psycopg
import pytest

from nightshift.errors import DatabaseUnavailable
from nightshift.tenants.keys import DEFAULT_TENANT
from tests.faults.chaos.workload import Job, Row, submit_online
from tests.faults.kit.launch import running
from tests.faults.kit.proxy import Blackhole, Refuse
from tests.faults.kit.service import Parts, Service
from tests.helpers.waiting import TICK_S, wait_for
from tests.integration.servers import RAM_DISK, PostgresServer

PROMPT_S: Final = 1.0  # an answer that takes longer was not rung for: a worker polled
PRODUCTION: Final = {
    "LEASE_TTL_S": "30",
    "LEASE_TRUST_S": "20",
    "HEARTBEAT_S": "5",
    "RING_AFTER_S": "10",
    "FAKE_POLL_S": "5",
}

Outage = Callable[[Service], AbstractContextManager[None]]


# -- of Redis ------------------------------------------------------------------------------------------


@contextmanager
def forgetful(service: Service) -> Iterator[None]:
    """FLUSHALL, again and again."""
    is_over = threading.Event()

    def flush() -> None:
        while not is_over.wait(0.05):
            service.redis.client.flushall()

    flushing = threading.Thread(target=flush)
    service.redis.client.flushall()
    flushing.start()
    try:
        yield
    finally:
        is_over.set()
        flushing.join()


@contextmanager
def killed(service: Service, *, keeps: bool = True) -> Iterator[None]:
    """kill -9. What it kept in its file is there again afterwards, or not."""
    service.redis.kill()
    if not keeps:
        service.redis.forget()
    try:
        yield
    finally:
        service.redis.start()


@contextmanager
def frozen(service: Service) -> Iterator[None]:
    """Every connection stays open, new ones are accepted, and nothing is answered."""
    service.redis.freeze()
    try:
        yield
    finally:
        service.redis.thaw()


@contextmanager
def full(service: Service) -> Iterator[None]:
    """It has no memory left, and refuses what would need some."""
    service.redis.client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        service.redis.client.config_set("maxmemory", 0)


@contextmanager
def demoted(service: Service) -> Iterator[None]:
    """It has become a replica after a failover: it answers, and writes nothing."""
    service.redis.client.config_set("replica-read-only", "yes")
    service.redis.client.replicaof("127.0.0.1", 1)
    try:
        yield
    finally:
        service.redis.client.replicaof("NO", "ONE")


REDIS: Final[Mapping[str, Outage]] = {
    "Redis forgets everything, all the time": forgetful,
    "Redis is killed, and comes back as it was": killed,
    "Redis is killed, and comes back empty": partial(killed, keeps=False),
    "Redis freezes with every connection open": frozen,
    "Redis has no memory left": full,
    "Redis takes no writes": demoted,
}


# -- of PostgreSQL -------------------------------------------------------------------------------------


@contextmanager
def stopped(service: Service, mode: Literal["fast", "immediate"]) -> Iterator[None]:
    """A restart, in order or as after a crash."""
    _postgresql(service).stop(mode)
    try:
        yield
    finally:
        _postgresql(service).start()


@contextmanager
def cut_off(service: Service) -> Iterator[None]:
    """Every connection is ended by the server, again and again."""
    is_over = threading.Event()

    def cut() -> None:
        while not is_over.wait(0.2):
            terminate_all(service)

    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        yield
    finally:
        is_over.set()
        cutting.join()


@contextmanager
def silent(service: Service) -> Iterator[None]:
    """The network takes everything and delivers nothing."""
    service.proxy["database"].set(Blackhole())
    try:
        yield
    finally:
        service.proxy["database"].heal()


@contextmanager
def refused(service: Service) -> Iterator[None]:
    """Every connection is refused."""
    service.proxy["database"].set(Refuse())
    try:
        yield
    finally:
        service.proxy["database"].heal()


@contextmanager
def read_only(service: Service) -> Iterator[None]:
    """It has become a standby: it answers, and writes nothing."""
    _administer(service, "ALTER SYSTEM SET default_transaction_read_only = on")
    # The server tells its older processes before it starts another.
    wait_for("a new connection is read-only", lambda: _is_read_only(service))
    try:
        yield
    finally:
        _administer(service, "ALTER SYSTEM RESET default_transaction_read_only")


@contextmanager
def crowded(service: Service) -> Iterator[None]:
    """Other clients have taken every connection there is."""
    with ExitStack() as taken:
        with refused(service):  # its own connections are taken as well
            while _takes_one_more(service, taken):
                pass
        yield


def _takes_one_more(service: Service, taken: ExitStack) -> bool:
    for _ in range(5):  # a server process takes a moment to go
        try:
            taken.enter_context(psycopg.connect(_address(service), autocommit=True))
            return True
        except psycopg.OperationalError:
            threading.Event().wait(0.05)
    return False


POSTGRESQL: Final[Mapping[str, Outage]] = {
    "PostgreSQL is restarted": partial(stopped, mode="fast"),
    "PostgreSQL crashes": partial(stopped, mode="immediate"),
    "every connection is terminated, again and again": cut_off,
    "the network before PostgreSQL swallows everything": silent,
    "PostgreSQL writes nothing any more": read_only,
    "PostgreSQL takes no more connections": crowded,
}


def terminate_all(service: Service) -> None:
    """End every connection to PostgreSQL but the one that does it."""
    with psycopg.connect(_address(service), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


def _administer(service: Service, statement: str) -> None:
    with psycopg.connect(_address(service), autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(statement)
        connection.execute("SELECT pg_reload_conf()")


def _is_read_only(service: Service) -> bool:
    with psycopg.connect(_address(service), autocommit=True) as connection:
        (setting,) = connection.execute("SHOW default_transaction_read_only").fetchone() or (None,)
        return bool(setting == "on")


def _address(service: Service) -> str:
    return _postgresql(service).url().replace("+psycopg", "")


def _postgresql(service: Service) -> PostgresServer:
    assert service.postgresql is not None, "the service stands on SQLite"
    return service.postgresql


# -- what an outage costs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recovery:
    """Seconds that requests wait because of an outage."""

    waiting_s: (
        float  # one that had rung and was not heard: until its answer, while the outage lasts or after it
    )
    prompt_s: float  # from the end of the outage until requests are answered at once again


def recovery(service: Service, outage: Outage, seconds: float) -> Recovery:
    """Let an outage of so long come over an idle service, at the moment in which a request has been accepted
    and no worker has heard of it.
    """
    workers = [role for role in service.kept if role.startswith("worker-")]
    with ExitStack() as lasting:
        with paused(service, *workers):
            for role in workers:  # each has asked Redis for one message already, and has it when it wakes
                submit_online(service, Row(role, "heard"))
            waiting = submit_online(service, Row("waiting", "before the outage"))
            lasting.enter_context(outage(service))
        began_s = time.monotonic()
        answered_s = None
        while (now_s := time.monotonic()) < began_s + seconds:
            if answered_s is None and have_ended(service, [waiting]):
                answered_s = now_s - began_s
            time.sleep(TICK_S)
    over_s = time.monotonic()
    if answered_s is None:
        wait_until_ended(service, [waiting])
        answered_s = time.monotonic() - over_s
    return Recovery(answered_s, prompt_after_s(service, over_s))


@contextmanager
def paused(service: Service, *roles: str) -> Iterator[None]:
    """They stand still: if all workers do, rings lie in Redis unfetched."""
    for role in roles:
        service.pause(role)
    try:
        yield
    finally:
        for role in roles:
            service.resume(role)


def prompt_after_s(service: Service, since_s: float) -> float:
    """Ask until a request is answered at once; how long after `since_s` it was made, in seconds."""
    while True:
        asked_s = time.monotonic()
        wait_until_ended(service, [submit_online(service, Row("prompt", "after the outage"))])
        if time.monotonic() - asked_s < PROMPT_S:
            return asked_s - since_s


def exhaustive_but(outages: Mapping[str, Outage], *taken: str) -> list[object]:
    """The names of outages, of which `make test` takes these."""
    marks = {name: () if name in taken else (pytest.mark.exhaustive,) for name in outages}
    return [pytest.param(name, marks=marks[name]) for name in outages]


def wait_until_ended(service: Service, jobs: Sequence[Job]) -> None:
    """All jobs have, whatever is still owed."""
    wait_for("the jobs have ended", lambda: have_ended(service, jobs))


def have_ended(service: Service, jobs: Sequence[Job]) -> bool:
    """False, too, while that cannot be told."""
    try:
        with service.store.snapshot() as tx:
            stored = [tx.jobs.get(DEFAULT_TENANT, job.id) for job in jobs]
    except DatabaseUnavailable:
        return False
    return all(job is not None and job.state.is_terminal for job in stored)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    is_postgresql = options.database == "postgresql"
    proxies = frozenset({"database"} if is_postgresql else ())
    parts = Parts(options.database, workers=2, proxies=proxies, are_forked=False)
    outages = POSTGRESQL if is_postgresql else REDIS
    print(f"{'outage':50} {'times':>5} {'waiting p50':>12} {'max s':>6} {'prompt p50':>12} {'max s':>6}")
    with (
        tempfile.TemporaryDirectory(prefix="ns-", dir=RAM_DISK) as folder,
        running(Path(folder), parts, **PRODUCTION) as service,
    ):
        for name, outage in outages.items():
            recoveries = [recovery(service, outage, options.seconds) for _ in range(options.times)]
            columns = [[one.waiting_s for one in recoveries], [one.prompt_s for one in recoveries]]
            shown = " ".join(f"{statistics.median(column):12.1f} {max(column):6.1f}" for column in columns)
            print(f"{name:50} {len(recoveries):5} {shown}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--database",
        choices=("sqlite", "postgresql"),
        default="sqlite",
        help="postgresql: its outages; sqlite: those of Redis",
    )
    parser.add_argument("--times", type=int, default=3, help="how often each outage is measured")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long it lasts")
    return parser


if __name__ == "__main__":
    main()
