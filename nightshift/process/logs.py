"""Logs as events with fields, rendered as text lines or JSON objects.

log.info("shard completed", extra={"action": "shard_completed", "shard": shard_id, "rows": 500})
"""

import json
import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

from opentelemetry.trace import format_span_id, format_trace_id

from nightshift.process.settings import LogSettings
from nightshift.process.tracing.spans import current_context

# Libraries that log their progress; only their warnings are shown.
_QUIET: Final = (
    "alembic",
    "amqp",
    "asyncio",
    "boto3",
    "botocore",
    "celery",
    "filelock",
    "httpcore",
    "httpx",
    "huggingface_hub",
    "kombu",
    "s3transfer",
    "sse_starlette",  # at debug it shows every piece of an answer
    "torch",
    "transformers",
    "urllib3",
    "uvicorn.access",
)
# Libraries that add their own handlers, which would write every line twice.
_WITH_HANDLERS: Final = (
    "celery",
    "huggingface_hub",
    "transformers",
    "uvicorn",
    "uvicorn.access",
    "uvicorn.error",
)

REPEAT_S: Final = 600.0  # long enough to read on, short enough that a log of the last hour shows what stays
TOLD_MAX: Final = 1000  # warnings remembered; an older one would be written again
_PASSING: Final = frozenset({"failures", "seconds", "term", "trace_id", "span_id"})

_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


def set_up_logging(process: str, settings: LogSettings | None = None, stream: TextIO | None = None) -> None:
    """Log to standard error in the operator's format; repeatable. `process`: `api`, `scheduler`, `worker`."""
    settings = settings or LogSettings()
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(settings.log_format, process, stream))
    handler.addFilter(RepeatedWarnings())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    adopt_libraries()
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)


def adopt_libraries() -> None:
    """Removes the libraries' handlers; call again after a late import, which adds them."""
    for name in _WITH_HANDLERS:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True


class RepeatedWarnings(logging.Filter):
    """Leaves a warning, or a line with a `reason`, out that says the same as one of the last `REPEAT_S`.

    A state that stays is told once, however often it is met. The next line has, as `repeated`, how many were
    left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: OrderedDict[Hashable, _Told] = OrderedDict()
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING and not hasattr(record, "reason"):
            return True
        now_s, said = self._clock(), _said(record)
        with self._lock:
            before = self._told.get(said)
            if before is not None and now_s < before.at_s + REPEAT_S:
                before.left_out += 1
                return False
            self._told[said] = _Told(now_s)
            self._told.move_to_end(said)
            if len(self._told) > TOLD_MAX:
                self._told.popitem(last=False)
        if before is not None and before.left_out:
            record.repeated = before.left_out
        return True


@dataclass
class _Told:
    at_s: float
    left_out: int = 0  # since


def _said(record: logging.LogRecord) -> Hashable:
    """The content of a record, without what it counts and measures."""
    fields = {name: str(value) for name, value in event_fields(record).items() if name not in _PASSING}
    error = record.exc_info[1] if record.exc_info else None
    return record.name, record.levelno, record.getMessage(), repr(error), frozenset(fields.items())


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, process, logger, message and the event's fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        } | event_fields(record)
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str, ensure_ascii=False)


class HumanFormatter(logging.Formatter):
    """`20:35:28 warning worker  lease lost  shard=shard_a term=3`; a traceback follows on its own lines."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)[11:19]} {record.levelname.lower():<7} {self._process}  {record.getMessage()}"
        # The action repeats the message for machines.
        fields = [f"{name}={value}" for name, value in event_fields(record).items() if name != "action"]
        if fields:
            line += "  " + " ".join(fields)
        line = line.replace("\n", "\\n")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def event_fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields given as `extra`, and the trace and span that the line belongs to, if there is one."""
    fields = {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
    context = current_context()
    if context is not None:
        fields["trace_id"] = format_trace_id(context.trace_id)
        fields["span_id"] = format_span_id(context.span_id)
    return fields


def _formatter(
    format: Literal["auto", "human", "json"], process: str, stream: TextIO
) -> HumanFormatter | JsonFormatter:
    if format == "auto":
        format = "human" if stream.isatty() else "json"
    return HumanFormatter(process) if format == "human" else JsonFormatter(process)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
