"""Decisions of `nightshift up` before it starts anything; the running whole is tests/e2e."""

import json
import logging
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.cli.processes import embedded, up, valkey
from nightshift.cli.processes.children import AfterExit, ChildExit, Launch
from nightshift.cli.processes.embedded import Embedded, Redis
from nightshift.cli.processes.gpus import Gpu, shares
from nightshift.cli.processes.up import ExitReporter
from nightshift.cli.session import data_settings
from nightshift.errors import ConfigurationError, DatabaseUnusable
from nightshift.fleet.checkpoints import Checkpoint
from nightshift.process.exit_codes import CONFIGURATION_EXIT
from nightshift.process.logs import HumanFormatter, JsonFormatter
from nightshift.process.settings import DataSettings
from nightshift.store import Store, open_database
from tests.helpers import fakes as testing
from tests.helpers.altering_proxy import Asked, Reply, answering
from tests.helpers.waiting import wait_for
from tests.integration.store.databases.recording import is_current


@pytest.fixture
def data(data_dir: Path) -> DataSettings:
    """Settings of a data directory that is there."""
    data_dir.mkdir()
    return data_settings()


@pytest.fixture
def site(data: DataSettings) -> Embedded:
    return Embedded(
        data=data,
        models=(
            Checkpoint("./minilm", is_hub_id=False, directory=Path("/models/minilm")),
            Checkpoint("org/llama", is_hub_id=True, directory=None),
        ),
        lazy_models=(),
        redis=Redis(url="redis+socket:///tmp/s", command=("valkey-server",)),
        host="127.0.0.1",
        port=8123,
        workers=shares(2, ()),
        file_roots=("/srv/in", "/srv/out"),
        webhook_cidrs=("127.0.0.0/8",),
        sockets=Path("/run/metrics"),
    )


def an_exit(returncode: int = 1) -> ChildExit:
    return ChildExit(name="api", pid=1, launch=Launch(()), returncode=returncode, uptime_s=1.0, in_a_row=1)


DRAINED = replace(an_exit(0), name="worker-1")


# -- nothing is started when it cannot work ------------------------------------------------------------


def test_a_model_that_is_not_there_is_said_before_anything_starts(nightshift, data_dir, monkeypatch):
    """Models of the option come before those of the environment."""
    monkeypatch.setenv("NIGHTSHIFT_MODELS", "./from-environment")
    assert "/from-environment" in nightshift("up").err

    ended = nightshift("up", "--model", "./from-option")

    assert ended.code == 1
    assert re.match("nightshift: model: there is no model at .*/from-option", ended.err)
    assert not data_dir.exists()


def test_a_port_in_use_is_said_before_anything_starts(nightshift, data_dir):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ended = nightshift("up", "--port", str(port))
    assert ended.code == 1
    assert f"nightshift: port: 127.0.0.1:{port} cannot be listened on" in ended.err
    assert not (data_dir / "logs").exists()


SAME_PORT = (
    "NIGHTSHIFT_WORKER_METRICS_PORT is 19401, and only one of 2 workers could serve its metrics there: "
    "set it to 0. GET /metrics of the API shows those of all\n"
)


@pytest.mark.parametrize(
    ("environment", "options", "said"),
    [
        (
            *({}, ("--host", "192.0.2.1")),  # of the documentation's network
            r"host: 192\.0\.2\.1:8000 cannot be listened on.*name an address of this machine with --host",
        ),
        (
            *({"NIGHTSHIFT_WORKER_METRICS_PORT": "19401"}, ("--workers", "2")),
            re.escape(f"workers: {SAME_PORT}"),
        ),
        ({}, ("--data-dir", f"{__file__}/data"), "data-dir: "),
        (
            *({valkey.OVERRIDE: "/nowhere/valkey-server"}, ("--port", "0")),
            ".*/nowhere/valkey-server, which cannot be run",
        ),
    ],
    ids=["an address of another machine", "one port for two workers", "a file", "no server to embed"],
)
def test_what_cannot_work_is_said_with_its_option(nightshift, monkeypatch, environment, options, said):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    ended = nightshift("up", *options)

    assert ended.code == 1
    assert re.match(f"nightshift: {said}", ended.err, re.DOTALL)


def test_a_second_up_in_the_same_directory_is_refused(nightshift, data_dir):
    with embedded.held(data_dir):
        ended = nightshift("up", "--port", "0")
    assert ended.code == 1
    assert "is in use by another `nightshift up`" in ended.err


def test_the_directory_is_free_again_when_its_holder_was_killed(data_dir):
    program = f"""
import pathlib, time
from nightshift.cli.processes.embedded import held
with held(pathlib.Path({str(data_dir)!r})):
    print("held", flush=True)
    time.sleep(600)
"""
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigurationError, match=f"process {holder.pid}"), embedded.held(data_dir):
            pytest.fail("the directory was given to two")
        holder.kill()
        holder.wait()
    with embedded.held(data_dir):
        assert (data_dir / "up.lock").exists()


