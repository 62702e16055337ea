"""Does to a running service what the schedule says."""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nightshift.errors import DatabaseUnavailable
from nightshift.fleet.workers import WorkerState
from tests.e2e.upstreams.engines import Engine
from tests.faults.chaos.recoveries import Recoveries
from tests.faults.chaos.schedule import Action, Kind
from tests.faults.kit.processes import is_running, pause, resume, send
from tests.faults.kit.proxy import Blackhole, Fault, Latency
from tests.faults.kit.service import Service
from tests.helpers.waiting import wait_for

DELAY: Final = Latency(ms=100)
DELAY_S: Final = 3.0
AWAY_S: Final = 2.0  # of an upstream: longer than its breaker waits before a trial
BACK_S: Final = 100.0  # until it has started again
SILENCE_S: Final = 5.0  # longer than a lease is trusted
MARGIN_S: Final = 2.0  # what a paused process held has expired, and is taken
LOOK_S: Final = 0.1  # another process can only be asked again
READY_S: Final = 10.0  # a worker that is being started again is let come so far before it is killed again


class Damage:
    """Faults that last end by themselves, while others go on; `over` waits for that."""

    def __init__(self, service: Service, recoveries: Recoveries) -> None:
        self._service = service
        self._recoveries = recoveries
        self._lasting: list[threading.Timer] = []

    def do(self, action: Action) -> None:
        service, target = self._service, action.target
        match action.kind:
            case Kind.KILL_WORKER | Kind.KILL_MACHINE:
                self._wait_until_at_work(target.replace("machine", "worker"))
                self._kill(action)
            case Kind.KILL_SCHEDULER | Kind.KILL_API:
                self._kill(action)
            case Kind.KILL_UPSTREAM:
                upstream = service.upstreams[target]
                wait_for(f"{target} is back", lambda: upstream.is_running, BACK_S * service.parts.slower)
                if isinstance(upstream, Engine):
                    wait_for(f"{target} has rows", lambda: upstream.is_at_work)
                upstream.kill()
                self._later(AWAY_S, upstream.start)
            case Kind.FAILPOINT:
                service.arm(target)
            case Kind.DRAIN_WORKER:
                self._wait_until_at_work(target)
                service.kill(target, signal.SIGTERM)
            case Kind.PAUSE_WORKER:
                self._pause(target, for_s=self._setting("LEASE_TTL_S") + MARGIN_S)
            case Kind.PAUSE_SCHEDULER:
                self._pause(target, for_s=self._setting("LEADER_TTL_S") + MARGIN_S)
            case Kind.FLUSH_REDIS:
                service.redis.client.flushall()
            case Kind.KILL_REDIS:
                service.redis.kill()
                service.redis.start()
            case Kind.RESTART_DATABASE:
                assert service.postgresql is not None, "the schedule knows what there is"
                service.postgresql.restart()
            case Kind.CUT:
                service.proxy[target].reset_connections()
            case Kind.DELAY:
                self._disturb(target, DELAY, for_s=DELAY_S)
            case Kind.SILENCE:
                self._disturb(target, Blackhole(), for_s=SILENCE_S)

    def over(self) -> None:
        """Every fault that lasts has ended."""
        for timer in self._lasting:
            timer.join()

    def _kill(self, action: Action) -> None:
        role = action.target
        pid = self._service.pid(role)
        victim = self._service.pid(role.replace("machine", "worker"))
        missed = self._recoveries.before(role, victim)
        if send(pid, signal.SIGKILL):
            wait_for(f"{role} has gone", lambda: not is_running(victim))
            self._recoveries.died(action.kind, missed)

    def _wait_until_at_work(self, role: str) -> None:
        """A worker that has only just been started holds nothing yet. One that cannot get ready, because
        something else is broken, is killed as it is.
        """
        ends_at_s = time.monotonic() + READY_S * self._service.parts.slower
        while not self._is_at_work(role) and time.monotonic() < ends_at_s:
            time.sleep(LOOK_S)

    def _is_at_work(self, role: str) -> bool:
        pids = self._service.pids(role)
        with suppress(DatabaseUnavailable), self._service.store.snapshot() as tx:
            return bool(pids) and any(
                worker.pid == pids[0] for worker in tx.workers.list(state=WorkerState.READY)
            )
        return False

    def _pause(self, role: str, for_s: float) -> None:
        pid = self._service.pid(role)
        pause(pid)
        self._later(for_s, lambda: resume(pid))

    def _disturb(self, name: str, fault: Fault, for_s: float) -> None:
        proxy = self._service.proxy[name]
        proxy.set(fault)
        self._later(for_s, proxy.heal)

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, undo)
        timer.daemon = True
        timer.start()
        self._lasting.append(timer)

    def _setting(self, name: str) -> float:
        return float(self._service.environment[f"NIGHTSHIFT_{name}"])
