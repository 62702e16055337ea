"""`nightshift up`: the whole service on one machine."""

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from nightshift.cli.processes.children import AfterExit, ChildExit
from nightshift.cli.processes.gpus import Workers, gpus_for, shares
from nightshift.cli.processes.store_watch import Probe, StoreWatch
from nightshift.cli.processes.supervisor import Supervisor
from nightshift.cli.session import DataDir, LazyModels, Upstreams, data_settings
from nightshift.cli.terminal import fail, is_interactive, print_error, printable, say
from nightshift.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.status import Status

    from nightshift.cli.processes.embedded import Embedded
    from nightshift.process.settings import DataSettings

PROBE_PREFIX: Final = "nightshift-probe/"  # nothing is there
BUCKETS_WATCHED_MAX: Final = 20  # buckets of jobs; each is asked in a thread of its own
READY_POLL_S: Final = 0.2
READY_TIMEOUT_S: Final = 5.0  # per request; the start itself is not limited, since large models load slowly
LOG_TAIL_LINES: Final = 15

# A process's reason to end in its log: our words, else a traceback's last line.
_REASON: Final = re.compile(r"(?:cannot start: |The model .* cannot be served: |^\w[\w.]*Error: ).*")
# A line of a log, for people or of JSON.
_AWAITED: Final = re.compile(
    r'waiting for an upstream\b.*\bupstream\W+([^\s"]+)\W+reason\W+(.+?)(?:"|\s\w+=|$)'
)


def up(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="PATH_OR_ID",
            help="A model to serve: a directory or a hub id. May be repeated.  "
            "[default: NIGHTSHIFT_MODELS, else the demo model]",
            show_default=False,
        ),
    ] = None,
    lazy_model: LazyModels = None,
    upstream: Upstreams = None,
    data_dir: DataDir = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free one.")
    ] = 8000,
    workers: Workers = None,
) -> None:
    """Run the whole service on this machine.

    Embedded Valkey, SQLite and a directory as object store; API, scheduler and worker as processes that are
    kept running. Ready when GET /readyz answers 200. Ctrl-C stops it: unfinished work is kept, and goes on at
    the next start.
    """
    from nightshift.cli import demo
    from nightshift.cli.models import with_added
    from nightshift.cli.processes import embedded
    from nightshift.fleet import checkpoints
    from nightshift.process.private_files import keep_files_private
    from nightshift.process.settings import WorkerSettings, check_settings
    from nightshift.process.upstreams import read_upstreams

    check_settings()
    settings = WorkerSettings()
    upstreams = tuple(upstream or settings.upstreams)
    read_upstreams(upstreams)
    gpus = () if upstreams else gpus_for(settings.device, settings.engine_tensor_parallel_size)
    workers = workers or len(gpus) or 1
    if workers > 1 and settings.worker_metrics_port:
        raise ConfigurationError(
            f"NIGHTSHIFT_WORKER_METRICS_PORT is {settings.worker_metrics_port}, and only one of {workers} "
            "workers could serve its metrics there: set it to 0. GET /metrics of the API shows those of all",
            param="workers",
        )
    lazy_names = tuple(lazy_model or settings.lazy_models)
    names = tuple(model or settings.models)
    data = data_settings(data_dir)
    if not upstreams:
        if not names and not lazy_names:
            names = (str(demo.demo_model_path()),)
        names = with_added(names, data.data_dir)
    models, lazy_models = (
        tuple(checkpoints.find(name, may_download=settings.model_downloads) for name in chosen)
        for chosen in (names, lazy_names)
    )
    checkpoints.check_references(
        [model.reference for model in models], [model.reference for model in lazy_models]
    )
    for checkpoint in (*models, *lazy_models):
        if checkpoint.is_hub_id:
            say(f"no directory {checkpoint.name} here: taking it for a hub id")
    keep_files_private(data, warn=say)
    with contextlib.ExitStack() as stack:
        stack.enter_context(embedded.held(data.data_dir))
        site = embedded.Embedded(
            data=data,
            models=models,
            lazy_models=lazy_models,
            upstreams=upstreams,
            redis=stack.enter_context(embedded.embedded_redis(data)),
            host=host,
            port=embedded.usable_port(host, port),
            workers=shares(workers, gpus),
            file_roots=embedded.allowed_file_roots(data),
            webhook_cidrs=embedded.allowed_webhook_cidrs(),
            sockets=stack.enter_context(embedded.metrics_sockets(data)),
        )
        embedded.set_up_database(data)
        _run(site, stack)


