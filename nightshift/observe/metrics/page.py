"""docs/metrics.md, of what is declared."""

from typing import Final

from nightshift.observe.metrics import catalogue
from nightshift.observe.metrics.family import Family

_HEAD: Final = """# Metrics

Made by `python -m nightshift.observe.metrics` of what that package declares; a test compares the two.

`nightshift up` shows the metrics of all its processes at `GET /metrics` of the API: those of workers with the
label `worker` (`worker-1`, …), those of any process with the label `process`. Elsewhere each process has an
address of its own: the API `GET /metrics`, the scheduler `SCHEDULER_METRICS_PORT`, a worker
`WORKER_METRICS_PORT`.

- Labels have few values, whatever clients send: never a tenant or a job. `class` is the priority class,
  `kind` is `online` or `bulk`.
- What the API reads from the database is as of the scrape. What a process counts begins at 0 with it.
- What is not known is missing, never 0.
- An engine's figures are as of the end of its last step. Of an encoder there are its waiting inputs, steps,
  batches, tokens computed and padded, its prompts' tokens and their time in the queue.
"""


def page() -> str:
    sections = [_section(title, families) for title, families in catalogue.SECTIONS.items()]
    return "\n".join([_HEAD, *sections])


def _section(title: str, families: tuple[Family, ...]) -> str:
    rows = [_row(family) for family in families]
    return "\n".join(
        [f"## {title}", "", "| metric | of | is | look closer when |", "|---|---|---|---|", *rows, ""]
    )


def _row(family: Family) -> str:
    labels = f"`{{{', '.join(family.labels)}}}`" if family.labels else ""
    about = f"{family.help} ({family.type})"
    return (
        f"| `{family.name}`{' ' + labels if labels else ''} | {family.process} | {about} | {family.closer} |"
    )
