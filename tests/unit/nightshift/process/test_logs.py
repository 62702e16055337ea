import io
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator

import pytest

from nightshift.process import logs as observability
from nightshift.process.logs import REPEAT_S, RepeatedWarnings, set_up_logging
from nightshift.process.settings import LogSettings

log = logging.getLogger("nightshift.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def logged() -> Callable[..., io.StringIO]:
    """Sets logging up, and returns what it writes to."""

    def set_up(process: str = "api", stream: io.StringIO | None = None, **chosen: str) -> io.StringIO:
        stream = stream or io.StringIO()
        set_up_logging(process, LogSettings(_env_file=None, **chosen), stream)
        return stream

    return set_up


def test_for_machines_an_event_is_a_json_object_with_its_fields(logged):
    stream = logged("worker", log_format="json")

    log.warning("lease lost", extra={"action": "lease_lost", "shard": "shard_1", "term": 3})

    event = json.loads(stream.getvalue())
    assert event.pop("time").endswith("+00:00")
    assert event == {
        "level": "warning",
        "process": "worker",
        "logger": "nightshift.test",
        "message": "lease lost",
        "action": "lease_lost",
        "shard": "shard_1",
        "term": 3,
    }


def test_for_people_an_event_is_one_line_without_the_action(logged):
    stream = logged("worker", log_format="human")

    log.warning("lease %s", "lost", extra={"action": "lease_lost", "shard": "shard_1", "term": 3})

    assert stream.getvalue()[8:] == " warning worker  lease lost  shard=shard_1 term=3\n"


@pytest.mark.parametrize("format", ["human", "json"])
def test_a_message_cannot_forge_a_line_of_the_log(logged, format):
    stream = logged(log_format=format)
    log.info("file stored", extra={"filename_given": "a\n20:35:28 info api  all is well"})
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize("format", ["human", "json"])
def test_an_exception_is_logged_with_its_trace(logged, format):
    stream = logged(log_format=format)
    try:
        raise ValueError("the cause")
    except ValueError:
        log.exception("request failed")
    assert "ValueError: the cause" in stream.getvalue()
    assert "test_logs.py" in stream.getvalue()


def test_on_a_terminal_lines_are_for_people_and_elsewhere_for_machines(logged):
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        logged(stream=stream)
        log.info("hello")
    assert not terminal.getvalue().startswith("{")
    assert json.loads(pipe.getvalue())["message"] == "hello"


def test_what_lies_below_the_level_is_not_written(logged):
    stream = logged(log_level="warning")
    log.info("detail")
    assert stream.getvalue() == ""


def test_libraries_are_heard_when_they_warn_and_not_when_they_narrate(logged):
    stream = logged()
    logging.getLogger("httpx").info("HTTP Request: GET …")
    logging.getLogger("celery.worker").warning("connection lost")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["connection lost"]


def test_a_library_with_handlers_of_its_own_does_not_write_twice(logged):
    own = io.StringIO()
    uvicorn = logging.getLogger("uvicorn")
    uvicorn.addHandler(logging.StreamHandler(own))
    uvicorn.propagate = False

    stream = logged()
    uvicorn.warning("shutting down")

    assert own.getvalue() == ""
    assert json.loads(stream.getvalue())["message"] == "shutting down"


def test_set_up_twice_it_writes_once(logged):
    stream = logged()
    logged(stream=stream)
    log.info("hello")
    assert len(stream.getvalue().splitlines()) == 1


def test_warnings_of_python_are_events_too(logged):
    stream = logged()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # catch_warnings puts the printer back that captureWarnings has replaced
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old habits", UserWarning, stacklevel=1)
    assert "old habits" in stream.getvalue()


def test_without_a_stream_it_writes_to_standard_error(logged, capsys):
    logged(stream=sys.stderr)
    log.info("hello")
    captured = capsys.readouterr()
    assert "hello" in captured.err
    assert captured.out == ""


class Log:
    """The lines that pass the filter, by a clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._filter = RepeatedWarnings(lambda: self.now_s)

    def passes(self, message: str, level: int = logging.WARNING, **fields: object) -> int | None:
        """How many were left out before it. None: it is left out itself."""
        record = logging.LogRecord("nightshift.test", level, __file__, 1, message, (), None)
        vars(record).update(fields)
        return vars(record).get("repeated", 0) if self._filter.filter(record) else None


def test_a_warning_that_says_the_same_again_is_left_out_and_counted():
    log = Log()
    assert log.passes("checkpoint waits", shard="1", reason="away") == 0
    for failures in range(5):
        assert log.passes("checkpoint waits", shard="1", reason="away", failures=failures) is None
    log.now_s = REPEAT_S
    assert log.passes("checkpoint waits", shard="1", reason="away") == 5
    assert log.passes("checkpoint waits", shard="1", reason="away") is None


@pytest.mark.parametrize(
    "change", [{"shard": "2"}, {"reason": "denied"}, {"message": "shard waits"}, {"level": logging.ERROR}]
)
def test_a_warning_that_says_anything_else_is_not_left_out(change: dict[str, object]):
    log = Log()
    said = {"message": "checkpoint waits", "shard": "1", "reason": "away"}
    assert log.passes(**said) == 0  # type: ignore[arg-type]
    assert log.passes(**said | change) == 0  # type: ignore[arg-type]


def test_what_happens_is_never_left_out_and_what_stays_for_a_reason_is():
    log = Log()
    assert [log.passes("hint not published", logging.INFO, reason="away") for _ in range(2)] == [0, None]
    assert [log.passes("job planned", logging.INFO) for _ in range(3)] == [0, 0, 0]


def test_what_is_remembered_of_warnings_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(observability, "TOLD_MAX", 2)
    log = Log()
    assert [log.passes(message) for message in ("a", "b", "c", "c", "a")] == [0, 0, 0, None, 0]


def test_in_a_log_a_state_that_stays_is_one_line(logged):
    stream = logged("worker", log_format="human")
    for _ in range(3):
        try:
            raise OSError("no room")
        except OSError:
            log.exception("not stored", extra={"action": "not_stored"})
    assert stream.getvalue().count("not stored") == 1
