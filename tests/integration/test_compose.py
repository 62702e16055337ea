"""Promises of docker-compose.yml beyond its schema."""

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PASSWORD = "${REDIS_PASSWORD:-nightshift}"


def test_the_queue_asks_for_a_password_that_every_process_and_its_health_check_know() -> None:
    valkey = COMPOSE["services"]["valkey"]
    assert valkey["command"][-2:] == ["--requirepass", PASSWORD]
    assert valkey["environment"]["REDISCLI_AUTH"] == PASSWORD
    for name in ("migrate", "api", "scheduler", "worker"):
        url = COMPOSE["services"][name]["environment"]["NIGHTSHIFT_REDIS_URL"]
        assert url == f"redis://:{PASSWORD}@valkey:6379/0"


def test_monitoring_starts_only_where_it_is_asked_for() -> None:
    """Its services are not waited for by any other."""
    services = COMPOSE["services"]
    monitoring = {name for name, service in services.items() if "monitoring" in service.get("profiles", ())}
    assert monitoring == {"prometheus", "grafana"}
    for name in services.keys() - monitoring:
        assert not monitoring & set(services[name].get("depends_on", ()))


def test_prometheus_scrapes_the_ports_at_which_processes_show_their_metrics() -> None:
    config = yaml.safe_load((ROOT / "infra/prometheus/prometheus.yml").read_text())
    api, scheduler, worker = config["scrape_configs"]
    services = COMPOSE["services"]

    assert api["static_configs"] == [{"targets": ["api:8000"]}]
    assert services["api"]["ports"] == ["127.0.0.1:${NIGHTSHIFT_PORT:-8000}:8000"]
    [target] = scheduler["static_configs"][0]["targets"]
    port = services["scheduler"]["environment"]["NIGHTSHIFT_SCHEDULER_METRICS_PORT"]
    assert port == f"${{NIGHTSHIFT_SCHEDULER_METRICS_PORT:-{target.removeprefix('scheduler:')}}}"
    [discovered] = worker["dns_sd_configs"]
    port = services["worker"]["environment"]["NIGHTSHIFT_WORKER_METRICS_PORT"]
    assert discovered["names"] == ["worker"]
    assert port == f"${{NIGHTSHIFT_WORKER_METRICS_PORT:-{discovered['port']}}}"


def test_grafana_finds_its_data_source_and_its_dashboards() -> None:
    mounts = dict(mount.split(":")[:2] for mount in COMPOSE["services"]["grafana"]["volumes"])
    here = {inside: ROOT / outside for outside, inside in mounts.items() if outside.startswith(".")}
    provisioning = here["/etc/grafana/provisioning"]
    [source] = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    [provider] = yaml.safe_load((provisioning / "dashboards/nightshift.yml").read_text())["providers"]

    assert source["url"] == "http://prometheus:9090"
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert [*here[provider["options"]["path"]].glob("*.json")]
    home = COMPOSE["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    folder, _, name = home.rpartition("/")
    assert (here[folder] / name).exists()
