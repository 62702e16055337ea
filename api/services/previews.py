"""Looks at a few inputs at a time, for dry runs and estimates, each in a process of its own
(`preview_child.py`).
"""

import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from api.services.preview_child import WALL_MAX_S, PreviewRequest
from api.services.threads import BoundedCalls
from nightshift.jobs import JsonObject

log = logging.getLogger(__name__)

PREVIEWS_MAX: Final = 4  # under way in this process
PREVIEWS_PER_TENANT_MAX: Final = 2
REFUSAL: Final = "Too many dry runs or estimates are under way. Try again when they have ended."
CHILD: Final = (sys.executable, "-P", "-m", "api.services.preview_child")
# One thread is enough, and each more would take address space.
ONE_THREAD: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

Parts = Mapping[str, JsonObject]
"""Parts of an answer, as JSON, by the names of their classes."""


class Previews:
    """Looks at a few inputs at a time. Created in its event loop."""

    def __init__(self, command: Sequence[str] = CHILD) -> None:
        self._command = command
        self._calls = BoundedCalls(PREVIEWS_MAX, per_tenant=PREVIEWS_PER_TENANT_MAX, refusal=REFUSAL)

    async def look(self, request: PreviewRequest) -> Parts:
        """The parts that came. Raises TooManyRequests."""
        return await self._calls.run(request.tenant_id, lambda: self._run(request))

    def _run(self, request: PreviewRequest) -> Parts:
        try:
            ended = subprocess.run(
                self._command,
                input=pickle.dumps(request),
                capture_output=True,
                timeout=WALL_MAX_S + 2,  # it has ended itself before
                check=False,
                env=os.environ | ONE_THREAD,
            )
        except subprocess.TimeoutExpired:
            return {}
        if ended.returncode:
            fields = {
                "action": "preview_cut_off",
                "exit_code": ended.returncode,
                "tenant": request.tenant_id,
            }
            log.info("reading an input was cut off", extra=fields)
        return parsed(ended.stdout)


def parsed(output: bytes) -> Parts:
    """Reads the child's lines, of which the last may be cut off."""
    lines = [json.loads(line) for line in output.splitlines(keepends=True) if line.endswith(b"\n")]
    return {kind: part for line in lines for kind, part in line.items()}
