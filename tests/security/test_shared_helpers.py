"""Beside any load of one tenant, another's item is the next that a shared helper takes.

`HELPERS` are those that run items; the others of `IN_TURN` have tests of their own, on real databases and
engines. Every module that makes threads or places is named here.
"""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from anyio.from_thread import start_blocking_portal

from api.services.threads import STORAGE_THREADS_MAX, StorageThreads
from nightshift.jobs import Job
from nightshift.tenants.turns import TurnThreads
from nightshift_engine import Grammar
from nightshift_engine.guidance import compiler
from nightshift_engine.guidance.compiler import GrammarCompiler
from scheduler.runtime.thread_pools import JobPool, JobPoolConfig, leaves_a_thread
from tests.helpers.fakes import a_job
from workers.leases.isolation import Isolation, SuspectQueue
from workers.serving.kinds.generators import GRAMMARS_COMPILED_MAX, grammar_threads
from workers.serving.servers.image_server import THREADS

ROOT: Final = Path(__file__).resolve().parents[2]
WAIT_MAX_S: Final = 60
MANY, ONE = "many", "one"


class Gate:
    """Items come in and stay until the test lets one go on."""

    def __init__(self) -> None:
        self.came: list[str] = []  # tenants, in order
        self._may_go = 0
        self._is_open = False
        self._changed = threading.Condition()

    def pass_through(self, tenant: str) -> None:
        with self._changed:
            self.came.append(tenant)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._is_open or self._may_go > 0, WAIT_MAX_S)
            self._may_go -= 1

    def let_one_go(self) -> None:
        with self._changed:
            self._may_go += 1
            self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def wait_for(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self.came) >= count, WAIT_MAX_S)


Put = Callable[[str], object]
"""Gives a helper an item of a tenant, and returns at once."""


def threads(gate: Gate, stack: ExitStack, patch: pytest.MonkeyPatch) -> Put:
    pool = TurnThreads("tried", THREADS + 1)
    stack.callback(pool.stop)
    return lambda tenant: pool.run(tenant, lambda: gate.pass_through(tenant))


def suspects(gate: Gate, stack: ExitStack, patch: pytest.MonkeyPatch) -> Put:
    isolation = Isolation()

    def begin(request: tuple[str, object]) -> bool:
        gate.pass_through(request[0])
        isolation.leave(request)
        isolation.release(request)
        return True

    queue = SuspectQueue[tuple[str, object]](isolation, begin, lambda request: True)
    stack.callback(queue.stop)
    return lambda tenant: queue.put((tenant, object()), tenant)


def grammars(gate: Gate, stack: ExitStack, patch: pytest.MonkeyPatch) -> Put:
    """Puts a grammar on the threads that all models of a worker share."""

    def matcher(table: object, grammar: Grammar) -> object:
        gate.pass_through(grammar.text.partition(" ")[0])
        return object()

    patch.setattr(compiler, "_matcher", matcher)
    patch.setattr(GrammarCompiler, "_token_table", lambda self: None)
    compiling = GrammarCompiler(None, 1, (), grammar_threads().run)  # type: ignore[arg-type]
    numbers = iter(range(1_000))

    def put(tenant: str) -> None:
        compiling.compile(Grammar("regex", f"{tenant} {next(numbers)}"), cache_salt=tenant, flow=tenant)

    return put


def storage(gate: Gate, stack: ExitStack, patch: pytest.MonkeyPatch) -> Put:
    portal = stack.enter_context(start_blocking_portal("asyncio"))
    threads = portal.call(StorageThreads)
    futures: list[Future[None]] = []
    stack.callback(lambda: [future.result(WAIT_MAX_S) for future in futures])

    def put(tenant: str) -> None:
        call = partial(gate.pass_through, tenant)
        futures.append(portal.start_task_soon(threads.for_tenant(tenant).run, call))

    return put


def jobs(gate: Gate, stack: ExitStack, patch: pytest.MonkeyPatch) -> Put:
    """The pool looks for work in passes."""
    waiting: list[Job] = []

    def fetch(limit: int, after: Job | None) -> list[Job]:
        return waiting[:limit]

    def work(job: Job) -> str:
        waiting.remove(job)
        gate.pass_through(job.tenant_id)
        return "done"

    pool = JobPool("tried", fetch, work, JobPoolConfig(threads_max=4), leaves_a_thread(4))
    stop = threading.Event()
    numbers = iter(range(1_000))

    def passes() -> None:
        while not stop.wait(0.01):
            pool.run_once(datetime(2026, 1, 1, tzinfo=UTC))

    thread = threading.Thread(target=passes, daemon=True)
    thread.start()
    stack.callback(thread.join, WAIT_MAX_S)
    stack.callback(stop.set)
    return lambda tenant: waiting.append(a_job(id=f"{tenant}-{next(numbers)}", tenant_id=tenant))