def _run(site: "Embedded", stack: contextlib.ExitStack) -> None:
    from nightshift.process.logs import set_up_logging

    site.logs.mkdir(exist_ok=True)
    set_up_logging("up", site.log_settings, stack.enter_context((site.logs / "up.log").open("a")))
    reporter = ExitReporter(len(site.workers))
    supervisor = Supervisor(site.stages(), on_exit=reporter)
    with supervisor.signals(), StoreWatch(store_probes(site.data), print_error).running():
        try:
            supervisor.start()
            reporter.is_ready = _wait_until_ready(supervisor, site)
            if reporter.is_ready:
                _announce(site)
                supervisor.watch()
        finally:
            if is_interactive():
                say("stopping: unfinished work is handed back")
            supervisor.stop()
    if reporter.fatal is not None:
        log_path = site.logs / f"{reporter.fatal.name}.log"
        say(_log_tail(log_path))
        why = last_reason(log_path)
        fail(f"{reporter.fatal}{f': {why}' if why else ''}; its log is {log_path}")


def store_probes(data: "DataSettings") -> dict[str, Probe]:
    """A question to each object store that the settings name: the service's own, which must take all that the
    service asks, and the buckets of jobs, which must be there and accept the credentials.
    """
    from nightshift.cli.doctor.checks.storage import look_at_storage
    from nightshift.cli.doctor.examination import Status
    from nightshift.cli.doctor.site import Site
    from nightshift.objectstore.tenant_places import bucket_places
    from nightshift.process.settings import LocationSettings

    def of_own_store() -> str | None:
        finding = look_at_storage(Site(data=data))
        return f"{finding.detail}; {finding.advice}" if finding.status is Status.ERROR else None

    probes: dict[str, Probe] = {"the service's object store": of_own_store} if data.storage_url else {}
    buckets = dict.fromkeys(place.bucket for place in bucket_places(LocationSettings().s3_buckets))
    for bucket in list(buckets)[:BUCKETS_WATCHED_MAX]:
        probes[f"the jobs' bucket {bucket}"] = partial(_why_not_usable, bucket)
    return probes


def _why_not_usable(bucket: str) -> str | None:
    """The reason why jobs cannot use a bucket. A refusal to list it is none: jobs may still read it."""
    from nightshift.errors import CredentialsRefused, StorageDenied, StorageError
    from nightshift.objectstore import open_store

    with contextlib.closing(open_store(f"s3://{bucket}")) as store:
        try:
            next(iter(store.list(PROBE_PREFIX)), None)
        except CredentialsRefused as error:
            return error.message
        except StorageDenied as error:
            return error.message if "NoSuchBucket" in error.message else None
        except StorageError as error:
            return error.message
    return None


