"""The queue, Redis and the disk, as metrics."""

from dataclasses import replace
from datetime import timedelta

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from api.operation.metrics import Surroundings, queue_metrics
from nightshift.errors import QueueUnavailable
from nightshift.fleet.figures import ServiceFigures
from nightshift.fleet.workers import Worker, WorkerState
from nightshift.process.metrics.family import MODELS_MAX, OTHERS
from tests.helpers.fakes import STARTS_AT, a_worker
from tests.unit.nightshift.jobs.capacity.test_demand import a_waiting_job

PACE = ServiceFigures(at=STARTS_AT, rows_per_busy_s={"demo": 1.0})


def rendered(metrics: list[Metric]) -> str:
    class Given(Collector):
        def collect(self) -> list[Metric]:
            return metrics

    registry = CollectorRegistry()
    registry.register(Given())
    return generate_latest(registry).decode()


def shown(*waiting: object, workers: list[Worker] | None = None) -> str:
    metrics = queue_metrics(waiting, workers or [], PACE, STARTS_AT + timedelta(seconds=60))
    return rendered(metrics)


def test_the_queue_is_told_by_what_decides_who_may_run_it():
    draining = a_worker(models=("demo",), state=WorkerState.DRAINING)  # shortens no queue
    workers = [a_worker(models=("demo",)), draining]
    text = shown(a_waiting_job(queued=3, leased=2, rows_left=40), workers=workers)

    labels = 'capacity="any",class="standard",kind="bulk",model="demo"'
    for line in (
        'nightshift_shards_queued{kind="bulk"} 3.0',
        f"nightshift_queue_queued{{{labels}}} 3.0",
        f"nightshift_queue_leased{{{labels}}} 2.0",
        f"nightshift_queue_rows_left{{{labels}}} 40.0",
        f"nightshift_queue_oldest_seconds{{{labels}}} 60.0",
        'nightshift_workers_wanted{capacity="any",model="demo"} 1.0',
        'nightshift_deadline_slack_seconds{class="standard"} 900.0',
        'nightshift_workers{capacity="on_demand",state="ready"} 1.0',
        'nightshift_workers{capacity="on_demand",state="draining"} 1.0',
    ):
        assert line in text


def test_many_models_are_folded_and_nothing_of_them_is_lost():
    waiting = [a_waiting_job(model=f"model-{n}", queued=n + 1) for n in range(MODELS_MAX + 7)]

    families = {family.name: family for family in text_string_to_metric_families(shown(*waiting))}

    queued = families["nightshift_queue_queued"].samples
    assert len(queued) == MODELS_MAX + 1
    assert sum(sample.value for sample in queued) == sum(job.queued for job in waiting)
    [others] = [sample.value for sample in queued if sample.labels["model"] == OTHERS]
    assert others == sum(n + 1 for n in range(7)), "those with the fewest"
    assert sum(sample.value for sample in families["nightshift_workers_wanted"].samples) == len(waiting)


def test_a_models_name_cannot_break_the_page():
    name = 'a"} 1\nnightshift_workers_wanted{model="b\\'
    text = shown(replace(a_waiting_job(), model=name))

    for family in text_string_to_metric_families(text):
        assert {sample.labels.get("model", name) for sample in family.samples} <= {name}


def refuse() -> None:
    raise QueueUnavailable


def measured(surroundings: Surroundings) -> dict[str, float]:
    return {sample.name: sample.value for metric in surroundings.collect() for sample in metric.samples}


def test_redis_is_up_while_it_answers(tmp_path):
    assert measured(Surroundings(lambda: None, tmp_path))["nightshift_redis_up"] == 1
    assert measured(Surroundings(refuse, tmp_path))["nightshift_redis_up"] == 0


def test_the_disk_is_the_one_of_the_data_directory(tmp_path):
    values = measured(Surroundings(lambda: None, tmp_path))

    assert 0 <= values["nightshift_disk_free_bytes"] <= values["nightshift_disk_bytes"]
    assert values["nightshift_disk_bytes"] > 0


def test_a_disk_that_is_not_known_is_missing(tmp_path):
    assert set(measured(Surroundings(lambda: None, tmp_path / "none"))) == {"nightshift_redis_up"}
