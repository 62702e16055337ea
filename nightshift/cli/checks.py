"""The checks of `nightshift doctor`. Each one tries a part for real and advises what to do if it fails."""

import os
import shutil
import socket
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from nightshift import demo
from nightshift.broker.queue import Queue
from nightshift.cli.session import advice_on_database
from nightshift.client import check_api_key, check_base_url
from nightshift.errors import DatabaseUnavailable, NightshiftError, ObjectExists, QueueUnavailable
from nightshift.fleet import checkpoints
from nightshift.fleet.workers import WorkerState
from nightshift.objectstore import open_store
from nightshift.outbound.cloud_metadata import NoticeKind, open_provider
from nightshift.processes import valkey
from nightshift.settings import ClientSettings, DataSettings, QueueSettings, WorkerSettings
from nightshift.store import open_existing_database
from nightshift.store.databases.migrate import is_current
from nightshift.tenants.keys import API_KEY_FILE

DISK_FREE_MIN_BYTES: Final = 1024**3  # results, logs and the queue's log grow; a full disk stops all of it
ANSWER_TIMEOUT_S: Final = 3.0

_ANOTHER_STORE: Final = "results cannot be kept there: name another store in NIGHTSHIFT_STORAGE_URL"
_NO_NOTICE: Final = (
    "workers run, and lose more when the machine goes: correct NIGHTSHIFT_SPOT_PROVIDER or "
    "NIGHTSHIFT_SPOT_METADATA_URL; in a container on AWS the metadata hop limit must be 2"
)
_API_LOG: Final = "look into the log of the API (of `nightshift up`: logs/api.log)"


@dataclass(frozen=True)
class Finding:
    """A check's result. `advice` is empty when nothing is wrong."""

    name: str
    detail: str
    advice: str = ""

    @property
    def is_well(self) -> bool:
        return not self.advice


def examine(data: DataSettings) -> Iterator[Finding]:
    """Run every check in turn; those of a running server come last."""
    queue, worker, client = QueueSettings(), WorkerSettings(), ClientSettings()
    names = (*worker.models, *worker.lazy_models) or (str(demo.demo_model_path()),)
    checks: list[tuple[str, Callable[[], Finding | None]]] = [
        ("data directory", lambda: check_directory(data.data_dir)),
        ("database", lambda: check_database(data)),
        ("queue", lambda: check_queue(queue)),
        ("storage", lambda: check_storage(data.resolved_storage_url)),
        *((f"model {name}", lambda name=name: check_model(name, worker.model_downloads)) for name in names),
        ("spot notices", lambda: check_spot(worker)),
        ("API key", lambda: check_key(client, data.data_dir / API_KEY_FILE)),
        ("server", lambda: check_server(client.base_url)),
        ("service", lambda: check_service(client, data.data_dir / API_KEY_FILE, _start_a_worker(queue))),
    ]
    for name, check in checks:
        try:
            finding = check()
        except DatabaseUnavailable as error:
            finding = Finding(name, "does not work", f"{error.message}{advice_on_database()}")
        except NightshiftError as error:
            finding = Finding(name, "does not work", error.message)
        if finding is not None:
            yield finding


def check_directory(path: Path) -> Finding:
    """The directory is writable and has space."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        return Finding("data directory", str(path), f"{existing} cannot be written to by this user")
    free_bytes = shutil.disk_usage(existing).free
    detail = f"{path}, {free_bytes / 1024**3:.1f} GiB free"
    if free_bytes < DISK_FREE_MIN_BYTES:
        return Finding("data directory", detail, "make room: at least 1 GiB should be free")
    return Finding("data directory", detail)


def check_database(data: DataSettings) -> Finding:
    """The database answers with this version's schema. Raises DatabaseUnavailable, ConfigurationError."""
    if not data.database_url and not (data.data_dir / "nightshift.db").exists():
        return Finding("database", "none yet; `nightshift up` makes it")
    with closing(open_existing_database(data)) as database:
        if not is_current(database):
            return Finding(
                "database",
                f"{database.dialect}, with another schema than this version's",
                "run `python -m nightshift.store.databases.migrate`",
            )
        return Finding("database", f"{database.dialect}, schema current")


def check_queue(settings: QueueSettings) -> Finding:
    """Redis answers, or there is a server to embed. Raises ConfigurationError."""
    if "redis_url" not in settings.model_fields_set:
        return Finding("queue", f"embedded: {valkey.find_server()}")
    with closing(Queue(settings)) as queue:
        try:
            queue.ping()
        except QueueUnavailable as error:
            return Finding(
                "queue",
                f"{_without_password(settings.redis_url)} does not answer: {error.__cause__}",
                "start Redis, or correct NIGHTSHIFT_REDIS_URL",
            )
    return Finding("queue", f"{_without_password(settings.redis_url)} answers")


def check_storage(url: str) -> Finding:
    """Objects can be written, read and deleted, and are not overwritten by accident. Raises StorageError."""
    key, content = f"doctor/{uuid.uuid4().hex}", b"nightshift doctor"
    with closing(open_store(url)) as store:
        store.put(key, content, if_absent=True)
        try:
            if store.read(key) != content:
                return Finding("storage", f"{url}: what was read is not what was written", _ANOTHER_STORE)
            with suppress(ObjectExists):
                store.put(key, b"something else", if_absent=True)
                return Finding("storage", f"{url}: what must not be replaced was replaced", _ANOTHER_STORE)
        finally:
            store.delete(key)
        how = "by the server" if store.supports_conditional_put else "by looking first"
    return Finding("storage", f"{url}: write, read, delete; replacing is prevented {how}")


