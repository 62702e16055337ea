"""A Hugging Face hub of datasets for tests, on the loopback: the part of its HTTP API that readers use.

`huggingface_hub` itself reads it (`tests/integration/objectstore/test_hub.py`).
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

Headers = dict[str, str]
Answer = tuple[int, bytes, Headers]

_LARGE = (".parquet", ".bin")  # stored elsewhere: readers are sent on
_DATASET = re.compile(r"/(?:api/)?datasets/(\w+/[\w-]+)/(revision|tree|resolve)/([^/]+)(?:/(.*))?")


@dataclass
class FakeDataset:
    """`commits`: files by path, of each commit in order. `refs`: places in `commits`, by name."""

    commits: list[dict[str, bytes]] = field(default_factory=list)
    refs: dict[str, int] = field(default_factory=dict)
    is_private: bool = False
    is_gated: bool = False

    def push(self, files: Mapping[str, bytes], ref: str = "main") -> str:
        """One more commit, with these files in the place of all others. Returns it."""
        self.commits.append(dict(files))
        self.refs[ref] = len(self.commits) - 1
        return self.commit(self.refs[ref])

    def commit(self, number: int) -> str:
        return hashlib.sha1(b"%d" % number).hexdigest()

    def number_of(self, revision: str) -> int | None:
        known = {self.commit(number): number for number in range(len(self.commits))} | self.refs
        return known.get(revision)


@dataclass
class FakeHub:
    """`tokens`: those that may read everything. `fault`: answers instead, where it says something.

    `files_url`: where readers of large files are sent on to; empty: to a path of the hub itself.
    """

    url: str = ""
    datasets: dict[str, FakeDataset] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    page_entries: int = 1000
    files_url: str = ""
    links_host: str = ""  # in links to further pages; empty: its own
    fault: Callable[[str], Answer | None] = lambda path: None
    requests: list[tuple[str, str, Headers]] = field(default_factory=list)  # method, path, headers

    def answer(self, path: str, headers: Headers) -> Answer:
        """`headers`: by lower-case names."""
        if (faulty := self.fault(path)) is not None:
            return faulty
        url = urlsplit(path)
        if url.path.startswith("/files/"):
            return _ranged(self._large(url.path.rpartition("/")[2]), headers, {})
        match = _DATASET.fullmatch(url.path)
        token = headers.get("authorization", "").removeprefix("Bearer ")
        if token and token not in self.tokens:
            return 401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"}
        dataset = self.datasets.get(match[1]) if match else None
        if dataset is None or match is None or (dataset.is_private and not token):
            return (404 if token else 401), b"", {"X-Error-Code": "RepoNotFound"}
        number = dataset.number_of(unquote(match[3]))
        if number is None:
            return 404, b"", {"X-Error-Code": "RevisionNotFound"}
        if match[2] == "revision":
            return 200, json.dumps({"id": match[1], "sha": dataset.commit(number)}).encode(), {}
        if match[2] == "tree":
            return self._tree(dataset.commits[number], unquote(match[4] or ""), url.path, parse_qs(url.query))
        if dataset.is_gated and not token:
            return 403, b"", {"X-Error-Code": "GatedRepo"}
        content = dataset.commits[number].get(unquote(match[4] or ""))
        if content is None:
            return 404, b"", {"X-Error-Code": "EntryNotFound"}
        shown = {"X-Repo-Commit": dataset.commit(number)}
        if not url.path.endswith(_LARGE):
            return _ranged(content, headers, shown | {"ETag": f'"{_oid(content)}"'})
        digest = hashlib.sha256(content).hexdigest()
        shown |= {
            "X-Linked-Size": str(len(content)),
            "X-Linked-ETag": f'"{digest}"',
            "ETag": '"of-a-pointer"',
        }
        return 302, b"", shown | {"Location": f"{self.files_url or self.url}/files/{digest}"}

    def _tree(
        self, files: Mapping[str, bytes], folder: str, path: str, query: Mapping[str, list[str]]
    ) -> Answer:
        """A page of what lies below a folder, by size: a hub promises no order."""
        below = {
            name: body for name, body in files.items() if name.startswith(f"{folder}/" if folder else "")
        }
        if folder and not below:
            return 404, b"", {"X-Error-Code": "EntryNotFound"}
        entries: list[dict[str, object]] = [{"type": "directory", "path": "a folder", "oid": "0", "size": 0}]
        for name, body in sorted(below.items(), key=lambda item: (len(item[1]), item[0][::-1])):
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(body), "oid": _oid(body)}
            if name.endswith(_LARGE):
                entry["lfs"] = {
                    "oid": hashlib.sha256(body).hexdigest(),
                    "size": len(body),
                    "pointerSize": 130,
                }
            entries.append(entry)
        begin = int(query.get("cursor", ["0"])[0])
        end = begin + self.page_entries
        link = f'<{self.links_host or self.url}{path}?recursive=true&cursor={end}>; rel="next"'
        shown = {"Link": link} if end < len(entries) else {}
        return 200, json.dumps(entries[begin:end]).encode(), shown

    def _large(self, digest: str) -> bytes:
        every = (
            body for dataset in self.datasets.values() for files in dataset.commits for body in files.values()
        )
        return next(body for body in every if hashlib.sha256(body).hexdigest() == digest)


def _oid(content: bytes) -> str:
    """The name that git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _ranged(content: bytes, headers: Headers, shown: Headers) -> Answer:
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
    if match is None:
        return 200, content, shown
    begin, end = int(match[1]), min(len(content), int(match[2] or len(content)) + 1)
    if begin >= len(content):
        return 416, b"", shown | {"Content-Range": f"bytes */{len(content)}"}
    return 206, content[begin:end], shown | {"Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            hub.requests.append((self.command, self.path, headers))
            status, body, shown = hub.answer(self.path, headers)
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | shown).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            """The test says what matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
