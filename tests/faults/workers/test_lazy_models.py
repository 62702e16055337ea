"""Workers that are killed, told to go or left alone while a lazy model comes or goes: no row is lost, none is
charged, and what waits is served.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from nightshift.fleet.workers import ExitCause
from tests.faults.chaos import oracle
from tests.faults.chaos.oracle import Limits
from tests.faults.chaos.workload import BulkJob, Row, some_rows, submit_bulk, submit_online
from tests.faults.conftest import ServiceOf
from tests.faults.kit.service import Parts, Service
from tests.helpers.waiting import wait_for

LEFT, RIGHT = "left", "right"  # lazy models, of which one fits at a time
SETTINGS = {"LAZY_MODELS": f"{LEFT},{RIGHT}", "MODEL_RESIDENCY_S": "0.2", "MODEL_IDLE_S": "0"}
ONCE = Limits(attempts_max=1)


@pytest.fixture(scope="module")
def shared(module_service_of: ServiceOf, tmp_path_factory: pytest.TempPathFactory) -> Service:
    loading = tmp_path_factory.mktemp("models") / "loading"
    return module_service_of(Parts(), FAKE_LOADING=str(loading), **SETTINGS)


def warm(service: Service) -> set[str]:
    """Models that living workers have loaded, or are loading."""
    return {
        model for worker in service.workers().values() if worker.ended_cause is None for model in worker.warm
    }


def ended(service: Service, pid: int) -> ExitCause | None:
    worker = service.worker_of(pid)
    return worker and worker.ended_cause


@contextmanager
def no_load_ends(service: Service) -> Iterator[None]:
    """Requests under way and those to come."""
    file = Path(service.environment["NIGHTSHIFT_FAKE_LOADING"])
    file.touch()
    try:
        yield
    finally:
        file.unlink()


def make_cold(service: Service, model: str) -> None:
    """Swaps the model by a request for the other one."""
    other = RIGHT if model == LEFT else LEFT
    job = submit_online(service.asking(other), Row("other", "make room"))
    oracle.quiesce(service, [job])
    assert model not in warm(service)


def rows_of(service: Service, model: str, count: int = 12) -> BulkJob:
    return submit_bulk(service.asking(model), some_rows(count))


def test_a_worker_that_is_killed_while_it_loads_a_model_loads_it_again(service):
    make_cold(service, LEFT)
    with no_load_ends(service):
        job = rows_of(service, LEFT)
        request = submit_online(service.asking(LEFT), Row("one", "hello"))
        wait_for("it is being loaded", lambda: LEFT in warm(service))
        service.kill_and_wait("worker-1")

    oracle.judge(service.asking(LEFT), [job, request], ONCE)
    assert LEFT in warm(service)


def test_a_worker_that_is_killed_while_a_model_makes_room_loses_nothing_of_both(service):
    """The model cannot go before its online request ends, which waits."""
    make_cold(service, RIGHT)
    with service.held():
        job = rows_of(service, LEFT)
        held = submit_online(service.asking(LEFT), Row("held", "!wait"))
        wait_for("it runs", lambda: service.job(held.id).state == "running")
        request = submit_online(service.asking(RIGHT), Row("one", "hello"))
        wait_for("it makes room", lambda: LEFT not in warm(service))
        service.kill_and_wait("worker-1")

    oracle.judge(service.asking(LEFT), [job, held])
    oracle.judge(service.asking(RIGHT), [request], ONCE)


def test_a_worker_that_is_told_to_go_does_not_wait_for_a_load(service):
    make_cold(service, LEFT)
    pid = service.pid("worker-1")
    with no_load_ends(service):
        request = submit_online(service.asking(LEFT), Row("one", "hello"))
        wait_for("it is being loaded", lambda: LEFT in warm(service))
        assert service.stop("worker-1") == 0
        assert ended(service, pid) is ExitCause.DRAINED
    service.start("worker-1")

    oracle.judge(service.asking(LEFT), [request], ONCE)


def test_a_client_that_leaves_while_its_model_is_loaded_runs_nothing_and_others_are_served(service):
    make_cold(service, LEFT)
    before = len(service.stamps())
    with no_load_ends(service), service.http() as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/chat/completions", json=Row("gone", "gone").body(LEFT), timeout=1.0)
        wait_for("it is being loaded", lambda: LEFT in warm(service))
        [gone, *_] = [job["id"] for job in http.get("/v1/jobs").json()["data"] if job["model"] == LEFT]
        wait_for("its job has ended", lambda: service.job(gone).state == "cancelled")

    others = [submit_online(service.asking(model), Row("one", "hello")) for model in (LEFT, RIGHT)]
    oracle.quiesce(service, others)
    added = [stamp for stamp in service.stamps()[before:] if stamp.what == "added"]
    assert len(added) == len(others)


@pytest.mark.exhaustive
def test_a_load_that_does_not_end_ends_the_worker_and_charges_nothing(service_of, tmp_path):
    settings = SETTINGS | {"FAKE_LOADING": str(tmp_path / "loading"), "MODEL_LOAD_TIMEOUT_S": "1"}
    service = service_of(Parts(), **settings)
    pid = service.pid("worker-1")
    with no_load_ends(service):
        running = submit_bulk(service, some_rows(8, step_ms=100, tokens=(100, 100)))
        request = submit_online(service.asking(LEFT), Row("one", "hello"))
        wait_for("its end is recorded", lambda: ended(service, pid))
    assert ended(service, pid) is ExitCause.STUCK_LOAD

    oracle.judge(service, [running])
    oracle.judge(service.asking(LEFT), [request], ONCE)
    assert "loading a model has not ended" in service.log("worker-1")


def test_two_workers_that_swap_at_once_give_every_row_one_result(service_of):
    """Each has room for one, and one is killed meanwhile."""
    service = service_of(Parts(workers=2), **SETTINGS)
    of_model = {
        model: [
            submit_bulk(service.asking(model), some_rows(40, seed=seed, step_ms=10)),
            *(submit_online(service.asking(model), Row(f"{n}", f"hello {n}")) for n in range(6)),
        ]
        for seed, model in enumerate((LEFT, RIGHT))
    }
    wait_for("a model is warm", lambda: warm(service))
    service.kill("worker-1")

    for model, all_of_it in of_model.items():
        oracle.judge(service.asking(model), all_of_it)
