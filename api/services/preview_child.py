"""The process that reads a tenant's input for a dry run or an estimate, `python -m
api.services.preview_child`.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Final

from nightshift.bulk.rows.previews import Previewer
from nightshift.bulk.sampling.sampler import InputSampler
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
SAMPLE_CPU_S: Final = 8  # the same for an estimate, whose sample is spread over the input
SAMPLE_CPU_MAX_S: Final = 16
SAMPLE_WALL_S: Final = 11
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
    is_sampled: bool = False  # for an estimate

    @property
    def cpu_max_s(self) -> int:
        return SAMPLE_CPU_MAX_S if self.is_sampled else CPU_MAX_S


def main() -> None:
    signal.alarm(WALL_MAX_S)
    request: PreviewRequest = pickle.load(sys.stdin.buffer)
    _limit(request.cpu_max_s)
    with (
        closing(Locations.of_settings(request.places, request.data)) as locations,
        closing(open_store(request.data.resolved_storage_url)) as objects,
        within(WALL_S),
    ):
        common: dict[str, Any] = {
            "sources": Sources(objects, locations),
            "locations": locations,
            "line_bytes_max": request.line_bytes_max,
            "models": request.models,
        }
        look: Callable[[JobSpec, str, str | None], Iterator[Any]]
        if request.is_sampled:
            used = _used(SAMPLE_CPU_S, SAMPLE_WALL_S)
            look = InputSampler(**common, objects=objects, used=used).sample
        else:
            used = _used(CPU_S, WALL_S)
            look = Previewer(
                **common, answer_bytes_max=request.answer_bytes_max, may_continue=lambda: used() < 1
            ).preview
        for part in look(request.spec, request.tenant_id, request.filename):
            sys.stdout.write(json.dumps({type(part).__name__: asdict(part)}) + "\n")
            sys.stdout.flush()
            _limit_cpu(request.cpu_max_s)


def _limit(part_max_s: int) -> None:
    cpu_max_s = math.ceil(time.process_time()) + 2 * part_max_s  # a slow machine takes seconds to import
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_max_s, cpu_max_s))
    _limit_cpu(part_max_s)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_cpu(part_max_s: int) -> None:
    """Limits the processor time of the next part, within what is left for all."""
    _, cpu_max_s = resource.getrlimit(resource.RLIMIT_CPU)
    until_s = math.ceil(time.process_time()) + part_max_s
    resource.setrlimit(resource.RLIMIT_CPU, (min(until_s, cpu_max_s), cpu_max_s))


def _used(cpu_s: float, wall_s: float) -> Callable[[], float]:
    """The share of its time that is over: of the processor's, or of all, which is more."""
    began_s, cpu_began_s = time.monotonic(), time.process_time()

    def used() -> float:
        return max((time.process_time() - cpu_began_s) / cpu_s, (time.monotonic() - began_s) / wall_s)

    return used


if __name__ == "__main__":
    main()
