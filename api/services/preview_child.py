"""The process that reads a tenant's input for a dry run: `python -m api.services.preview_child`.

A few bytes of an input may cost very much to read. Here the kernel ends that, and the API goes on. The
request comes pickled on stdin; each part of the answer is a line of JSON on stdout, written when it is known.
"""

import json
import math
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Final

from nightshift.bulk.rows.previews import Previewer
from nightshift.fleet.models import Model
from nightshift.jobs import JobSpec
from nightshift.objectstore import MIB, Locations, open_store
from nightshift.objectstore.sources import Sources
from nightshift.objectstore.time_limits import within
from nightshift.process.settings import DataSettings, LocationSettings

CPU_S: Final = 2  # beyond its start, which is importing, after which no row but the first is begun
CPU_MAX_S: Final = 4  # for the objects, and again for the rows, after which the kernel ends the process
WALL_S: Final = 15  # after which no further request to the object store is begun
WALL_MAX_S: Final = 25
MEMORY_BYTES_MAX: Final = 512 * MIB


@dataclass(frozen=True, kw_only=True)
class PreviewRequest:
    """An input to look at, and where it may lie."""

    data: DataSettings
    places: LocationSettings
    spec: JobSpec
    tenant_id: str
    filename: str | None  # of an input that was uploaded
    line_bytes_max: int
    models: Mapping[str, Model]  # that are registered
    answer_bytes_max: int


def main() -> None:
    _limit()
    request: PreviewRequest = pickle.load(sys.stdin.buffer)
    with (
        closing(Locations.of_settings(request.places, request.data)) as locations,
        closing(open_store(request.data.resolved_storage_url)) as objects,
        within(WALL_S),
    ):
        previewer = Previewer(
            sources=Sources(objects, locations),
            locations=locations,
            line_bytes_max=request.line_bytes_max,
            models=request.models,
            answer_bytes_max=request.answer_bytes_max,
            may_continue=_has_time(),
        )
        for part in previewer.preview(request.spec, request.tenant_id, request.filename):
            sys.stdout.write(json.dumps({type(part).__name__: asdict(part)}) + "\n")
            sys.stdout.flush()
            _limit_cpu()


def _limit() -> None:
    signal.alarm(WALL_MAX_S)
    cpu_max_s = math.ceil(time.process_time()) + 2 * CPU_MAX_S  # a slow machine takes seconds to import
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_max_s, cpu_max_s))
    _limit_cpu()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_cpu() -> None:
    """Limits the processor time of the next part, within what is left for all."""
    _, cpu_max_s = resource.getrlimit(resource.RLIMIT_CPU)
    part_max_s = math.ceil(time.process_time()) + CPU_MAX_S
    resource.setrlimit(resource.RLIMIT_CPU, (min(part_max_s, cpu_max_s), cpu_max_s))


def _has_time() -> Callable[[], bool]:
    ends_s, cpu_ends_s = time.monotonic() + WALL_S, time.process_time() + CPU_S
    return lambda: time.process_time() < cpu_ends_s and time.monotonic() < ends_s


if __name__ == "__main__":
    main()
