"""Pages of several processes in Prometheus' text format as one, each process's samples with its labels.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format: all lines of a metric stand
together, after its HELP and TYPE.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from nightshift.process.metrics.processes import NAMES

_ABOUT: Final = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) ")
_SAMPLE: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class NotMetrics(Exception):
    """It is no such page."""


@dataclass(frozen=True)
class Page:
    process: str  # "worker-1"
    text: str

    def labels(self, metric: str) -> Mapping[str, str]:
        """What tells its samples from those of other processes."""
        if metric in NAMES:
            return {"process": self.process}
        return {"worker": self.process} if self.process.startswith("worker-") else {}


@dataclass
class _Metric:
    about: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)


def parsed(page: Page) -> dict[str, _Metric]:
    """By name, with the labels of the process. Raises NotMetrics."""
    found: dict[str, _Metric] = {}
    name = ""
    for line in page.text.split("\n"):  # a label's value may have other separators of lines
        about = _ABOUT.match(line)
        if about is not None:
            if about[2] != name:
                name = about[2]
                labels = _rendered(page.labels(name))
            found.setdefault(name, _Metric()).about.append(line)
        elif line and not line.startswith("#"):
            if not name or not line.startswith(name):
                raise NotMetrics(f"no metric's sample: {line[:80]!r}")
            found[name].samples.append(_with_labels(line, labels) if labels else line)
    return found


def merged(pages: Iterable[dict[str, _Metric]]) -> str:
    """What is said about a metric is the first page's."""
    whole: dict[str, _Metric] = {}
    for page in pages:
        for name, metric in page.items():
            there = whole.setdefault(name, _Metric(metric.about))
            there.samples.extend(metric.samples)
    lines = (line for metric in whole.values() for line in (*metric.about, *metric.samples))
    return "\n".join((*lines, ""))


def _with_labels(line: str, labels: str) -> str:
    """Before those it has."""
    name = _SAMPLE.match(line)
    if name is None:
        raise NotMetrics(f"no sample: {line[:80]!r}")
    end = name.end()
    if line[end : end + 1] == "{":
        rest = line[end + 1 :]
        return f"{line[:end]}{{{labels}{'' if rest.startswith('}') else ','}{rest}"
    return f"{line[:end]}{{{labels}}}{line[end:]}"


def _rendered(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
