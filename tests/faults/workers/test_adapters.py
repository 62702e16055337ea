"""A worker killed while it reads an adapter into its slot: its requests are answered by the next one."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nightshift.cli.demo import demo_model_path
from nightshift.jobs import JobState
from tests.faults.chaos.workload import OnlineJob, Row, submit_online
from tests.faults.conftest import ServiceOf
from tests.faults.kit.processes import wait_for
from tests.faults.kit.service import Parts, Service
from tests.unit.engine.tiny.adapters import save_adapter

ROW = Row("one", "48213", 12, sampling={"temperature": 0})


@contextmanager
def a_stuck_read(weights: Path) -> Iterator[Callable[[], None]]:
    """Within it the next reader of the file waits for its bytes. The yielded function waits for that one;
    those that come later read the file as it was.
    """
    kept = weights.rename(weights.with_suffix(".kept"))
    os.mkfifo(weights)
    writers: list[int] = []

    def has_reader() -> bool:
        try:
            writers.append(os.open(weights, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody reads
                raise
        return bool(writers)

    def wait_until_read() -> None:
        wait_for("the adapter is being read", has_reader)
        kept.rename(weights)

    try:
        yield wait_until_read
    finally:
        for writer in writers:
            os.close(writer)


def answered(service: Service, job: OnlineJob) -> str:
    wait_for("it has ended", lambda: service.job(job.id).state.is_terminal)
    assert service.job(job.id).state is JobState.SUCCEEDED
    with service.http() as http:
        [row] = http.get(f"/v1/jobs/{job.id}/results").json()["data"]
    text: str = row["response"]["body"]["choices"][0]["message"]["content"]
    return text


def test_a_worker_killed_while_it_loads_an_adapter_loses_no_request(
    service_of: ServiceOf, tmp_path: Path
) -> None:
    demo = demo_model_path()
    one, two = (Path(save_adapter(tmp_path / f"{seed}", demo, seed=seed).path) for seed in range(2))
    named = f"{demo},one={demo}+{one},two={demo}+{two}"
    service = service_of(Parts(engine="demo"), MODELS=named, ENGINE_MAX_LORAS="1")
    before = [answered(service, submit_online(service.asking(model), ROW)) for model in ("one", "two")]

    with a_stuck_read(one / "adapter_model.safetensors") as wait_until_read:
        jobs = [submit_online(service.asking(model), ROW) for model in ("one", "two")]
        wait_until_read()
        service.kill_and_wait("worker-1")

    assert [answered(service, job) for job in jobs] == before
    assert before[0] != before[1]
