"""What the API says of Redis and of its disk."""

from pathlib import Path

from api.metrics.surroundings import Surroundings
from nightshift.errors import QueueUnavailable


def refuse() -> None:
    raise QueueUnavailable


def shown(surroundings: Surroundings) -> dict[str, float]:
    return {sample.name: sample.value for metric in surroundings.collect() for sample in metric.samples}


def test_redis_is_up_while_it_answers(tmp_path: Path) -> None:
    assert shown(Surroundings(lambda: None, tmp_path))["nightshift_redis_up"] == 1
    assert shown(Surroundings(refuse, tmp_path))["nightshift_redis_up"] == 0


def test_the_disk_is_the_one_of_the_data_directory(tmp_path: Path) -> None:
    found = shown(Surroundings(lambda: None, tmp_path))

    assert 0 <= found["nightshift_disk_free_bytes"] <= found["nightshift_disk_bytes"]
    assert found["nightshift_disk_bytes"] > 0


def test_a_disk_that_is_not_known_is_missing(tmp_path: Path) -> None:
    assert set(shown(Surroundings(lambda: None, tmp_path / "none"))) == {"nightshift_redis_up"}