def test_port_0_means_a_free_one():
    port = embedded.usable_port("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", port)):
        assert port > 0


# -- how the parts find one another --------------------------------------------------------------------


def test_the_processes_are_told_everything_by_environment(site, data_dir):
    told = site.environment()
    assert told["NIGHTSHIFT_DATA_DIR"] == str(data_dir)
    assert told["NIGHTSHIFT_DATABASE_URL"] == f"sqlite:///{data_dir}/nightshift.db"
    assert told["NIGHTSHIFT_STORAGE_URL"] == f"file://{data_dir}/objects"
    assert told["NIGHTSHIFT_REDIS_URL"] == "redis+socket:///tmp/s"
    assert told["NIGHTSHIFT_MODELS"] == "/models/minilm,org/llama"
    assert told["NIGHTSHIFT_BASE_URL"] == "http://127.0.0.1:8123"
    assert told["NIGHTSHIFT_FILE_ROOTS"] == "/srv/in,/srv/out"
    assert told["NIGHTSHIFT_READY_NEEDS_WORKER"] == "1"


def test_the_processes_start_in_stages_each_on_what_it_stands_on(site):
    stages = [[child.name for child in stage] for stage in site.stages()]
    assert stages == [["valkey"], ["api", "scheduler"], ["worker-1", "worker-2"]]


def test_each_worker_has_its_gpu_and_the_cores_near_it(site):
    near = frozenset(list(os.sched_getaffinity(0))[:1])
    site = replace(site, workers=shares(2, [Gpu("GPU-a", near), Gpu("GPU-b")]))
    launches = {child.name: child.launch() for stage in site.stages() for child in stage}

    gpu_of = {name: launch.environment.get("CUDA_VISIBLE_DEVICES") for name, launch in launches.items()}
    assert gpu_of == {
        "valkey": None,
        "api": None,
        "scheduler": None,
        "worker-1": "GPU-a",
        "worker-2": "GPU-b",
    }
    assert (launches["worker-1"].cpus, launches["worker-2"].cpus) == (near, frozenset())


def test_the_processes_are_called_by_command_line_and_import_nothing_from_where_the_user_stands(site):
    commands = {child.name: child.launch().command for stage in site.stages() for child in stage}
    assert commands["api"][:5] == (sys.executable, "-P", "-m", "uvicorn", "api.app:create_app")
    assert commands["api"][commands["api"].index("--app-dir") + 1] != ""
    assert commands["scheduler"] == (sys.executable, "-P", "-m", "scheduler")
    assert commands["worker-1"] == (sys.executable, "-P", "-m", "nightshift.cli.main", "worker")


def test_each_process_shows_its_metrics_on_a_socket_of_its_own_and_the_api_knows_all(site):
    told = {child.name: child.launch().environment for stage in site.stages() for child in stage}

    shown = [told[name]["NIGHTSHIFT_METRICS_SOCKET"] for name in ("scheduler", "worker-1", "worker-2")]
    assert shown == [f"/run/metrics/{name}.sock" for name in ("scheduler", "worker-1", "worker-2")]
    assert told["api"]["NIGHTSHIFT_METRICS_SOCKETS"] == ",".join(shown)
    assert "NIGHTSHIFT_METRICS_SOCKET" not in told["api"]


@pytest.mark.parametrize("name", ["deep" * 30, "a,b"])
def test_metrics_have_sockets_that_can_be_named(data_dir, name):
    awkward = data_dir / name
    awkward.mkdir(parents=True)
    with embedded.metrics_sockets(data_settings(awkward)) as sockets:
        assert len(str(sockets / "scheduler.sock")) <= embedded.SOCKET_PATH_BYTES_MAX
        assert "," not in str(sockets)
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700


def test_the_operators_redis_is_used_in_place_of_the_embedded_one(site, monkeypatch):
    monkeypatch.setenv("NIGHTSHIFT_REDIS_URL", "redis://elsewhere:6379/1")
    with embedded.embedded_redis(site.data) as redis:
        assert (redis.url, redis.command) == ("redis://elsewhere:6379/1", None)
        assert replace(site, redis=redis).stages()[0] == []


