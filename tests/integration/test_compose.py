"""What docker-compose.yml promises beyond its schema."""

from pathlib import Path

import yaml

COMPOSE = yaml.safe_load((Path(__file__).resolve().parents[2] / "docker-compose.yml").read_text())
PASSWORD = "${REDIS_PASSWORD:-nightshift}"


def test_the_queue_asks_for_a_password_that_every_process_and_its_health_check_know() -> None:
    valkey = COMPOSE["services"]["valkey"]
    assert valkey["command"][-2:] == ["--requirepass", PASSWORD]
    assert valkey["environment"]["REDISCLI_AUTH"] == PASSWORD
    for name in ("migrate", "api", "scheduler", "worker"):
        url = COMPOSE["services"][name]["environment"]["NIGHTSHIFT_REDIS_URL"]
        assert url == f"redis://:{PASSWORD}@valkey:6379/0"
