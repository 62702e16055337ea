"""The screen of `top`, for a terminal of any size. Pure: from a snapshot to what rich draws."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from nightshift.cli.top import formats
from nightshift.cli.top.snapshot import Snapshot, job_document
from nightshift.jobs.priorities import PriorityClass

WIDE_COLUMNS: Final = 90  # below, only the columns that matter most
VERY_WIDE_COLUMNS: Final = 130
HEADINGS_MAX: Final = 16  # lines that are no rows of tables
AIRY_LINES: Final = 30  # from this height on, tables stand apart
DEVICE_CELLS: Final = 20
PROBLEM_LINES_MAX: Final = 3
LEAST_ROWS: Final = 3  # per table, however low the terminal is
CLASSES: Final = tuple(priority.value for priority in PriorityClass)

Json = Mapping[str, Any]
Cell = str | Text


@dataclass(frozen=True)
class View:
    """The choices of the reader. `problem`: why the shown data is old."""

    jobs_by: int = 0
    workers_by: int = 0
    problem: str | None = None
    has_keys: bool = False

    def next_jobs(self) -> "View":
        return replace(self, jobs_by=(self.jobs_by + 1) % len(JOB_ORDERS))

    def next_workers(self) -> "View":
        return replace(self, workers_by=(self.workers_by + 1) % len(WORKER_ORDERS))


def _when(job: Json) -> tuple[bool, float]:
    return job["expires_at"] is None, job["expires_at"] or 0


JOB_ORDERS: Final[tuple[tuple[str, Callable[[Json], Any]], ...]] = (
    ("deadline", _when),
    ("failed rows", lambda job: -job["rows_failed"]),
    ("progress", lambda job: -job["rows_done"] / max(1, job["rows_total"] or job["rows_estimated"] or 1)),
    ("name", lambda job: str(job["name"] or job["id"])),
)
WORKER_ORDERS: Final[tuple[tuple[str, Callable[[Json], Any]], ...]] = (
    ("tokens/s", lambda worker: -(_sum(worker, "generation_tokens_per_s") or 0.0)),
    ("busy", lambda worker: -(_busy(worker) or 0.0)),
    ("id", lambda worker: str(worker["id"])),
)


def screen(snapshot: Snapshot, view: View, width: int, height: int | None = None) -> RenderableType:
    """`height`: lines there are; None: as many as are needed."""
    snapshot = snapshot.printable()
    overview = snapshot.overview
    queue = _queue_rows(overview)
    jobs = sorted((job_document(job) for job in snapshot.jobs), key=JOB_ORDERS[view.jobs_by][1])
    workers = sorted(snapshot.workers, key=WORKER_ORDERS[view.workers_by][1])
    between = [Text("")] if height is None or height >= AIRY_LINES else []
    problem = _problem(jobs, width)
    rooms = _rooms((len(queue), len(workers), len(jobs)), None if height is None else height - len(problem))
    return Group(
        *_headline(snapshot, view, width),
        _throughput(overview, width),
        *_first_token(overview["service"], width),
        *between,
        *_queue(overview, queue[: rooms[0]], len(queue), width),
        *_wanted(overview["workers_wanted"] or (), width),
        *between,
        *_workers(workers[: rooms[1]], workers, view, snapshot.at_s, width),
        *between,
        *_jobs(jobs[: rooms[2]], jobs, view, snapshot.at_s, width),
        *problem,
    )


def _headline(snapshot: Snapshot, view: View, width: int) -> Iterable[Text]:
    at = datetime.fromtimestamp(snapshot.at_s, UTC)
    states = formats.joined([f"{number} {state}" for state, number in snapshot.overview["workers"].items()])
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("nightshift top", style="bold")
    line.append(
        f"  {at:%H:%M:%S} UTC  workers: {states}  {formats.name(snapshot.server, max(12, width // 3))}"
    )
    if view.has_keys and width >= WIDE_COLUMNS:
        line.append("   q quit  s sort jobs  w sort workers", style="dim")
    yield line
    if view.problem is not None:
        yield Text(formats.name(view.problem, PROBLEM_LINES_MAX * width), style="bold red")


def _throughput(overview: Json, width: int) -> Text:
    service = overview["service"]
    line = Text(no_wrap=True, overflow="ellipsis")
    for label, value in (
        ("tokens/s out", formats.rate(service["generation_tokens_per_s"])),
        ("in", formats.rate(service["prompt_tokens_per_s"])),
        ("rows/s", formats.rate(service["rows_per_s"])),
        ("busy", formats.share(service["busy_fraction"])),
    ):
        line.append(f"{label} ")
        line.append(value, style="bold")
        line.append("  ")
    rates = [_tokens(figures) for figures in overview["history"]]
    if width >= WIDE_COLUMNS and any(rates):
        minutes = (overview["at"] - overview["history"][0]["at"]) // 60
        line.append(formats.sparkline(rates, width - 75), style="cyan")
        line.append(f" {minutes} min", style="dim")
    return line


def _first_token(service: Json, width: int) -> Iterable[Text]:
    """One line, or in a narrow terminal one for each class."""
    p50, p95 = service["first_token_p50_s"], service["first_token_p95_s"]
    lines = [Text("first token ", no_wrap=True, overflow="ellipsis")]
    known = [name for name in CLASSES if name in p50]
    if not known:
        lines[0].append("none in the last minute", style="dim")
    for name in known:
        if name != known[0] and width < WIDE_COLUMNS:
            lines.append(Text(" " * len("first token "), no_wrap=True, overflow="ellipsis"))
        lines[-1].append(f"{name} ")
        lines[-1].append(
            f"p50 {formats.seconds(p50[name])} p95 {formats.seconds(p95.get(name))}", style="bold"
        )
        lines[-1].append("  ")
    return lines


def _queue_rows(overview: Json) -> Sequence[Json]:
    """The queue of all tenants where the server tells it, else of the key's own."""
    if overview["service_queue"] is not None:
        return [group | {"running": group["leased"]} for group in overview["service_queue"]]
    return list(overview["queue"])


