"""Runs a module of the workers in a process of its own, since the commands do not import them."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from nightshift.errors import ConfigurationError


def report_of(
    module: str, arguments: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None
) -> Any:
    """The JSON that the module prints. Raises ConfigurationError with its last line where it fails."""
    command = [sys.executable, "-P", "-m", module, *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"the worker's code gave no answer within {limit_s:g} s") from None
    if done.returncode:
        *_, last = done.stderr.strip().splitlines() or ["it said nothing"]
        raise ConfigurationError(f"the worker's code does not run here: {last}")
    return json.loads(done.stdout)