def test_a_long_path_gets_a_socket_that_the_kernel_can_name(data_dir, monkeypatch):
    long = data_dir / ("deep" * 30)
    long.mkdir(parents=True)
    with embedded.embedded_redis(data_settings(long)) as redis:
        socket_path = Path(redis.url.removeprefix("redis+socket://"))
        assert len(str(socket_path)) <= embedded.SOCKET_PATH_BYTES_MAX
        assert stat.S_IMODE(socket_path.parent.stat().st_mode) == 0o700
        assert redis.command is not None
        with subprocess.Popen(redis.command, stdout=subprocess.DEVNULL) as server:
            wait_for("its socket", socket_path.exists)
            server.terminate()
    assert not socket_path.parent.exists()


@pytest.mark.parametrize(
    ("host", "base_url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8123"),
        ("0.0.0.0", "http://127.0.0.1:8123"),
        ("::", "http://[::1]:8123"),
        ("gpu-1", "http://gpu-1:8123"),
    ],
)
def test_the_base_url_can_be_reached_whatever_is_listened_on(site, host, base_url):
    assert replace(site, host=host).base_url == base_url


def test_jobs_may_name_where_the_user_stands_or_what_the_operator_allows(data, data_dir, monkeypatch):
    """Never where the keys are: in the root directory, nothing but the data directory's own files."""
    assert embedded.allowed_file_roots(data) == (str(Path.cwd()), str(data_dir / "files"))
    monkeypatch.chdir("/")
    assert embedded.allowed_file_roots(data) == (str(data_dir / "files"),)

    monkeypatch.setenv("NIGHTSHIFT_FILE_ROOTS", "/srv/a,/srv/b")
    monkeypatch.setenv("NIGHTSHIFT_WEBHOOK_ALLOW_CIDRS", "10.0.0.0/8")
    assert embedded.allowed_file_roots(data) == ("/srv/a", "/srv/b")
    assert embedded.allowed_webhook_cidrs() == ("10.0.0.0/8",)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_no_webhook_may_reach_this_machine_unless_the_operator_says_so(site, host):
    allowed = replace(site, host=host, webhook_cidrs=embedded.allowed_webhook_cidrs()).environment()
    assert allowed["NIGHTSHIFT_WEBHOOK_ALLOW_CIDRS"] == ""


# -- the first key ----------------------------------------------------------------------------------------


def test_the_first_start_makes_the_schema_and_a_key_only_its_user_can_read_and_the_next_keeps_it(
    data, data_dir
):
    path = embedded.set_up_database(data)

    assert path == data_dir / "api_key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = path.read_text()
    with closing(open_database(data)) as database:
        assert is_current(database)
        with Store(database).snapshot() as tx:
            [kept] = tx.keys.list()
            assert kept.admits(first.strip(), tx.now())
    assert embedded.set_up_database(data).read_text() == first


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("ALTER TABLE segment DROP COLUMN earlier", r"column segment\.earlier is missing"),
        (
            "UPDATE alembic_version SET version_num = '0045'",
            r"is at migration 0045.*: begin with a new database",
        ),
    ],
)
def test_a_schema_that_this_version_cannot_use_ends_the_start_with_the_reason(data, statement, reason):
    embedded.set_up_database(data)
    with closing(open_database(data)) as database, database.write() as connection:
        connection.exec_driver_sql(statement)

    with pytest.raises(DatabaseUnusable, match=reason):
        embedded.set_up_database(data)


@pytest.mark.parametrize("lost", ["nightshift.db", "api_key"])
def test_a_key_that_opens_nothing_any_more_is_replaced(data, data_dir, lost):
    first = embedded.set_up_database(data).read_text()
    for path in data_dir.glob(f"{lost}*"):
        path.unlink()
    assert embedded.set_up_database(data).read_text() != first


def test_what_workers_held_when_the_machine_went_down_is_free_at_the_next_start(store, data_dir):
    with store.transaction() as tx:
        tx.workers.register(testing.a_worker(id="wrk_1"))
    testing.planned(store, shards=1)
    testing.claimed(store, "wrk_1")

    embedded.set_up_database(data_settings())

    assert testing.claimed(store, "wrk_2").lease.term == 2


# -- what it prints when it is ready -------------------------------------------------------------------