def _queue(overview: Json, shown: Sequence[Json], total: int, width: int) -> Iterable[RenderableType]:
    is_ours = overview["service_queue"] is None
    title = "queue (this tenant's jobs)" if is_ours else "queue (shards and requests of all tenants)"
    if not total:
        yield _title(f"{title}: empty")
        return
    yield _title(title, total - len(shown))
    columns = [_left("class"), _left("model"), _left("kind"), _right("queued"), _right("running")]
    more = width >= WIDE_COLUMNS
    if more:
        columns += [_right("rows left"), _right("paused") if is_ours else _left("capacity")]
    table = _table(columns)
    for group in shown:
        row: list[Cell] = [
            group["priority"],
            formats.name(group["model"] or formats.UNKNOWN, _name_cells(width)),
            group["kind"],
            formats.count(group["queued"]),
            formats.count(group["running"]),
        ]
        if more:
            last = formats.count(group["paused"]) if is_ours else group["capacity"]
            row += [formats.count(group["rows_left"]), last]
        table.add_row(*row)
    yield table


def _wanted(pools: Sequence[Json], width: int) -> Iterable[Text]:
    """A line where more workers are wanted than are there."""
    short = [pool for pool in pools if pool["wanted"] > pool["ready"] + pool["starting"]]
    if short:
        cells = _name_cells(width)
        words = [
            f"{formats.name(pool['model'], cells)} {pool['ready']} of {pool['wanted']} "
            f"({pool['capacity']}{', pool ' + formats.name(pool['pool'], cells) if pool['pool'] else ''})"
            for pool in short
        ]
        yield Text(
            f"more workers wanted: {', '.join(words)}", "bold yellow", no_wrap=True, overflow="ellipsis"
        )


