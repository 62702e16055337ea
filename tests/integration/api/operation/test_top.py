"""`nightshift top` as people run it: a process on a terminal, against a running API."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nightshift.fleet.figures import ModelFigures, WorkerFigures
from nightshift.fleet.workers import WorkerState
from nightshift.store import Store
from nightshift.tenants.keys import Scope
from tests.faults.kit.proxy import FaultProxy, Refuse, proxied
from tests.helpers.fakes import a_spec, a_worker, claimed, planned
from tests.integration.api.conftest import KeyMaker
from tests.integration.servers import tool

WAIT_S = 60.0  # a busy machine starts a process slowly
OTHER_SCREEN, OWN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
SHOW_CURSOR = "\x1b[?25h"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MORE = pytest.mark.exhaustive
EVIL = "\x1b]0;owned\x07\x1b[2J\u202eevil"


@pytest.fixture
def environment(make_key: KeyMaker, tmp_path: Path, store: Store) -> Callable[[str], dict[str, str]]:
    """The environment of a command for the API at this address, whose queue and workers have evil names."""
    with store.transaction() as tx:
        now = tx.now()
        figures = WorkerFigures(models={EVIL: ModelFigures(generation_tokens_per_s=4321.0)}, shards=1)
        tx.workers.register(a_worker(id="wrk_1", host=EVIL, models=(EVIL,), started_at=now, heartbeat_at=now))
        tx.workers.record_heartbeat("wrk_1", WorkerState.READY, now, figures)
    planned(store, shards=2, rows_total=50, spec=a_spec(name=EVIL))
    claimed(store)
    key = make_key(scopes=frozenset(Scope))

    def at(base_url: str) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("NIGHTSHIFT_")}
        return own | {
            "NIGHTSHIFT_BASE_URL": base_url,
            "NIGHTSHIFT_API_KEY": key,
            "NIGHTSHIFT_DATA_DIR": str(tmp_path),
            "TERM": "xterm-256color",
        }

    return at


def top(environment: Mapping[str, str], *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [tool("nightshift"), "top", *options], capture_output=True, text=True, env=environment, timeout=WAIT_S
    )


@pytest.mark.parametrize("options", [(), pytest.param(("--once",), marks=MORE)])
def test_in_a_pipe_it_is_one_plain_screen(environment, base_url, options):
    ended = top(environment(base_url), *options)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "4321" in ended.stdout
    assert "0 of 50" in ended.stdout
    assert "\x1b" not in ended.stdout
    assert "\u202e" not in ended.stdout
    assert all(len(line) <= 120 for line in ended.stdout.splitlines())


def test_as_json_it_is_one_document_that_acts_on_no_terminal(environment, base_url):
    ended = top(environment(base_url), "--once", "--json")

    assert ended.returncode == 0
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", ended.stdout)
    shown = json.loads(ended.stdout)
    assert list(shown) == [
        *("object", "at", "server", "service", "worker_states", "history", "queue", "queue_is_whole"),
        *("service_queue", "workers_wanted", "workers", "jobs"),
    ]
    (job,) = shown["jobs"]
    assert job["name"] == EVIL, "as JSON it is what it is"
    assert set(job) == {
        *("id", "name", "status", "model", "priority", "is_paused", "rows_done", "rows_failed"),
        *("rows_total", "rows_estimated", "eta_at", "expires_at", "is_late", "problem"),
    }
    assert (job["rows_done"], job["rows_total"]) == (0, 50)
    assert shown["workers"][0]["figures"]["models"][EVIL]["generation_tokens_per_s"] == 4321.0
    page = (Path(__file__).parents[4] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [name for name in (*shown, *job) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("as_json", [True, pytest.param(False, marks=MORE)])
@pytest.mark.parametrize("is_up", [True, pytest.param(False, marks=MORE)])
def test_without_an_answer_it_is_one_line_and_json_all_the_same(environment, base_url, is_up, as_json):
    """A key that is refused, or no server."""
    refused = environment(base_url) | {"NIGHTSHIFT_API_KEY": "ns_live_nonsense"}
    options = ("--once", "--json") if as_json else ("--once",)
    ended = top(refused if is_up else environment("http://127.0.0.1:1"), *options)

    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    if not as_json:
        assert ended.stdout == ""
        assert is_up or "Is the server running?" in ended.stderr
        return
    shown = json.loads(ended.stdout)
    assert (list(shown), shown["object"]) == (["object", "server", "error"], "top")
    assert shown["error"]["code"] == ("invalid_api_key" if is_up else "server_unreachable")
    assert shown["error"]["message"]


@dataclass
class Terminal:
    """A process's terminal: its output so far, and its keyboard."""

    process: "subprocess.Popen[bytes]"
    descriptor: int
    written: str = ""
    _bytes: bytes = field(default=b"", repr=False)

    def until(self, *texts: str) -> str:
        """Waits until all of these were written, escape sequences aside, since the last call."""
        ends_s = time.monotonic() + WAIT_S
        while not all(text in ESCAPE.sub("", self.written) for text in texts):
            assert time.monotonic() < ends_s, f"no {texts} in:\n{self.written[-3000:]!r}"
            self._read()
        seen, self.written = self.written, ""
        return seen

    def until_ended(self) -> tuple[int, str]:
        """The exit code, and all that was written since the last `until`."""
        while self.process.poll() is None or select.select([self.descriptor], [], [], 0)[0]:
            try:
                self._read()
            except OSError:  # the other side is closed
                break
        return self.process.wait(WAIT_S), self.written

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def resize(self, columns: int, lines: int = 40) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def has_echo(self) -> bool:
        return bool(termios.tcgetattr(self.descriptor)[3] & termios.ECHO)

    def _read(self) -> None:
        if select.select([self.descriptor], [], [], 1.0)[0]:
            self.written += os.read(self.descriptor, 65536).decode("utf-8", "replace")


