"""Doctor's findings about workers and models: by the database, and by the worker's own code."""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.cli import demo
from nightshift.cli.doctor.checks import models
from nightshift.cli.doctor.examination import Status
from nightshift.cli.doctor.site import Site
from nightshift.fleet.figures import ServiceFigures
from nightshift.fleet.workers import WorkerState
from nightshift.process.settings import DataSettings
from nightshift.store import Store
from tests.helpers.databases import migrated_sqlite
from tests.helpers.fakes import a_spec, a_worker, planned
from tests.integration.cli.doctor.conftest import Look, expect


@pytest.fixture
def store(data_dir: Path) -> Iterator[Store]:
    data_dir.mkdir()
    store = Store(migrated_sqlite(data_dir / "nightshift.db"))
    yield store
    store.close()


def register(store: Store, state: WorkerState, host: str = "elsewhere", pools: tuple[str, ...] = ()) -> None:
    with store.transaction() as tx:
        now = tx.now()
        tx.workers.register(
            a_worker(
                host=host,
                state=state,
                models=("demo_model",),
                pools=pools,
                started_at=now,
                heartbeat_at=now,
            )
        )


def test_an_idle_service_without_workers_is_well(look: Look, store: Store):
    finding = look("workers")
    assert (finding.status, finding.detail) == (Status.OK, "workers: none")


def test_work_without_a_worker_is_an_error(look: Look, store: Store):
    planned(store, shards=2)
    finding = expect(look("workers"), Status.ERROR)
    assert finding.detail == "workers: none; shards that wait: 2 bulk"
    assert finding.figures == {"ready": 0, "queued": 2, "wanted": 1, "missing": 1}
    assert "work waits for" in finding.advice


def test_work_with_a_worker_is_well(look: Look, store: Store):
    planned(store, shards=2, model="demo_model")
    planned(store, model="demo_model", spec=a_spec(pool="nightly"))
    register(store, WorkerState.READY, pools=("daily", "nightly"))
    assert look("workers").status is Status.OK


def test_work_for_a_model_that_no_worker_has_is_an_error(look: Look, store: Store):
    planned(store, shards=2, model="another")
    register(store, WorkerState.READY)
    expect(look("workers"), Status.ERROR, "another (1 wanted, 0 ready, capacity any)")


def test_work_for_a_pool_without_a_worker_is_an_error(look: Look, store: Store):
    planned(store, shards=2, model="demo_model", spec=a_spec(pool="nightly", capacity="spot"))
    planned(store, model="demo_model")
    register(store, WorkerState.READY, pools=("daily",))
    expect(
        look("workers"),
        Status.ERROR,
        "demo_model (1 wanted, 0 ready, capacity spot, pool nightly) and no worker",
        "`NIGHTSHIFT_CAPACITY=spot NIGHTSHIFT_POOLS=nightly nightshift up` again",
    )


def test_more_work_than_the_workers_end_in_time_is_a_warning(look: Look, store: Store):
    """100,000 rows within a day, of which a busy worker runs one in 2 seconds."""
    planned(store, shards=20, rows_total=100_000, model="demo_model")
    register(store, WorkerState.READY)
    with store.transaction() as tx:
        tx.figures.record(ServiceFigures(at=tx.now(), rows_per_busy_s={"demo_model": 0.5}))
    finding = expect(look("workers"), Status.WARNING, "demo_model (3 wanted, 1 ready, capacity any)")
    assert finding.figures["missing"] == 2


def test_a_scheduler_that_is_missing_while_jobs_wait_is_an_error(look: Look, store: Store):
    planned(store)
    expect(look("scheduler"), Status.ERROR, "start `python -m scheduler`")


def test_models_that_a_worker_of_this_machine_has_loaded_fit(look: Look, store: Store):
    register(store, WorkerState.READY, host=socket.gethostname())
    assert "on this machine has them loaded" in look("model.memory").detail


def test_the_workers_code_says_that_models_fit(look: Look):
    """The worker's code runs in a process of its own, with the demo model."""
    finding = expect(look("model.memory", timeout_s=100), Status.OK, "demo_model")
    assert 0 < finding.figures["needed_bytes"] < finding.figures["free_bytes"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("MODELS", "do not fit this worker's device together"),
        ("LAZY_MODELS", "'demo_model' does not fit"),
    ],
)
def test_the_workers_code_says_that_models_do_not_fit(look: Look, monkeypatch, variable: str, said: str):
    monkeypatch.setenv(f"NIGHTSHIFT_{variable}", str(demo.demo_model_path()))
    monkeypatch.setenv("NIGHTSHIFT_DEVICE_MEMORY_BYTES", str(2 << 20))
    finding = expect(look("model.memory", timeout_s=100), Status.ERROR)
    assert said in finding.detail
    assert variable == "LAZY_MODELS" or "NIGHTSHIFT_LAZY_MODELS" in finding.detail


def test_a_device_that_is_not_there_is_an_error(look: Look, monkeypatch):
    import shutil

    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    assert look("gpu").status is Status.SKIPPED
    monkeypatch.setenv("NIGHTSHIFT_DEVICE", "cuda")
    expect(look("gpu"), Status.ERROR, "NIGHTSHIFT_DEVICE is cuda")


SAW_NONE = {"cuda": {"torch": "2.13.0+cpu", "cuda": None, "devices": [], "why_none": "Torch not compiled"}}
SAW_ONE = {"cuda": {"torch": "2.13.0", "cuda": "13.0", "devices": [{"name": "NVIDIA H100"}]}}


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An nvidia-smi that says this."""

    def say(script: str) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return say


def gpu(data_dir: Path, said: dict[str, object]):
    return models.look_at_gpu(Site(data=DataSettings(data_dir=data_dir)), lambda: said)


def test_a_gpu_is_described_with_its_driver(driver, data_dir):
    driver("echo 'NVIDIA H100 80GB HBM3, 580.82.07, 81559, 512, 34'")
    finding = expect(gpu(data_dir, SAW_ONE), Status.OK)
    assert finding.detail == (
        "NVIDIA H100 80GB HBM3, driver 580.82.07, 512 of 81559 MiB used, 34 °C; torch 2.13.0, CUDA 13.0"
    )


def test_a_gpu_that_torch_cannot_use_is_a_warning_and_an_error_where_it_was_asked_for(
    driver, data_dir, monkeypatch
):
    driver("echo 'NVIDIA H100 80GB HBM3, 580.82.07, 81559, 512, 34'")
    expect(gpu(data_dir, SAW_NONE), Status.WARNING, "a worker would compute on the CPU")
    monkeypatch.setenv("NIGHTSHIFT_DEVICE", "cuda")
    assert gpu(data_dir, SAW_NONE).status is Status.ERROR


@pytest.mark.parametrize(
    "script",
    [
        "echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18",
        "exit 9",
        "echo 'No devices'",
    ],
)
def test_a_driver_that_does_not_answer_is_an_error(driver, data_dir, script):
    driver(script)
    assert gpu(data_dir, SAW_ONE).status is Status.ERROR


def test_a_driver_that_hangs_is_an_error(driver, data_dir, monkeypatch):
    monkeypatch.setattr(models, "DRIVER_S", 0.2)
    driver("exec sleep 600")
    assert "gave no answer within 0.2 s" in gpu(data_dir, SAW_ONE).detail