def _workers(
    shown: Sequence[Json], every: Sequence[Json], view: View, now_s: float, width: int
) -> Iterable[RenderableType]:
    if not every:
        yield _title("workers: none was heard of in the last 30 s")
        return
    yield _title(f"workers by {WORKER_ORDERS[view.workers_by][0]}", len(every) - len(shown))
    columns = [
        _left("id"),
        _left("status"),
        _right("leases"),
        _right("tok/s"),
        _right("rows/s"),
        _right("busy"),
    ]
    if width >= WIDE_COLUMNS:
        columns += [_right("kv"), _left("capacity"), _left("models")]
    if width >= VERY_WIDE_COLUMNS:
        columns += [_right("memory"), _left("device"), _left("host")]
    table = _table(columns)
    for worker in shown:
        table.add_row(*_worker_row(worker, now_s, width))
    yield table


def _worker_row(worker: Json, now_s: float, width: int) -> list[Cell]:
    figures = worker["figures"] or {}
    shards, requests = figures.get("shards"), figures.get("requests")
    leases = None if shards is None and requests is None else (shards or 0) + (requests or 0)
    row: list[Cell] = [
        formats.name(worker["id"], _id_cells(width)),
        _status(worker, now_s),
        formats.count(leases),
        formats.rate(_sum(worker, "generation_tokens_per_s")),
        formats.rate(_sum(worker, "rows_per_s")),
        formats.share(_busy(worker)),
    ]
    if width >= WIDE_COLUMNS:
        used, blocks = _sum(worker, "kv_blocks_used"), _sum(worker, "kv_blocks")
        kv = None if used is None or not blocks else used / blocks
        row += [formats.share(kv), worker["capacity"], _models(worker, max(16, width // 5))]
    if width >= VERY_WIDE_COLUMNS:
        device = figures.get("device") or {}
        described = formats.name(device.get("name") or device.get("kind") or formats.UNKNOWN, DEVICE_CELLS)
        if device.get("utilisation") is not None:
            described = f"{described} {formats.share(device['utilisation'])}"
        row += [
            formats.size(device.get("memory_used_bytes") or figures.get("memory_bytes")),
            described,
            formats.name(worker.get("host") or formats.UNKNOWN, 20),
        ]
    return row


def _status(worker: Json, now_s: float) -> Text:
    """A worker that was asked to drain, or whose machine is about to go, says so in a word, too."""
    notice = worker.get("notice")  # an older service tells none
    if notice is not None:
        ends_in_s = None if notice["ends_at"] is None else max(0.0, notice["ends_at"] - now_s)
        when = "" if ends_in_s is None else f" in {formats.span(ends_in_s)}"
        if notice["kind"] == "interruption":
            return Text(f"machine goes{when}", style="red")
        if worker["status"] == "ready":
            return Text("machine at risk", style="yellow")
    if worker["status"] == "draining":
        return Text("draining", style="yellow")
    if worker["drain_requested_at"] is not None:
        return Text("drain asked", style="yellow")
    return Text(worker["status"], style="green" if worker["status"] == "ready" else "")


def _models(worker: Json, cells_max: int) -> str:
    """The models' ids; those in brackets are not loaded."""
    warm = set(worker["warm_models"])
    return formats.name(
        ",".join(id if id in warm else f"({id})" for id in worker["models"]) or formats.UNKNOWN, cells_max
    )


def _jobs(
    shown: Sequence[Json], every: Sequence[Json], view: View, now_s: float, width: int
) -> Iterable[RenderableType]:
    if not every:
        yield _title("running jobs: none")
        return
    yield _title(f"running jobs by {JOB_ORDERS[view.jobs_by][0]}", len(every) - len(shown))
    columns = [_left("job"), _right("rows"), _right("failed"), _right("done in"), _right("deadline")]
    if width >= WIDE_COLUMNS:
        columns += [_left("progress"), _left("class"), _left("model")]
    table = _table(columns)
    for job in shown:
        table.add_row(*_job_row(job, now_s, width))
    yield table


def _job_row(job: Json, now_s: float, width: int) -> list[Cell]:
    expected = job["rows_total"] if job["rows_total"] is not None else job["rows_estimated"]
    about = "" if job["rows_total"] is not None or expected is None else "~"
    failed = Text(formats.count(job["rows_failed"]), style="bold yellow" if job["rows_failed"] else "")
    row: list[Cell] = [
        formats.name(job["name"] or job["id"], _name_cells(width)),
        f"{formats.count(job['rows_done'])} of {about}{formats.count(expected)}",
        failed,
        _left_of(job, now_s),
        formats.UNKNOWN if job["expires_at"] is None else formats.span(job["expires_at"] - now_s),
    ]
    if width >= WIDE_COLUMNS:
        row += [
            Text(formats.bar(job["rows_done"], expected, max(8, width // 8)), style="cyan"),
            job["priority"] or formats.UNKNOWN,
            formats.name(job["model"] or formats.UNKNOWN, max(12, width // 6)),
        ]
    return row


def _problem(jobs: Sequence[Json], width: int) -> Sequence[Text]:
    """The first of the jobs' problems, in words; the table has the codes of all."""
    job = next((job for job in jobs if job["problem"] is not None), None)
    if job is None:
        return ()
    line = f"{job['name'] or job['id']}: {job['problem']['message']}"
    return (Text(formats.name(line, width), style="bold yellow"),)


def _left_of(job: Json, now_s: float) -> Text:
    """The time until the job is done at its present pace; late: after its deadline."""
    if job["is_paused"]:
        return Text("paused", style="yellow")
    if job["problem"] is not None:
        return Text(job["problem"]["code"].replace("_", " "), style="bold yellow")
    if job["status"] == "finalizing":
        return Text("finalizing")
    if job["eta_at"] is None:
        return Text(formats.UNKNOWN)
    left = formats.span(max(0, job["eta_at"] - now_s))
    return Text(f"{left} late", style="bold red") if job["is_late"] else Text(left)


def _rooms(wanted: Sequence[int], height: int | None) -> list[int]:
    """Lines for the rows of each table: what one does not need, the next ones may have."""
    if height is None:
        return list(wanted)
    left = max(LEAST_ROWS * len(wanted), height - HEADINGS_MAX - (3 if height >= AIRY_LINES else 0))
    rooms = []
    for place, rows in enumerate(wanted):
        rooms.append(min(rows, max(LEAST_ROWS, left // (len(wanted) - place))))
        left -= rooms[-1]
    return rooms


def _name_cells(width: int) -> int:
    return max(12, width // 4 if width >= WIDE_COLUMNS else width - 46)


def _id_cells(width: int) -> int:
    """Cells for an id: a whole one in a wide terminal, for `nightshift workers drain`."""
    return 12 if width < WIDE_COLUMNS else 20 if width < VERY_WIDE_COLUMNS else 32


def _busy(worker: Json) -> float | None:
    """The mean over its models."""
    models = (worker["figures"] or {}).get("models") or {}
    fractions = [model["busy_fraction"] for model in models.values() if model["busy_fraction"] is not None]
    return sum(fractions) / len(fractions) if fractions else None


def _sum(worker: Json, name: str) -> float | None:
    models = (worker["figures"] or {}).get("models") or {}
    figures = [model[name] for model in models.values() if model[name] is not None]
    return sum(figures) if figures else None


def _tokens(figures: Json) -> float | None:
    rates = [
        figures[name]
        for name in ("prompt_tokens_per_s", "generation_tokens_per_s")
        if figures[name] is not None
    ]
    return sum(rates) if rates else None


def _title(text: str, hidden: int = 0) -> Text:
    line = Text(text, style="bold", no_wrap=True, overflow="ellipsis")
    if hidden > 0:
        line.append(f"  ({hidden} more)", style="dim")
    return line


def _table(columns: Sequence[Column]) -> Table:
    return Table(*columns, box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")


def _left(heading: str) -> Column:
    return Column(heading, no_wrap=True, overflow="ellipsis")


def _right(heading: str) -> Column:
    return Column(heading, no_wrap=True, overflow="ellipsis", justify="right")
