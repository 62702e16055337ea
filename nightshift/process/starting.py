"""Begins a process: bounds the integers that it reads, and reports that it cannot start, by one log line and
an exit code for its supervisor.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from nightshift.errors import ConfigurationError, DatabaseUnavailable, InvalidRequest
from nightshift.process.exit_codes import CONFIGURATION_EXIT, UNAVAILABLE_EXIT

log = logging.getLogger(__name__)

INTEGER_DIGITS_MAX: Final = 640  # Python's least: to read or write longer ones takes time by their square


def bound_integers() -> None:
    """Makes this process and its children refuse longer integers where they are read, as ValueError."""
    sys.set_int_max_str_digits(INTEGER_DIGITS_MAX)
    os.environ["PYTHONINTMAXSTRDIGITS"] = str(INTEGER_DIGITS_MAX)


@contextmanager
def starting() -> Iterator[None]:
    """Startup: settings are read, stores opened: settings are read, places are opened. Ends the process
    where that is not possible. Raises SystemExit.
    """
    bound_integers()
    try:
        yield
    except (ConfigurationError, InvalidRequest) as error:
        _cannot_start(error.message, CONFIGURATION_EXIT, error)
    except DatabaseUnavailable as error:
        _cannot_start(error.message, UNAVAILABLE_EXIT, error)
    except OSError as error:  # most likely a directory that cannot be created
        _cannot_start(str(error), CONFIGURATION_EXIT, error)


def _cannot_start(why: str, exit_code: int, error: Exception) -> NoReturn:
    action = "misconfigured" if exit_code == CONFIGURATION_EXIT else "start_postponed"
    log.critical("cannot start: %s", " ".join(why.split()), extra={"action": action})
    raise SystemExit(exit_code) from error