def check_model(name: str, may_download: bool) -> Finding:
    """Its files exist. Raises ConfigurationError."""
    found = checkpoints.find(name, may_download=may_download)
    if found.directory is None:
        return Finding(f"model {found.id}", "not downloaded yet; the worker will try to")
    return Finding(f"model {found.id}", str(found.directory))


def check_spot(settings: WorkerSettings) -> Finding:
    """The cloud's metadata server answers, or there is no cloud."""
    provider = open_provider(settings.spot_provider, settings.spot_metadata_url)
    if provider is None:
        is_chosen = settings.spot_provider == "none"
        why = "NIGHTSHIFT_SPOT_PROVIDER is none" if is_chosen else "this is no machine of a cloud known here"
        return Finding("spot notices", f"does not apply: {why}")
    try:
        notice = provider.poll()
    except Exception as error:  # noqa: BLE001 anything may answer at that address
        return Finding(
            "spot notices", f"no answer from the metadata server of {provider.name}: {error!r}", _NO_NOTICE
        )
    if notice is None:
        return Finding("spot notices", f"the metadata server of {provider.name} answers: no notice stands")
    if notice.kind is NoticeKind.REBALANCE:
        return Finding("spot notices", f"{provider.name} recommends to leave this machine")
    return Finding(
        "spot notices",
        f"{provider.name} is about to take this machine away",
        "workers here wait until that is withdrawn: start them on another machine",
    )


def check_key(settings: ClientSettings, path: Path) -> Finding:
    """There is an API key that no other user can read."""
    if settings.api_key:
        return Finding("API key", "from NIGHTSHIFT_API_KEY")
    if not path.exists():
        return Finding("API key", "none yet; `nightshift up` makes one")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return Finding("API key", str(path), f"other users can read it: chmod 600 {path}")
    return Finding("API key", str(path))


def check_server(base_url: str) -> Finding:
    """A ready server answers, or its port is free. Raises ConfigurationError."""
    check_base_url(base_url)
    try:
        answer = httpx.get(f"{_root(base_url)}/readyz", timeout=ANSWER_TIMEOUT_S)
        ready = answer.json()
    except httpx.TransportError:
        return _check_port(base_url)
    except ValueError:
        return Finding("server", base_url, "something else than Nightshift answers there: use another port")
    if answer.status_code != httpx.codes.OK:
        reasons = "; ".join(ready.get("reasons", ()))
        return Finding("server", f"{base_url} is not ready", reasons or _API_LOG)
    return Finding("server", f"{base_url} is {ready.get('status', 'ready')}")


def check_service(settings: ClientSettings, key_file: Path, start_a_worker: str) -> Finding | None:
    """The running server admits the key and has a worker for every model; None without one.

    `start_a_worker`: advice. Raises ConfigurationError.
    """
    key = settings.api_key
    with suppress(OSError):
        key = key or key_file.read_text().strip()
    check_api_key(key)
    headers = {"authorization": f"Bearer {key}"}
    try:
        with httpx.Client(
            base_url=_root(settings.base_url), headers=headers, timeout=ANSWER_TIMEOUT_S
        ) as server:
            models, workers = server.get("/v1/models"), server.get("/v1/workers")
        if models.status_code == httpx.codes.UNAUTHORIZED:
            return Finding("service", "refuses the API key", _advice_about_key(settings, key_file))
        served = [model["id"] for model in models.raise_for_status().json()["data"]]
        workers_heard_of = workers.raise_for_status().json()["data"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None  # reported by the check of the server
    ready = [worker["models"] for worker in workers_heard_of if worker["status"] == WorkerState.READY]
    return _finding_about_models(served, frozenset().union(*ready), start_a_worker)


def _start_a_worker(queue: QueueSettings) -> str:
    """An embedded queue's workers are started by `nightshift up` alone."""
    is_ours_alone = "redis_url" not in queue.model_fields_set
    return "start `nightshift up` again" if is_ours_alone else "start one with `nightshift worker --model …`"


def _advice_about_key(settings: ClientSettings, key_file: Path) -> str:
    source = "NIGHTSHIFT_API_KEY" if settings.api_key else str(key_file)
    return (
        f"the key in {source} is not one of this server's: set NIGHTSHIFT_API_KEY to one that is, set "
        "NIGHTSHIFT_DATA_DIR to the server's directory, or make one there with `nightshift keys create`"
    )


def _finding_about_models(served: Sequence[str], ready: frozenset[str], start_a_worker: str) -> Finding:
    if not served:
        return Finding("service", "serves no model", f"there is no worker: {start_a_worker}")
    words = [name if name in ready else f"{name} (no worker is ready)" for name in served]
    detail = f"admits the key and serves {', '.join(words)}"
    if ready.issuperset(served):
        return Finding("service", detail)
    return Finding(
        "service",
        detail,
        f"requests wait for a worker with their model: {start_a_worker}, "
        "or see the log of the one that was started (of `nightshift up`: logs/worker-1.log)",
    )


def _root(base_url: str) -> str:
    """The URL without `/v1`, as in the client."""
    return base_url.rstrip("/").removesuffix("/v1")


def _check_port(base_url: str) -> Finding:
    place = urlsplit(base_url)
    port = place.port or (443 if place.scheme == "https" else 80)
    with suppress(OSError), socket.create_connection((place.hostname or "", port), timeout=ANSWER_TIMEOUT_S):
        return Finding(
            "server", base_url, f"port {port} is taken by something that is no web server: use another"
        )
    return Finding("server", f"none at {base_url}, and its port is free")


def _without_password(url: str) -> str:
    place = urlsplit(url)
    return url if place.password is None else url.replace(f":{place.password}@", ":…@", 1)