HELPERS: Final[dict[str, tuple[int, Callable[[Gate, ExitStack, pytest.MonkeyPatch], Put]]]] = {
    "images: reading and fetching": (THREADS, threads),
    "suspected requests": (1, suspects),
    "grammars": (GRAMMARS_COMPILED_MAX, grammars),
    "calls of the object store": (STORAGE_THREADS_MAX - 1, storage),
    "assembly": (3, jobs),
}
"""How many items of a tenant alone each has under way, and how it is made."""
LEAVES_NO_PLACE: Final = "suspected requests"
"""A tenant alone has all of it: another's item begins as soon as one ends."""


@pytest.mark.parametrize("name", HELPERS)
def test_another_tenants_item_is_taken_next_after_at_most_those_under_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, make = HELPERS[name]
    gate = Gate()
    with ExitStack() as stack:
        put = make(gate, stack, monkeypatch)
        stack.callback(gate.open)
        for _ in range(at_once + 40):
            put(MANY)
        assert gate.wait_for(at_once)
        assert gate.came == [MANY] * at_once

        put(ONE)
        if name == LEAVES_NO_PLACE:
            gate.let_one_go()
        assert gate.wait_for(at_once + 1)
        assert gate.came[at_once] == ONE


IN_TURN: Final = {
    "api/middleware/turns.py",  # reads, checks of bodies, and their records
    "api/services/services.py",  # opens these
    "api/services/threads.py",  # calls of the object store
    "nightshift/tenants/turns.py",
    "scheduler/duties/assembly.py",
    "scheduler/duties/planning.py",
    "scheduler/duties/webhook_delivery.py",
    "scheduler/output/running_manifests.py",
    "scheduler/duties/running_output.py",  # parts
    "scheduler/runtime/thread_pools.py",
    "nightshift_engine/core/batcher.py",
    "nightshift_engine/encoders/batcher.py",
    "workers/online/publisher.py",
    "workers/online/runner.py",
    "workers/leases/isolation.py",
    "workers/output_parts.py",
    "workers/serving/servers/image_server.py",
    "workers/serving/kinds/generators.py",
    "workers/upstreams/running/server.py",
}
OF_ONE_TENANT: Final = {
    "nightshift/bulk/results/part_leases.py",  # of a part
    "nightshift/bulk/results/shard_results.py",  # of a shard
    "workers/shard/reader.py",
    "workers/shard/runner.py",
    "workers/shard/checkpoints.py",
}
REFUSES: Final = {
    # More than two at a time of a tenant are refused, and none waits.
    "api/services/previews.py",
    "api/services/webhook_samples.py",
}
SHORT_ITEMS: Final = {
    # One command or row each, sent in batches of a few hundred; what an engine makes comes in turn.
    "api/services/rings.py",
    "nightshift/broker/hints.py",
}
OF_NO_TENANT: Final = {
    "api/operation/processes.py",
    "api/page/updates.py",
    "nightshift/cli/top/polling.py",
    "nightshift/cli/doctor/examination.py",
    "nightshift/outbound/safe_http.py",  # a thread for each look-up
    "nightshift/cli/processes/store_watch.py",
    "nightshift/cli/processes/supervisor.py",
    "nightshift/process/tracing/sdk.py",
    "scheduler/__main__.py",
    "scheduler/runtime/loop.py",
    "nightshift_engine/loading/weights.py",  # reads weights
    "nightshift_engine/guidance/compiler.py",  # of an engine outside a worker
    "nightshift_engine/loading/ranks/processes.py",  # they wait for the ends of processes
    "nightshift_engine/loading/ranks/rank.py",
    "workers/leases/heartbeat.py",
    "workers/health/notices.py",
    "workers/health/watchdog.py",
    "workers/intake/claiming.py",
    "workers/runtime.py",
    "workers/serving/engine_process/engine_process.py",  # waits for the process to end
    "workers/serving/engine_process/program.py",  # waits for the worker to end
    "workers/serving/loading.py",  # models' steps on a CPU, each for the same time
    "workers/serving/residency/residency.py",
    "workers/serving/stepping_server.py",
    "workers/upstreams/running/loop.py",
}
MAKES_THREADS: Final = re.compile(
    r"threading\.Thread\(|ThreadPoolExecutor\(|CapacityLimiter\(|SimpleQueue\(|Semaphore\("
    r"|\w*Turns\(|TurnThreads\(|TurnQueue[\[(]|JobPool\(|BoundedCalls\("
)


def sources() -> Iterator[tuple[str, str]]:
    for package in ("api", "nightshift", "nightshift_engine", "scheduler", "workers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def test_every_place_that_makes_threads_or_places_is_named_here() -> None:
    known = IN_TURN | OF_ONE_TENANT | REFUSES | SHORT_ITEMS | OF_NO_TENANT
    unknown = [path for path, text in sources() if MAKES_THREADS.search(text) and path not in known]

    assert unknown == [], "say whether tenants share them, and how they take turns"
