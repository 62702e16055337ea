"""The support bundle holds what is needed, and neither a secret nor a tenant's data."""

import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from nightshift.cli.main import main
from nightshift.doctor import collecting
from nightshift.doctor.bundle import BUNDLE_BYTES_MAX, ENTRY_BYTES_MAX, FOLDER
from nightshift.doctor.checks import models
from nightshift.store import Store
from nightshift.testing import a_spec, a_worker, asked, planned
from tests.databases import migrated_sqlite
from tests.faults.kit.proxy import Blackhole, proxied
from tests.integration.servers import S3Server, free_port

CANARY = "canary-7f3a"
SECRETS = {
    "NIGHTSHIFT_SECRET_KEY": f"{CANARY}-secret-key",
    "NIGHTSHIFT_API_KEY": f"ns_live_{CANARY}-api-key",
    "NIGHTSHIFT_REDIS_URL": f"redis://user:{CANARY}-redis@127.0.0.1:1/0",
    "NIGHTSHIFT_WEBHOOK_TOKEN": f"{CANARY}-no-setting-of-ours",
    "AWS_ACCESS_KEY_ID": f"{CANARY}-aws-id",
    "AWS_SECRET_ACCESS_KEY": f"{CANARY}-aws",
    "AWS_SESSION_TOKEN": f"{CANARY}-aws-session",
    "AWS_ENDPOINT_URL": f"http://user:{CANARY}-endpoint@127.0.0.1:1",
    "HTTPS_PROXY": f"http://user:{CANARY}-proxy@127.0.0.1:1",
    "HF_TOKEN": f"hf_{CANARY}-hub",
    "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {CANARY}-otlp,x-key={CANARY}-otlp-key",
}
PRESIGNED = f"https://bucket.s3.amazonaws.com/key?X-Amz-Credential={CANARY}&X-Amz-Signature={CANARY}"
LOG = (
    "12:00:00 info    api  job accepted  job=job_1",
    f"12:00:01 error   api  part unavailable  error=redis://user:{CANARY}-redis@127.0.0.1:1/0 refused",
    f"12:00:02 warning worker  cannot read {PRESIGNED}",
    f"12:00:03 error   api  authorization: Bearer ns_live_{CANARY}",
    f"12:00:03 warning api  the collector refused {CANARY}-otlp-key",
    "12:00:04 info    scheduler  the line before the last",
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process imports torch, and no server runs."""
    monkeypatch.setattr(models.WorkerReports, "__call__", _no_worker)
    monkeypatch.setenv("NIGHTSHIFT_BASE_URL", f"http://127.0.0.1:{free_port()}")


def _no_worker(self: object, site: object) -> dict[str, object]:
    raise models.NoWorkerHere("torch is not installed")


@pytest.fixture
def installation(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a canary in every secret, in jobs' bodies and in logs."""
    data_dir.mkdir()
    (data_dir / "api_key").write_text(f"ns_live_{CANARY}-key-file")
    (data_dir / "secret_key").write_text(f"{CANARY}-vault-file")
    (data_dir / "logs").mkdir()
    (data_dir / "logs" / "api.log").write_text("\n".join(LOG) + "\n")
    store = Store(migrated_sqlite(data_dir / "nightshift.db"))
    asked(store, body={"messages": [{"role": "user", "content": f"{CANARY}-prompt"}]})
    template = {"messages": [{"role": "user", "content": f"{CANARY}-template"}]}
    planned(
        store,
        shards=2,
        spec=a_spec(name=f"{CANARY}-name", metadata={"team": f"{CANARY}-metadata"}, template=template),
        webhook_secret=f"{CANARY}-webhook".encode(),
    )
    with store.transaction() as tx:
        tx.workers.register(a_worker(host="gpu-1"))
    store.close()
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    return data_dir


def run(installation: Path, path: Path, *more: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--data-dir", str(installation), "--bundle", str(path), *more])
    return int(ended.value.code or 0)


def members(path: Path) -> dict[str, str]:
    with tarfile.open(path) as bundle:
        found = {member.name: bundle.extractfile(member) for member in bundle.getmembers()}
        return {name.removeprefix(f"{FOLDER}/"): file.read().decode() for name, file in found.items() if file}


def test_no_canary_gets_in_and_what_is_needed_does(installation: Path, tmp_path: Path, capsys):
    run(installation, tmp_path / "bundle.tar.gz")

    found = members(tmp_path / "bundle.tar.gz")
    assert [name for name, text in found.items() if CANARY in text] == []
    captured = capsys.readouterr()
    assert CANARY not in captured.out + captured.err

    assert set(found) >= {
        *("contents.json", "checks.json", "settings.json", "versions.json", "schema.json", "queue.json"),
        *("workers.json", "logs/api.log"),
    }
    settings = json.loads(found["settings.json"])
    assert settings["settings"]["NIGHTSHIFT_API_KEY"] == {"value": "[hidden]", "is_set": True}
    assert settings["settings"]["NIGHTSHIFT_REDIS_URL"]["value"] == "redis://[hidden]@127.0.0.1:1/0"
    assert settings["settings"]["NIGHTSHIFT_LEASE_TTL_S"] == {"value": 30.0, "is_set": False}
    assert settings["environment"]["NIGHTSHIFT_WEBHOOK_TOKEN"] == "[set]"
    assert settings["environment"]["HTTPS_PROXY"] == "http://[hidden]@127.0.0.1:1"
    queue = json.loads(found["queue.json"])
    assert {(each["kind"], each["queued"]) for each in queue["waiting"]} == {("online", 1), ("bulk", 2)}
    assert json.loads(found["workers.json"])[0]["host"] == "gpu-1"
    assert "the line before the last" in found["logs/api.log"]
    assert "job accepted  job=job_1" in found["logs/api.log"]
    assert json.loads(found["schema.json"])["applied"] == json.loads(found["schema.json"])["newest"]
    checks = {each["id"]: each["status"] for each in json.loads(found["checks.json"])}
    assert checks["queue"] == "error"


def test_every_secret_setting_has_a_canary_here():
    from nightshift.settings import HOLD_PASSWORDS

    covered = {name.removeprefix("NIGHTSHIFT_").lower() for name in SECRETS}
    assert HOLD_PASSWORDS - covered == {"database_url"}, "that one is in the next test"


def test_a_databases_password_does_not_get_in_either(installation: Path, tmp_path: Path, monkeypatch):
    url = f"postgresql://user:{CANARY}-database@127.0.0.1:1/x?connect_timeout=2&password={CANARY}-query"
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", url)

    assert run(installation, tmp_path / "bundle.tar.gz") == 1

    found = members(tmp_path / "bundle.tar.gz")
    assert [name for name, text in found.items() if CANARY in text] == []
    assert "postgresql://[hidden]@127.0.0.1:1/x" in found["settings.json"]
    assert json.loads(found["contents.json"])["queue.json"] == "could not be collected: DatabaseUnavailable"


def test_only_its_owner_can_read_it(installation: Path, tmp_path: Path):
    before = os.umask(0)
    try:
        run(installation, tmp_path / "bundle.tar.gz")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "bundle.tar.gz").stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "directory"])
