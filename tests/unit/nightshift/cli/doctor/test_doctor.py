import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.cli.doctor import site
from nightshift.cli.doctor.checks import machine, models
from nightshift.cli.doctor.checks import service as service_checks
from tests.faults.kit import metadata
from tests.faults.kit.metadata import Trouble
from tests.helpers.altering_proxy import Asked, Reply, answering


@pytest.fixture
def a_model(tmp_path: Path) -> Path:
    directory = tmp_path / "a_model"
    directory.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (directory / name).write_text("{}")
    return directory


FITS = {
    "cuda": {"devices": []},
    "device": "cpu",
    "memory_bytes": 8 << 30,
    "models": [{"id": "a_model", "weights_bytes": 1 << 30, "least_bytes": 2 << 30}],
    "problem": None,
}


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch, a_model: Path) -> None:
    """An installation in which nothing is wrong: nothing started yet, and a port that is free.

    The workers' code, which imports torch, is asked in tests/integration/cli/doctor.
    """
    monkeypatch.setattr(models, "worker_report", lambda site: FITS)
    monkeypatch.setenv("NIGHTSHIFT_MODELS", str(a_model))
    monkeypatch.setenv("NIGHTSHIFT_SPOT_PROVIDER", "none")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("NIGHTSHIFT_BASE_URL", f"http://127.0.0.1:{port}")


def by_id(ended) -> dict[str, dict[str, object]]:
    return {result["id"]: result for result in ended.json}


def failed(ended) -> list[str]:
    return [id for id, result in by_id(ended).items() if result["status"] == "error"]


def test_a_fresh_installation_is_well_and_its_storage_is_left_as_it_was(nightshift, healthy, data_dir):
    ended = nightshift("doctor")
    assert ended.code == 0
    assert all(line.startswith(("OK ", "SKIPPED ")) for line in ended.out.splitlines())
    assert [path for path in (data_dir / "objects").rglob("*") if path.is_file()] == []


IDS = [
    "data_directory", "disk.space", "disk.inodes", "process.files", "ports.metrics", "database",
    "database.schema", "database.clock", "queue", "queue.eviction", "queue.persistence", "queue.clock",
    "storage", "storage.conditions", "storage.multipart", "storage.latency", "storage.clock",
    "storage.uploads", "model.files:a_model", "gpu", "model.memory", "spot", "egress.webhooks",
    "egress.proxies", "api_key", "server", "service", "scheduler", "retention", "workers",
]  # fmt: skip


