"""Outages of Redis and of the database, each for as long as its `with` block lasts."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Final, Literal

import psycopg
import pytest

from nightshift.errors import DatabaseUnavailable
from nightshift.tenants.keys import DEFAULT_TENANT
from tests.faults.chaos.workload import Job
from tests.faults.kit.proxy import Blackhole, Fault, Refuse
from tests.faults.kit.service import Service
from tests.helpers.waiting import wait_for
from tests.integration.servers import PostgresServer

Outage = Callable[[Service], AbstractContextManager[None]]


# -- of Redis ------------------------------------------------------------------------------------------


@contextmanager
def again_and_again(act: Callable[[], object], every_s: float) -> Iterator[None]:
    """Does it now, and until the block ends."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(every_s):
            act()

    repeating = threading.Thread(target=repeat)
    act()
    repeating.start()
    try:
        yield
    finally:
        is_over.set()
        repeating.join()


def forgetful(service: Service) -> AbstractContextManager[None]:
    """FLUSHALL, again and again."""
    return again_and_again(service.redis.client.flushall, 0.05)


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


def cut_off(service: Service) -> AbstractContextManager[None]:
    """Every connection is ended by the server, again and again."""
    return again_and_again(partial(terminate_all, service), 0.2)


@contextmanager
def disturbed(service: Service, fault: Fault) -> Iterator[None]:
    """The network before PostgreSQL fails in this way."""
    service.proxy["database"].set(fault)
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
        with disturbed(service, Refuse()):  # its own connections are taken as well
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
    "the network before PostgreSQL swallows everything": partial(disturbed, fault=Blackhole()),
    "PostgreSQL writes nothing any more": read_only,
    "PostgreSQL takes no more connections": crowded,
}


def terminate_all(service: Service) -> None:
    """Ends every connection to PostgreSQL but the one that does it."""
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


# -- around an outage ----------------------------------------------------------------------------------


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