def test_what_is_there_is_not_overwritten_and_nothing_is_looked_at(
    installation: Path, tmp_path: Path, monkeypatch, capsys, kind: str
):
    path, kept = tmp_path / "bundle.tar.gz", tmp_path / "kept"
    kept.write_text("kept")
    match kind:
        case "file":
            path.write_text("kept")
        case "link":
            path.symlink_to(kept)
        case "dangling link":
            path.symlink_to(tmp_path / "nowhere")
        case "directory":
            path.mkdir()
    monkeypatch.setattr("nightshift.doctor.running.examine", pytest.fail)

    assert run(installation, path) == 1

    assert "exists already: name another file" in capsys.readouterr().err
    assert kept.read_text() == "kept"
    assert not (tmp_path / "nowhere").exists()


def test_a_place_that_cannot_be_written_to_is_one_line(installation: Path, tmp_path: Path, capsys):
    assert run(installation, tmp_path / "nowhere" / "bundle.tar.gz") == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_doctor_that_is_interrupted_leaves_no_half_a_bundle(
    installation: Path, tmp_path: Path, monkeypatch
):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nightshift.doctor.bundle.write_bundle", interrupted)
    assert run(installation, tmp_path / "bundle.tar.gz") == 130
    assert not (tmp_path / "bundle.tar.gz").exists()


def test_its_size_is_bounded_whatever_the_logs_are(installation: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(collecting, "LOG_BYTES_MAX", 2 * ENTRY_BYTES_MAX)
    for number in range(40):
        with (installation / "logs" / f"worker-{number}.log").open("w") as log:
            for line in range(30_000):
                log.write(f"{line} {'x' * 80}\n")
    (installation / "logs" / "one-line.log").write_text("y" * 5_000_000)

    run(installation, tmp_path / "bundle.tar.gz")

    with tarfile.open(tmp_path / "bundle.tar.gz") as bundle:
        sizes = {member.name: member.size for member in bundle.getmembers()}
    contents = sizes.pop(f"{FOLDER}/contents.json")
    assert sum(sizes.values()) <= BUNDLE_BYTES_MAX
    assert max(sizes.values()) <= ENTRY_BYTES_MAX
    assert contents < 10_000
    assert len(sizes) < 30


def test_a_log_ends_with_its_last_whole_lines(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(collecting, "LOG_BYTES_MAX", 25)
    (tmp_path / "api.log").write_text("the first line\nthe second\nthe last\n")
    assert collecting.last_lines(tmp_path / "api.log") == "the second\nthe last\n"


def test_a_server_that_hangs_is_left_out(
    installation: Path, tmp_path: Path, monkeypatch, moto_server: S3Server
):
    monkeypatch.delenv("HTTPS_PROXY")
    monkeypatch.setattr(collecting, "ANSWER_TIMEOUT_S", 600)
    with proxied(moto_server.port) as proxy:
        proxy.set(Blackhole())
        monkeypatch.setenv("NIGHTSHIFT_BASE_URL", f"http://127.0.0.1:{proxy.port}")
        run(installation, tmp_path / "bundle.tar.gz", "--timeout", "3")
    contents = json.loads(members(tmp_path / "bundle.tar.gz")["contents.json"])
    assert contents["readyz.json"] == "gave no answer within 3 s"
    assert contents["workers.json"].endswith("bytes")


def test_names_in_it_stay_in_its_folder(installation: Path, tmp_path: Path):
    (installation / "logs" / "..evil.log").write_text("x\n")
    run(installation, tmp_path / "bundle.tar.gz")
    with tarfile.open(tmp_path / "bundle.tar.gz") as bundle:
        assert all(member.isreg() and member.name.startswith(f"{FOLDER}/") for member in bundle.getmembers())
        assert not any(".." in Path(member.name).parts for member in bundle.getmembers())
        bundle.extractall(tmp_path / "out")
    assert os.listdir(tmp_path / "out") == [FOLDER]