def test_ids_are_what_scripts_rely_on_and_each_result_has_the_documented_fields(nightshift, healthy):
    results = by_id(nightshift("doctor", "--json"))

    assert list(results) == IDS
    page = (Path(__file__).parents[5] / "docs" / "doctor.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    documented = {id for cell in cells for id in re.findall(r"`([a-z_.]+)(?::ID)?`", cell)}
    assert {id.partition(":")[0] for id in IDS} <= documented
    for result in results.values():
        assert set(result) == {"id", "name", "status", "ok", "detail", "advice", "figures", "seconds"}
        assert result["status"] in {"ok", "warning", "error", "skipped"}
        assert result["detail"]
        assert result["advice"] or result["status"] in {"ok", "skipped"}


@pytest.mark.parametrize(
    ("variable", "value", "part", "advice"),
    [
        ("DATABASE_URL", "mysql://x", "database", "use sqlite:/// or postgresql://"),
        (
            *("DATABASE_URL", "postgresql://x:hidden@127.0.0.1:1/x?connect_timeout=2", "database"),
            "is it running? NIGHTSHIFT_DATABASE_URL says where",
        ),
        ("REDIS_URL", "redis://:hidden@127.0.0.1:1/0", "queue", "start Redis"),
        ("STORAGE_URL", "ftp://x/y", "storage", "use s3://bucket/key or file:///path"),
        ("STORAGE_URL", "hf://datasets/org/name", "storage", "use s3://bucket/key or file:///path"),
        ("MODELS", "/nowhere/llama", "model.files:llama", "NIGHTSHIFT_MODELS"),
        ("BASE_URL", "localhost:8000", "server", "must begin with http:// or https://"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(
    nightshift, healthy, monkeypatch, variable, value, part, advice
):
    monkeypatch.setenv(f"NIGHTSHIFT_{variable}", value)

    ended = nightshift("doctor", "--json")

    assert (ended.code, failed(ended)) == (1, [part])
    assert advice in by_id(ended)[part]["advice"]
    assert "hidden@" not in ended.out


def test_an_adapter_that_was_added_and_has_gone_is_named_with_what_to_do(nightshift, healthy, data_dir):
    data_dir.mkdir(mode=0o700)
    (data_dir / "adapters").write_text("sum=a_model+/nowhere/sum\nother=not_served+/nowhere/other\n")

    ended = nightshift("doctor", "--json")

    assert (ended.code, failed(ended)) == (1, ["model.files:sum"])
    assert "remove-adapter sum" in by_id(ended)["model.files:sum"]["advice"]


def test_a_damaged_installation_is_noticed_part_by_part(nightshift, healthy, a_model, data_dir, monkeypatch):
    data_dir.mkdir()
    (data_dir / "nightshift.db").touch()
    (data_dir / "api_key").write_text("ns_live_key")
    (data_dir / "api_key").chmod(0o644)
    refused = FITS | {"problem": "The models do not fit this worker's device together"}
    monkeypatch.setattr(models, "worker_report", lambda site: refused)
    monkeypatch.setattr(machine, "DISK_FREE_MIN_BYTES", 1 << 62)

    ended = nightshift("doctor", "--json")

    results = by_id(ended)
    assert (ended.code, failed(ended)) == (1, ["disk.space", "database.schema", "model.memory", "api_key"])
    assert "make room" in results["disk.space"]["advice"]
    assert "nightshift.store.databases.migrate" in results["database.schema"]["advice"]
    assert "do not fit" in results["model.memory"]["detail"]
    assert "chmod 600" in results["api_key"]["advice"]


def test_a_model_without_weights_is_noticed(nightshift, healthy, a_model):
    (a_model / "model.safetensors").unlink()
    ended = nightshift("doctor", "--json")
    assert failed(ended) == ["model.files:a_model"]
    assert "weights are missing" in by_id(ended)["model.files:a_model"]["detail"]


CANARY = "canary-7f3a"


@pytest.mark.parametrize("storage", ["", "s3://bucket/key"])
def test_no_check_shows_a_secret(nightshift, healthy, monkeypatch, storage):
    here = f"user:{CANARY}@127.0.0.1:1"
    for name, value in {
        "NIGHTSHIFT_DATABASE_URL": f"postgresql://{here}/x?connect_timeout=2&password={CANARY}",
        "NIGHTSHIFT_REDIS_URL": f"redis://{here}/0?password={CANARY}",
        "NIGHTSHIFT_BASE_URL": f"http://{here}/v1",
        "NIGHTSHIFT_API_KEY": f"ns_live_{CANARY}",
        "NIGHTSHIFT_SECRET_KEY": CANARY,
        "NIGHTSHIFT_STORAGE_URL": storage,
        "AWS_ACCESS_KEY_ID": CANARY,
        "AWS_SECRET_ACCESS_KEY": CANARY,
        "AWS_SESSION_TOKEN": CANARY,
        "AWS_ENDPOINT_URL": f"http://{here}",
        "HTTPS_PROXY": f"http://{here}",
        "HF_TOKEN": CANARY,
    }.items():
        monkeypatch.setenv(name, value)

    ended = nightshift("doctor", "--json")

    assert {"database", "queue"} <= set(failed(ended))
    assert CANARY not in ended.out


def test_what_needs_a_part_that_fails_is_skipped(nightshift, healthy, monkeypatch):
    monkeypatch.setenv("NIGHTSHIFT_STORAGE_URL", "ftp://x/y")

    results = by_id(nightshift("doctor", "--json"))

    reason = "not looked at, because 'storage' is not well"
    assert {id for id, result in results.items() if result["detail"] == reason} == {
        *(f"storage.{part}" for part in ("conditions", "multipart", "latency", "clock", "uploads")),
        "retention",
    }


@pytest.mark.parametrize("provider", ["aws", "gcp", "azure"])
def test_the_metadata_server_is_asked_for_spot_notices(nightshift, healthy, monkeypatch, provider):
    def spot() -> dict[str, object]:
        return by_id(nightshift("doctor", "--json"))["spot"]

    assert spot()["detail"] == "does not apply: NIGHTSHIFT_SPOT_PROVIDER is none"
    with metadata.serving() as cloud:
        monkeypatch.setenv("NIGHTSHIFT_SPOT_PROVIDER", provider)
        monkeypatch.setenv("NIGHTSHIFT_SPOT_METADATA_URL", cloud.url)
        answers = spot()
        assert answers["status"] == "ok"
        assert answers["detail"] == f"the metadata server of {provider} answers: no notice stands"
        cloud.is_interrupted = True
        assert spot()["detail"] == f"{provider} is about to take this machine away"
        cloud.trouble = Trouble.FAILS
        assert "answers 500" in str(spot()["detail"])
    assert "NIGHTSHIFT_SPOT_METADATA_URL" in str(spot()["advice"]), "no server listens there any more"


def test_for_a_person_the_advice_stands_below(nightshift, healthy, monkeypatch):
    monkeypatch.setenv("NIGHTSHIFT_MODELS", "/nowhere/llama")
    out = nightshift("doctor").out
    assert "ERROR    model llama: there is no model at /nowhere/llama\n         → NIGHTSHIFT_MODELS" in out


def test_something_else_on_the_servers_port_is_noticed(nightshift, healthy, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("NIGHTSHIFT_BASE_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr(service_checks, "ANSWER_TIMEOUT_S", 0.2)
        ended = nightshift("doctor", "--json")
    assert ended.code == 1
    assert "taken" in by_id(ended)["server"]["advice"]


def test_a_machine_without_torch_does_not_say_whether_models_fit(nightshift, healthy, monkeypatch):
    def absent(site: object) -> dict[str, object]:
        raise models.NoWorkerHere("torch is not installed")

    monkeypatch.setattr(models, "worker_report", absent)
    ended = nightshift("doctor", "--json")
    assert (ended.code, by_id(ended)["model.memory"]["status"]) == (0, "skipped")


def test_a_warning_does_not_make_it_fail(nightshift, healthy, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://user:canary-password@proxy.internal:3128")

    ended = nightshift("doctor", "--json")

    assert ended.code == 0
    result = by_id(ended)["egress.proxies"]
    assert result["status"] == "warning"
    assert "proxy.internal:3128" in result["detail"]
    assert "canary-password" not in ended.out


class FakeService:
    """Two models, and workers that are ready for some; admits one key."""

    key = "ns_live_key"
    ready: tuple[str, ...] = ("minilm", "llama")

    def __call__(self, request: Asked) -> Reply:
        if request.path == "/readyz":
            return self._json({"status": "ready"})
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return self._json({"error": {"message": "Incorrect API key provided."}}, 401)
        if request.path == "/v1/models":
            return self._json({"data": [{"id": "minilm"}, {"id": "llama"}]})
        ready, stopped = {"status": "ready", "models": self.ready}, {"status": "stopped", "models": ["llama"]}
        return self._json({"data": [ready, stopped]})

    def _json(self, body: object, status: int = 200) -> Reply:
        return Reply(status, {}, json.dumps(body).encode())


@pytest.fixture
def service(healthy: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    fake = FakeService()
    with answering(fake) as url:
        monkeypatch.setenv("NIGHTSHIFT_BASE_URL", url.removesuffix("/v1"))
        monkeypatch.setenv("NIGHTSHIFT_API_KEY", fake.key)
        yield fake


def test_of_a_service_that_runs_the_models_are_listed(nightshift, service):
    ended = nightshift("doctor", "--json")
    assert ended.code == 0
    assert by_id(ended)["service"]["detail"] == "admits the key and serves minilm, llama"


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("ns_live_another", "the key in NIGHTSHIFT_API_KEY is not one of this server's"),
        ("ns_live_schlüssel", "characters that no key has"),
    ],
)
def test_a_key_that_the_service_refuses_is_noticed(nightshift, service, monkeypatch, key, advice):
    monkeypatch.setenv("NIGHTSHIFT_API_KEY", key)
    ended = nightshift("doctor", "--json")
    assert ended.code == 1
    assert advice in by_id(ended)["service"]["advice"]
    assert key not in ended.out


def test_a_model_without_a_ready_worker_is_noticed(nightshift, service):
    service.ready = ("minilm",)
    ended = nightshift("doctor", "--json")
    assert ended.code == 1
    assert by_id(ended)["service"]["detail"].endswith("minilm, llama (no worker is ready)")


@pytest.mark.parametrize(
    ("redis_url", "advice"),
    [(None, "start `nightshift up` again"), ("redis://127.0.0.1:1/0", "`nightshift worker --model …`")],
)
def test_how_to_start_a_worker_depends_on_whose_the_queue_is(
    nightshift, service, monkeypatch, redis_url, advice
):
    service.ready = ()
    if redis_url is not None:
        monkeypatch.setenv("NIGHTSHIFT_REDIS_URL", redis_url)

    result = by_id(nightshift("doctor", "--json"))["service"]

    assert advice in result["advice"]
    assert ("nightshift worker" in result["advice"]) == (redis_url is not None)


@pytest.mark.parametrize("broken", ["read", "put"])
def test_a_store_that_cannot_be_trusted_is_named_with_what_to_do(nightshift, healthy, monkeypatch, broken):
    monkeypatch.setattr(site, "open_store", lambda url: UntrustyStore(broken))

    result = by_id(nightshift("doctor", "--json"))["storage"]

    assert result["detail"].endswith("written" if broken == "read" else "replaced")
    assert "name another store in NIGHTSHIFT_STORAGE_URL" in result["advice"]


class UntrustyStore:
    """Gives back other bytes, or replaces what it was told not to."""

    url = "file:///untrusty"

    def __init__(self, broken: str) -> None:
        self._broken = broken
        self._content = b""

    def put(self, key: str, content: bytes, *, if_absent: bool) -> None:
        self._content = self._content or content

    def read(self, key: str) -> bytes:
        return b"" if self._broken == "read" else self._content

    def delete(self, key: str) -> None: ...

    def close(self) -> None: ...