@contextmanager
def on_a_terminal(
    environment: Mapping[str, str], *options: str, columns: int = 120, lines: int = 40
) -> Iterator[Terminal]:
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    command = [tool("nightshift"), "top", "--interval", "0.5", *options]
    process = subprocess.Popen(
        command,
        stdin=its,
        stdout=its,
        stderr=its,
        env={name: value for name, value in (dict(environment)).items() if name not in ("COLUMNS", "LINES")},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(its, termios.TIOCSCTTY, 0),
    )
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait(WAIT_S)
        os.close(its)
        os.close(ours)


def test_it_is_live_on_the_other_screen_until_q(environment, base_url, store):
    with on_a_terminal(environment(base_url)) as terminal:
        seen = terminal.until("4321", "0 of 50", "evil", "running jobs by deadline", "workers by tokens/s")
        assert OTHER_SCREEN in seen
        assert not terminal.has_echo()
        planned(store, shards=9, rows_total=77, model="model-new")
        seen += terminal.until("model-new")
        terminal.press("s")
        terminal.until("running jobs by failed rows")
        terminal.press("w")
        terminal.until("workers by busy")
        terminal.press("\x1b[A")  # an arrow: no key of ours, and no end
        terminal.press("s")
        terminal.until("running jobs by progress")
        terminal.press("q")
        code, rest = terminal.until_ended()
        assert code == 0
        assert OWN_SCREEN in rest
        assert SHOW_CURSOR in rest
        assert terminal.has_echo(), "the keyboard is as it was"
    for of_a_name in ("\x1b]", "\x07", "\u202e"):
        assert of_a_name not in seen + rest


@pytest.mark.exhaustive
def test_a_resized_terminal_is_drawn_anew_at_its_size(environment, base_url):
    with on_a_terminal(environment(base_url), columns=60) as terminal:
        assert "capacity" not in terminal.until("4321")
        terminal.resize(160)
        assert "device" in terminal.until("capacity", "device")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=MORE),
        pytest.param(signal.SIGHUP, 129, marks=MORE),
        pytest.param("\x03", 130, marks=MORE, id="control-c"),
    ],
)
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(environment, base_url, sent, code):
    with on_a_terminal(environment(base_url)) as terminal:
        terminal.until("4321")
        if isinstance(sent, str):
            terminal.press(sent)
        else:
            terminal.process.send_signal(sent)
        ended, rest = terminal.until_ended()
        assert ended == code
        assert OWN_SCREEN in rest
        assert SHOW_CURSOR in rest
        assert "Traceback" not in rest
        assert terminal.has_echo()


@pytest.fixture
def proxy(base_url: str) -> Iterator[FaultProxy]:
    with proxied(int(base_url.rpartition(":")[2])) as proxy:
        yield proxy


def test_a_server_that_goes_is_said_and_one_that_returns_is_shown(environment, proxy, store):
    with on_a_terminal(environment(f"http://127.0.0.1:{proxy.port}")) as terminal:
        terminal.until("4321")
        proxy.set(Refuse())
        seen = terminal.until("trying again in", "this is old")
        assert "4321" in seen, "what was known last is still there"
        assert "Traceback" not in seen
        planned(store, shards=9, rows_total=77, model="model-new")
        proxy.heal()
        terminal.until("model-new")
        terminal.press("q")
        assert terminal.until_ended()[0] == 0


def test_a_key_that_is_revoked_ends_it_with_a_line(environment, base_url, store):
    with on_a_terminal(environment(base_url)) as terminal:
        terminal.until("4321")
        with store.transaction() as tx:
            for key in tx.keys.list():
                assert tx.keys.revoke(key.id, tx.now())
        ended, rest = terminal.until_ended()
        after = rest.partition(OWN_SCREEN)[2]
        assert ended == 1
        assert ESCAPE.sub("", after).strip().startswith("nightshift: ")


@pytest.mark.exhaustive
def test_a_terminal_without_abilities_gets_one_screen(environment, base_url):
    with on_a_terminal(environment(base_url) | {"TERM": "dumb"}) as terminal:
        code, seen = terminal.until_ended()
        assert (code, "\x1b" in seen) == (0, False)
        assert "4321" in seen
