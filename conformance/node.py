"""The official Node client: each check is a process of node.mjs, which prints lines of JSON.

    {"version": "6.49.0"}                      the client's, first; or {"missing": why it was not found}
    {"file": id}                               created, to be deleted: also "batch", "upload", "endpoint"
    {"passed": true}                           last; or {"failed": detail}, {"not_offered": detail}

The package `openai` is looked for from the working directory upwards, and in NODE_PATH.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import openai

from conformance.expectations import NotOffered, Skipped, Wrong, shown
from conformance.session import Session

SCRIPT: Final = Path(__file__).with_name("node.mjs")
PACKAGE: Final = "openai@6.49.0"  # the last version for Node 20; newer ones want 22
INSTALL: Final = f"`npm install {PACKAGE}` in this directory, or name another's node_modules in NODE_PATH"
VERSION: Final = "the version of the Node client"  # a key in what the checks share
VERSION_TIME_LIMIT_S: Final = 60.0
SHARE_OF_LIMIT: Final = 0.9  # so that it is still heard what was created

Line = dict[str, Any]


def run_check(session: Session, name: str, *, needs_embeddings: bool = False) -> None:
    """Run a check of node.mjs. Raises Wrong, NotOffered, or Skipped where Node or the package is missing."""
    session.shared.get(VERSION, _version)
    models = {"CONFORMANCE_MODEL": session.chat_model}
    if needs_embeddings:
        models["CONFORMANCE_EMBEDDING_MODEL"] = session.embedding_model
    lines, said = _run([name], _environment(session) | models, SHARE_OF_LIMIT * session.time_limit_s)
    for line in lines:
        _keep(session, line)
    last = lines[-1] if lines else {}
    if "not_offered" in last:
        raise NotOffered(last["not_offered"])
    if "failed" in last:
        raise Wrong(last["failed"])
    if "passed" not in last:
        raise Wrong(
            f"the Node client does not come to an end with it ({shown(said[-200:])}); with OpenAI it does"
        )


def _version() -> str:
    """The client's. Raises Skipped, which says what to install."""
    if shutil.which("node") is None:
        raise Skipped(f"there is no `node` on PATH: install Node.js 20 or newer, then {INSTALL}")
    lines, said = _run([], os.environ, VERSION_TIME_LIMIT_S)
    if not lines or "version" not in lines[0]:
        why = lines[0].get("missing", "") if lines else said
        raise Skipped(f"the Node package is missing ({shown(why)}): {INSTALL}")
    return str(lines[0]["version"])


def _environment(session: Session) -> dict[str, str]:
    options = session.options
    return {
        **os.environ,
        "OPENAI_BASE_URL": options.base_url,
        "OPENAI_API_KEY": options.api_key,
        "CONFORMANCE_TIMEOUT_MS": str(round(1000 * options.check_time_limit_s)),
        "CONFORMANCE_RETRIES": str(options.retries),
        "CONFORMANCE_POLL_MS": str(round(1000 * options.poll_interval_s)),
    }


def _run(arguments: list[str], environment: Mapping[str, str], limit_s: float) -> tuple[list[Line], str]:
    """The lines that the script printed, also if it was killed past its limit, and what it said of errors."""
    command = ["node", str(SCRIPT), *arguments]
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as late:
        return _lines(late.stdout), f"it was ended after {limit_s:.0f} s"
    return _lines(ended.stdout), ended.stderr.decode(errors="replace")


def _lines(printed: bytes | None) -> list[Line]:
    return [json.loads(line) for line in (printed or b"").splitlines()]


def _keep(session: Session, line: Line) -> None:
    """Delete afterwards what a line says was created."""
    for kind, keep in _KEPT.items():
        if kind in line:
            keep(session, line[kind])


def _keep_batch(session: Session, id: str) -> None:
    session.keep_batch(session.client.batches.retrieve(id))


def _keep_by(delete: Callable[[str, Any], object]) -> Callable[[Session, str], None]:
    return lambda session, id: session.clean_up.add(id, partial(delete, id))


def _cancel_upload(id: str, client: Any) -> None:
    try:
        client.uploads.cancel(id)
    except (openai.BadRequestError, openai.ConflictError):  # it is completed
        return


_KEPT: Final[Mapping[str, Callable[[Session, str], None]]] = {
    "file": _keep_by(lambda id, client: client.files.delete(id)),
    "batch": _keep_batch,
    "upload": _keep_by(_cancel_upload),
    "endpoint": _keep_by(lambda id, client: client.delete(f"/webhook_endpoints/{id}", cast_to=object)),
}
