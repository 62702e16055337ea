"""Counts the functions and files of ours that a request passes to its commit, and those of a row.

    python -m benchmarks.call_paths [--list]

A request's path is the functions that run in the API's process until its commit, in every one of `REQUESTS`
requests. A row's path is the functions of which an argument holds the row's id or text, and its forms are the
classes of which an object holds them when a function makes or returns it.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import httpx

from api.app import create_app
from api.services.services import AppSettings
from benchmarks.data_plane import Bench, opened
from benchmarks.report import Figure, report_figures
from benchmarks.runners.environments import REPOSITORY
from nightshift.process import failpoints
from nightshift.process.settings import ApiSettings, DataSettings, LocationSettings
from tests.integration.api.conftest import insert_key
from tests.integration.api.fake_worker import CHAT_MODEL, FakeWorker
from tests.integration.api.serving import serving
from tests.integration.servers import ValkeyServer

OURS: Final = ("api", "nightshift", "nightshift_engine", "scheduler", "workers")
REQUESTS: Final = 5
GOALS: Final = (
    ("bulk body at POST /v1/jobs to its commit", "functions", (110, 30)),
    ("chat at its route to its commit", "functions", (110, 30)),
    ("row from reading to its stored result", "functions", (None, 20)),
    ("forms of the row", "classes", (8, None)),
)
ROW: Final = ("doc-0", "and its number 0")  # the id and the end of the text of the followed row
DEPTH_MAX: Final = 4
ELEMENTS_MAX: Final = 64

Names = set[tuple[str, str]]  # files or modules, with qualified names


class Tracer:
    """Notes the calls of all threads that begin after it was made, while `is_on`."""

    def __init__(self) -> None:
        self.is_on = self.follows_row = False
        self.functions, self.given_row, self.forms = Names(), Names(), Names()
        threading.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, value: Any) -> None:
        code, values = frame.f_code, frame.f_locals
        if self.is_on and event == "return" and self.follows_row:
            made = values.get("self") if code.co_name == "__init__" else value
            if type(made).__module__.startswith(OURS) and holds_row(made):
                self.forms.add((type(made).__module__, type(made).__qualname__))
        elif self.is_on and event == "call":
            if code is failpoints.hit.__code__ and values["name"] == "api.committed":
                self.is_on = False
            elif (file := file_of(code)) is not None:
                self.functions.add((file, code.co_qualname))
                names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
                if self.follows_row and any(holds_row(values.get(name)) for name in names if name != "self"):
                    self.given_row.add((file, code.co_qualname))


@cache
def file_of(code: CodeType) -> str | None:
    """The path of a function of ours; None for comprehensions, module bodies and all other code."""
    path = Path(code.co_filename)
    name = str(path.relative_to(REPOSITORY)) if path.is_relative_to(REPOSITORY) else ""
    is_function = not code.co_name.startswith("<") or code.co_name == "<lambda>"
    return name if name.partition("/")[0] in OURS and is_function else None


def holds_row(value: Any, depth: int = DEPTH_MAX) -> bool:
    """Whether a value has a part of the row's text, or holds it in its elements or attributes."""
    value = value.decode(errors="replace") if isinstance(value, bytes | bytearray) else value
    if isinstance(value, str):
        return any(part in value for part in ROW)
    if isinstance(value, dict):
        value = [*value.items()]
    elif type(value).__module__.startswith(OURS) and not isinstance(value, tuple):
        slots = [name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())]
        value = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
    if depth == 0 or not isinstance(value, list | tuple | set | frozenset):
        return False
    return any(holds_row(element, depth - 1) for element in [*value][:ELEMENTS_MAX])


@contextmanager
def api(bench: Bench) -> Iterator[httpx.Client]:
    """An API on the database, with Valkey and a model; jobs may name the files of the folder."""
    data = DataSettings(data_dir=bench.folder / "data", database_url=str(bench.store.database._engine.url))
    data.data_dir.mkdir()
    valkey = ValkeyServer(data.data_dir)
    valkey.start()
    roots = LocationSettings(file_roots=(str(bench.folder),))
    app = create_app(AppSettings(data, valkey.settings, roots, ApiSettings()))
    headers = {"authorization": f"Bearer {insert_key(bench.store, 'default')}"}
    try:
        with FakeWorker(bench.store, valkey.settings).at_work(), serving(app) as url:
            with httpx.Client(base_url=url, headers=headers, trust_env=False) as http:
                yield http
    finally:
        valkey.kill()


def request_path(tracer: Tracer, http: httpx.Client, route: str, bodies: Sequence[Any]) -> Names:
    """The functions of every request but the first, which fills caches."""
    paths = []
    for body in bodies:
        tracer.functions, tracer.is_on = Names(), True
        http.post(route, json=body).raise_for_status()
        assert not tracer.is_on, "the request was answered without a commit"
        paths.append(tracer.functions)
    return set.intersection(*paths[1:])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count the functions on the paths of requests and rows.")
    parser.add_argument("--list", action="store_true", help="print every function and form")
    is_listed, tracer = parser.parse_args(arguments).list, Tracer()
    chat = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": "{{text}}"}]}
    with opened() as (bench, server):
        with api(bench) as http:
            source = {"endpoint": "chat", "template": chat, "input": (bench.folder / "in.jsonl").as_uri()}
            jobs = [source | {"output": f"{(bench.folder / str(n)).as_uri()}/"} for n in range(REQUESTS)]
            submitted = request_path(tracer, http, "/v1/jobs", jobs)
            chatted = request_path(tracer, http, "/v1/chat/completions", [chat] * REQUESTS)
        bench.submit(1)
        tracer.is_on = tracer.follows_row = True
        bench.run_rows(server)
    figures, paths = [], (submitted, chatted, tracer.given_row, tracer.forms)
    for path, (title, unit, goals) in zip(paths, GOALS, strict=True):
        files = {file for file, _ in path}
        figures += [Figure(title, len(path), unit, goals[0]), Figure(title, len(files), "files", goals[1])]
        print("\n".join(f"{title}: {' '.join(name)}" for name in sorted(path) if is_listed))
    report_figures("call-paths", figures)


if __name__ == "__main__":
    main()