class ExitReporter:
    """Reports exits of child processes and decides whether to restart them.

    An exit before the service was ready means that it cannot start.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.is_ready = False
        self.fatal: ChildExit | None = None

    def __call__(self, ended: ChildExit) -> AfterExit:
        if not self.is_ready or ended.is_configuration:
            self.fatal = ended
            return AfterExit.GIVE_UP
        if ended.name.startswith("worker-") and ended.returncode == 0:
            self._workers -= 1
            rest = "the others go on" if self._workers else "no worker is left: start `nightshift up` again"
            say(f"{ended.name} was drained and stays away; {rest}")
            return AfterExit.LEAVE
        say(f"{ended}; starting it again")
        return AfterExit.RESTART


def _wait_until_ready(supervisor: Supervisor, site: "Embedded") -> bool:
    """Waits until the service is ready. False: it was asked to stop, or a process ended."""
    import httpx

    told: str | None = None
    with (
        httpx.Client(base_url=site.base_url, timeout=READY_TIMEOUT_S, trust_env=False) as server,
        _status() as status,
    ):
        while supervisor.watch(READY_POLL_S):
            with contextlib.suppress(httpx.TransportError):
                answer = server.get("/readyz")
                if answer.status_code == httpx.codes.OK:
                    return True
                awaited = awaited_upstream(site.logs / "worker-1.log") if site.upstreams else None
                if status is not None:
                    status.update(f"starting: {awaited or _waiting_for(answer.text)}")
                elif awaited not in (None, told):
                    say(told := awaited)
    return False


def _waiting_for(body: str) -> str:
    """The missing parts that /readyz names."""
    try:
        reasons = json.loads(body).get("reasons")
    except (ValueError, AttributeError):
        return "the API"
    return ", ".join(map(str, reasons)) if isinstance(reasons, list) and reasons else "almost there"


@contextlib.contextmanager
def _status() -> "Iterator[Status | None]":
    if not is_interactive():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status


def _announce(site: "Embedded") -> None:
    from nightshift.process.settings import SubmissionSettings

    exports = _exports(site)
    typer.echo(
        "\n".join(
            (
                "Nightshift is ready.",
                "",
                f"  base URL   {site.base_url}/v1",
                f"  API key    in {site.key_file}",
                f"  models     {', '.join(_names(site))}",
                f"  data       {site.data.data_dir}  (logs in logs/)",
                f"  jobs may read and write under {', '.join(site.file_roots)}",
                f"  webhooks may reach {', '.join((*site.webhook_cidrs, 'the public internet'))}"
                f" on ports {', '.join(SubmissionSettings().webhook_ports)}",
                *((f"  first, in another terminal: export {' '.join(exports)}",) if exports else ()),
                "",
                *_curl_lines(site),
                "Ctrl-C stops it.",
            )
        )
    )


def _exports(site: "Embedded") -> list[str]:
    """The variables by which commands find this service from another terminal, which has not this one's
    environment: those that differ from their default, or from what is set here.
    """
    from nightshift.process.settings import ClientSettings, default_data_dir

    settings: dict[str, tuple[str, set[str]]] = {
        "BASE_URL": (site.base_url, {ClientSettings().base_url, ClientSettings.model_construct().base_url}),
        "DATA_DIR": (str(site.data.data_dir), {str(data_settings().data_dir), str(default_data_dir())}),
    }
    return [
        f"NIGHTSHIFT_{name}={shlex.quote(needed)}"
        for name, (needed, used) in settings.items()
        if used != {needed}
    ]


def _curl_lines(site: "Embedded") -> tuple[str, ...]:
    """A request that the first model can answer."""
    from nightshift import endpoints
    from nightshift.cli.demo import DEMO_MODEL_ID

    model = _first_model(site)
    if model is None:
        return ()
    text = "48213" if model["id"] == DEMO_MODEL_ID else "Hello"
    endpoint = next(endpoint for endpoint in endpoints.every() if model["kind"] in endpoint.model_kinds)
    return (
        f"  curl {site.base_url}{endpoint.route} \\",
        f'    -H "Authorization: Bearer $(cat {site.key_file})" -H "Content-Type: application/json" \\',
        f"    -d '{json.dumps(endpoint.row_template(model['id'], text))}'",
        "",
    )


def _first_model(site: "Embedded") -> dict[str, str] | None:
    """The first model that runs here, as the API lists it; None if it does not answer."""
    import httpx

    headers = {"Authorization": f"Bearer {site.key_file.read_text().strip()}"}
    url = f"{site.base_url}/v1/models"
    try:
        answer = httpx.get(url, headers=headers, timeout=READY_TIMEOUT_S, trust_env=False).raise_for_status()
    except httpx.HTTPError:
        return None
    listed = {model["id"]: model for model in answer.json()["data"]}  # others of the data directory, too
    if site.upstreams:
        return next(iter(listed.values()), None)
    models = (*site.models, *site.lazy_models)
    return next((listed[model.id] for model in models if model.id in listed), None)


def _log_tail(path: Path) -> str:
    return "\n".join(_lines(path)[-LOG_TAIL_LINES:])


def last_reason(path: Path) -> str | None:
    """The last reason in a log."""
    reasons = filter(None, map(_REASON.search, reversed(_lines(path)[-LOG_TAIL_LINES:])))
    return next((reason[0] for reason in reasons), None)


def awaited_upstream(path: Path) -> str | None:
    """The upstream that a worker waits for, with the reason: the last line of its log, if it is about one."""
    line = _AWAITED.search("".join(_lines(path)[-1:]))
    return line and printable(f"waiting for the upstream {line[1]}, which {line[2]}")


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def _names(site: "Embedded") -> list[str]:
    lazy = [f"{model.id} (loaded when asked for)" for model in site.lazy_models]
    return [*(model.id for model in site.models), *lazy, *(f"those of {entry}" for entry in site.upstreams)]
