"""Reports that a process cannot start: one log line, and an exit code for its supervisor."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from nightshift.errors import ConfigurationError, DatabaseUnavailable, InvalidRequest
from nightshift.process.exit_codes import CONFIGURATION_EXIT, UNAVAILABLE_EXIT

log = logging.getLogger(__name__)


@contextmanager
def starting() -> Iterator[None]:
    """Startup: settings are read, stores opened: settings are read, places are opened. Ends the process
    where that is not possible. Raises SystemExit.
    """
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
