"""Checks of the models: their files, whether they fit the device, and the device itself.

What a model takes is worked out by the workers' own code, in a process of its own, since it imports torch.
"""

import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from nightshift.cli.admin.upstreams import report_of_upstreams
from nightshift.cli.doctor.examination import Finding, NotApplicable, error, ok, skipped, warning
from nightshift.cli.doctor.site import Site
from nightshift.cli.processes.worker_code import report_of
from nightshift.errors import ConfigurationError, NightshiftError
from nightshift.fleet import checkpoints
from nightshift.fleet.workers import WorkerState

REPORT: Final = "workers.health.device_report"
REPORT_S: Final = 100.0  # importing torch from a cold disk
DRIVER_S: Final = 8.0
HEARD_WITHIN: Final = timedelta(seconds=30)  # six heartbeats
DRIVER_FILE: Final = Path("/dev/nvidiactl")
GIB: Final = 1024**3

_FIELDS: Final = ("name", "driver_version", "memory.total", "memory.used", "temperature.gpu")


class NoWorkerHere(NotApplicable):
    """This machine does not have what a worker needs."""


class _DriverSilent(Exception):
    """The driver of a GPU does not answer; the message says why."""


def look_at_files(name: str, may_download: bool) -> Finding:
    """A model's files exist."""
    try:
        checkpoint = checkpoints.find(name, may_download=may_download)
    except ConfigurationError as refusal:
        if (adapter := checkpoints.Adapter.read(name)) is not None:
            return error(
                refusal.message,
                "correct its path in NIGHTSHIFT_MODELS; one that was added by command can be removed: "
                f"`nightshift models remove-adapter {adapter.name}`",
            )
        return error(
            refusal.message,
            "NIGHTSHIFT_MODELS and NIGHTSHIFT_LAZY_MODELS name directories with a model's files, or hub ids",
        )
    if checkpoint.directory is None:
        return warning("not downloaded yet", "the first worker downloads it, and is ready only then")
    return ok(str(checkpoint.directory))


def look_at_memory(site: Site, ask: Callable[[], dict[str, Any]]) -> Finding:
    """The models fit the device together, or a worker of this machine has loaded them."""
    ids = {checkpoints.model_id(name) for name in site.models}
    if worker_id := _loaded_here(site, ids):
        return ok(f"{worker_id} on this machine has them loaded")
    try:
        report = ask()
    except NoWorkerHere as absence:
        return skipped(str(absence), "run `nightshift doctor` where the workers run")
    if report["problem"]:
        return error(
            f"a worker would not start here: {report['problem']}",
            "name fewer or smaller models, or more memory",
        )
    needed = sum(model["least_bytes"] for model in report["models"])
    listed = ", ".join(f"{model['id']} {_gib(model['least_bytes'])}" for model in report["models"])
    free = f"{_gib(report['memory_bytes'])} that are free ({report['device']})"
    return ok(
        f"they need at least {_gib(needed)} of {free}: {listed}",
        needed_bytes=needed,
        free_bytes=report["memory_bytes"],
    )


def look_at_gpu(site: Site, ask: Callable[[], dict[str, Any]], driver_file: Path = DRIVER_FILE) -> Finding:
    """An NVIDIA GPU's driver answers and torch can use it, if there is one."""
    wants_gpu = site.worker.device.startswith("cuda")
    program = shutil.which("nvidia-smi")
    if program is None and not driver_file.exists():
        if wants_gpu:
            return error(
                "there is no NVIDIA driver here, and NIGHTSHIFT_DEVICE is cuda",
                "install the driver (in a container: the NVIDIA container toolkit), or set it to auto",
            )
        return skipped("no NVIDIA GPU here: models are computed on the CPU")
    try:
        listed = "; ".join(_gpus(program))
        cuda = ask()["cuda"]
    except _DriverSilent as silence:
        return error(
            f"the driver does not answer: {silence}", "reinstall the driver, or reboot if it was just updated"
        )
    except NoWorkerHere as absence:
        return ok(f"{listed}; {absence}")
    if not cuda["devices"]:
        why = cuda.get("why_none", "torch sees no device")
        says = f"torch {cuda['torch']} cannot use it: {why}"
        advice = "install a torch with CUDA that this driver supports"
        if wants_gpu:
            return error(f"{listed}; {says}", advice)
        return warning(f"{listed}; {says}", f"a worker would compute on the CPU: {advice}")
    return ok(f"{listed}; torch {cuda['torch']}, CUDA {cuda['cuda']}", gpus=len(cuda["devices"]))


def worker_report(site: Site) -> dict[str, Any]:
    """The report of the workers' own code. Raises NoWorkerHere, ConfigurationError."""
    for package in ("torch", "workers"):
        if importlib.util.find_spec(package) is None:
            raise NoWorkerHere(f"{package} is not installed")
    lazy = site.worker.lazy_models
    settings = {
        "NIGHTSHIFT_MODELS": ",".join(name for name in site.models if name not in lazy),
        "NIGHTSHIFT_LAZY_MODELS": ",".join(lazy),
    }
    report: dict[str, Any] = report_of(REPORT, (), REPORT_S, os.environ | settings)
    return report


def look_at_upstreams(entries: Sequence[str]) -> Finding:
    """Every upstream can be used, and says which models it has."""
    reports = report_of_upstreams(entries)
    if problem := next((report["problem"] for report in reports if report["problem"]), None):
        return error(problem, "`nightshift upstreams probe` asks it again; NIGHTSHIFT_UPSTREAMS names it")
    listed = "; ".join(
        f"{report['name']}: {', '.join(model['id'] for model in report['models'])}" for report in reports
    )
    return ok(listed)


def _loaded_here(site: Site, ids: set[str]) -> str | None:
    """A ready worker of this machine with these models in memory."""
    try:
        with site.snapshot() as tx:
            ready = tx.workers.list(heartbeat_since=tx.now() - HEARD_WITHIN, state=WorkerState.READY)
    except (NightshiftError, NotApplicable):
        return None  # the check of the database says so
    here = [worker for worker in ready if worker.host == socket.gethostname() and ids <= set(worker.warm)]
    return here[0].id if here else None


def _gpus(program: str | None) -> list[str]:
    """The GPUs in words. Raises _DriverSilent."""
    if program is None:
        raise _DriverSilent("nvidia-smi is not installed")
    command = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DRIVER_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise _DriverSilent(f"nvidia-smi gave no answer within {DRIVER_S:g} s") from None
    lines = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines or any(len(line) != len(_FIELDS) for line in lines):
        said = " ".join((done.stderr or done.stdout).split())[:200]
        raise _DriverSilent(said or f"nvidia-smi ended with {done.returncode}")
    return [
        f"{name}, driver {driver}, {used} of {total} MiB used, {celsius} °C"
        for name, driver, total, used, celsius in lines
    ]


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