@pytest.fixture
def announced(site: Embedded, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Says what `nightshift up` prints when it is ready; by default no API answers."""
    site.key_file.write_text("sk-1\n")

    def announce(port: int = 1) -> str:
        up._announce(replace(site, port=port))
        return capsys.readouterr().out

    return announce


@pytest.mark.parametrize(
    ("kind", "route", "field"),
    [("decoder", "/v1/chat/completions", "messages"), ("encoder", "/v1/embeddings", "input")],
)
def test_it_prints_a_request_that_its_first_model_answers(site, announced, kind, route, field):
    first = site.models[0].id
    models = [
        {"id": "of-an-earlier-start", "kind": "decoder"},
        {"id": first, "kind": kind},
        {"id": "second", "kind": "decoder"},
    ]

    def answer(request: Asked) -> Reply:
        is_known = request.headers["authorization"] == "Bearer sk-1" and request.path == "/v1/models"
        return Reply(200 if is_known else 401, {}, json.dumps({"data": models}).encode())

    with answering(answer) as url:
        base_url = url.removesuffix("/v1")
        said = announced(int(base_url.rpartition(":")[2]))

    assert f"curl {base_url}{route} " in said
    body = json.loads(said.partition("-d '")[2].partition("'\n")[0])
    assert body["model"] == first
    assert field in body
    assert f"export NIGHTSHIFT_BASE_URL={base_url} " in said


def test_it_prints_what_the_commands_need_to_find_it(site, announced, monkeypatch, tmp_path):
    """Another terminal has not the variables of this one."""
    data_dir = f"NIGHTSHIFT_DATA_DIR={site.data.data_dir}\n"
    for set_here in (site.data.data_dir, tmp_path / "another"):
        monkeypatch.setenv("NIGHTSHIFT_DATA_DIR", str(set_here))
        said = announced()
        assert f"in another terminal: export NIGHTSHIFT_BASE_URL=http://127.0.0.1:1 {data_dir}" in said
    assert "curl" not in said, "no API has said which models there are"

    monkeypatch.setenv("NIGHTSHIFT_BASE_URL", "http://127.0.0.1:8000")
    assert f"in another terminal: export {data_dir}" in announced(8000)


def test_it_says_which_networks_and_ports_webhooks_may_reach(announced, monkeypatch):
    monkeypatch.setenv("NIGHTSHIFT_WEBHOOK_PORTS", "443,9000")
    assert "webhooks may reach 127.0.0.0/8, the public internet on ports 443, 9000\n" in announced()


# -- exits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "workers", "after", "said"),
    [
        (
            *(an_exit(-9), 2, AfterExit.RESTART),
            "api (pid 1) was ended by SIGKILL after 1.0 s; starting it again",
        ),
        (an_exit(CONFIGURATION_EXIT), 2, AfterExit.GIVE_UP, ""),
        (DRAINED, 2, AfterExit.LEAVE, "worker-1 was drained and stays away; the others go on"),
        (
            *(DRAINED, 1, AfterExit.LEAVE),
            "worker-1 was drained and stays away; no worker is left: start `nightshift up` again",
        ),
    ],
)
def test_an_exit_is_reported_and_followed_by(ended, workers, after, said, capsys):
    """Before it was ready, a death means that it cannot start."""
    reporter = ExitReporter(workers)
    assert reporter(an_exit()) is AfterExit.GIVE_UP
    assert reporter.fatal == an_exit()
    capsys.readouterr()

    reporter.is_ready = True
    assert reporter(ended) is after
    assert capsys.readouterr().err.removesuffix("\n") == said


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "20:00:00 critical worker  cannot start: The model 'm' cannot be served: no weights\n"
            "nightshift: giving up: worker (pid 3) exited with 78 after 2.0 s\n",
            "cannot start: The model 'm' cannot be served: no weights",
        ),
        (
            "Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'\n",
            "ModuleNotFoundError: No module named 'x'",
        ),
        ("it was killed before it could say anything\n", None),
    ],
)
def test_why_a_process_ended_is_found_in_its_log(tmp_path, log, reason):
    (tmp_path / "worker-1.log").write_text(log)
    assert up.last_reason(tmp_path / "worker-1.log") == reason


@pytest.mark.parametrize("formatter", [JsonFormatter("worker"), HumanFormatter("worker")])
def test_the_upstream_that_a_worker_waits_for_is_the_last_line_of_its_log(tmp_path, formatter):
    path = tmp_path / "worker-1.log"
    about = {"upstream": "gpu-1:8000", "reason": "answers 503", "repeated": 3}
    awaits = logging.makeLogRecord({"levelno": logging.WARNING, "msg": "waiting for an upstream", **about})
    ready = logging.makeLogRecord({"levelno": logging.INFO, "msg": "worker ready"})
    assert up.awaited_upstream(path) is None
    path.write_text(f"{formatter.format(awaits)}\n")
    assert up.awaited_upstream(path) == "waiting for the upstream gpu-1:8000, which answers 503"
    path.write_text(f"{formatter.format(awaits)}\n{formatter.format(ready)}\n")
    assert up.awaited_upstream(path) is None


def test_a_model_that_is_no_directory_here_is_said_to_be_taken_for_a_hub_id(nightshift, monkeypatch):
    monkeypatch.setenv("NIGHTSHIFT_MODEL_DOWNLOADS", "true")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = nightshift("up", "--model", "my_model", "--port", str(listener.getsockname()[1]))
    assert ended.code == 1
    assert ended.err.startswith("no directory my_model here: taking it for a hub id\n")
