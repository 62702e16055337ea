"""Models of the hub: which requests are made, and which revision is served."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nightshift.cli.demo import demo_model_path

OLD, NEW = "1" * 40, "2" * 40
REVISIONS = {"main": NEW, "v1": OLD, OLD: OLD, NEW: NEW}

PROGRAM = """
import sys
from nightshift.errors import ConfigurationError
from workers.serving.hub import directory_of
try:
    print(directory_of(sys.argv[1], may_download=sys.argv[2] == "online"))
except ConfigurationError as error:
    sys.exit(error.message)
"""


class Hub:
    """`org/tiny` with two commits: the demo model's files, and in the first a pickle and another one."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.url = ""
        files = {path.name: path.read_bytes() for path in demo_model_path().iterdir() if path.is_file()}
        self.commits = {NEW: files, OLD: files | {"old.json": b"{}", "pytorch_model.bin": b"pickle"}}

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers, as the hub's API has them."""
        self.requests.append(path)
        parts = path.partition("?")[0].strip("/").split("/")
        match parts:
            case ["api", "models", "org", "tiny", "revision", revision] if revision in REVISIONS:
                commit = REVISIONS[revision]
                siblings = [{"rfilename": name} for name in self.commits[commit]]
                body = json.dumps({"id": "org/tiny", "sha": commit, "siblings": siblings}).encode()
                return 200, body, {"Content-Type": "application/json"}
            case ["api", "models", "org", "tiny", "tree", commit] if commit in self.commits:
                listed = [
                    {"type": "file", "path": name, "size": len(body), "oid": sha256(body).hexdigest()}
                    for name, body in self.commits[commit].items()
                ]
                return 200, json.dumps(listed).encode(), {"Content-Type": "application/json"}
            case ["org", "tiny", "resolve", commit, name] if name in self.commits.get(commit, {}):
                body = self.commits[commit][name]
                return 200, body, {"X-Repo-Commit": commit, "ETag": f'"{sha256(body).hexdigest()}"'}
        return 404, b"", {"X-Error-Code": "RevisionNotFound"}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, headers = hub.answer(self.path)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def directory_of(reference: str, hub: Hub, home: Path, *, online: bool) -> subprocess.CompletedProcess[str]:
    """Runs in a process of its own, since the hub's client reads its settings when it is imported."""
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0" if online else "1"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, reference, "online" if online else "offline"],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with serving(Hub()) as hub:
        yield hub


def test_a_pinned_revision_is_downloaded_once_without_pickles_and_then_found_offline(
    hub: Hub, tmp_path: Path
) -> None:
    pinned = f"org/tiny@{OLD}"
    first = directory_of(pinned, hub, tmp_path, online=True)
    directory = Path(first.stdout.strip())
    assert (first.returncode, directory.name) == (0, OLD), first.stderr
    names = {path.name for path in directory.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "old.json"} <= names
    assert "pytorch_model.bin" not in names

    num_requests = len(hub.requests)
    assert directory_of(pinned, hub, tmp_path, online=False).stdout == first.stdout
    assert len(hub.requests) == num_requests, "offline, the hub is not asked"


def test_offline_another_revision_than_the_downloaded_one_is_refused(hub: Hub, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--tiny" / "snapshots" / NEW
    shutil.copytree(demo_model_path(), snapshot)
    assert directory_of(f"org/tiny@{NEW}", hub, tmp_path, online=False).stdout.strip() == str(snapshot)

    refused = directory_of(f"org/tiny@{OLD}", hub, tmp_path, online=False)
    assert refused.returncode == 1
    assert "set NIGHTSHIFT_MODEL_DOWNLOADS=true" in refused.stderr


def test_a_revision_that_the_hub_does_not_have_is_named(hub: Hub, tmp_path: Path) -> None:
    refused = directory_of("org/tiny@v9", hub, tmp_path, online=True)
    assert refused.returncode == 1
    assert "org/tiny@v9 cannot be downloaded" in refused.stderr
