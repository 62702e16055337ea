"""A job's life, as a list of moments and a drawing of the same: what it waited for, when rows were done, what
interrupted it. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from api.page.formats import duration
from api.page.views.job_rows import Tone
from api.responses.times import from_seconds
from nightshift.jobs import Job, JobState, JsonObject
from nightshift.lifecycle.transitions import SHARD_LOST, SHARD_RESUMED, SHARD_RETURNED
from nightshift.store.jobs.events import Event

PROGRESS: Final = "job.progress"
SAMPLES: Final = 60  # checkpoints of a job, evenly
WIDTH: Final = 1000.0  # the drawing's
HEIGHT: Final = 100.0  # the curve's


@dataclass(frozen=True)
class Moment:
    at: datetime
    words: str
    tone: Tone
    detail: str = ""


@dataclass(frozen=True)
class Phase:
    """`x`, `width`: in the drawing."""

    name: str
    began: datetime
    ended: datetime
    x: float
    width: float

    @property
    def lasted(self) -> timedelta:
        return self.ended - self.began


@dataclass(frozen=True)
class Mark:
    x: float
    tone: Tone


@dataclass(frozen=True)
class Timeline:
    moments: Sequence[Moment]
    phases: Sequence[Phase]
    marks: Sequence[Mark]
    curve: str  # the points of a polyline: rows done over time; empty for none
    checkpoints: int


def sampled(last_seq: int) -> list[int]:
    """The numbers of events to read for the curve."""
    if last_seq <= SAMPLES:
        return list(range(1, last_seq + 1))
    return sorted({round(1 + (last_seq - 1) * n / (SAMPLES - 1)) for n in range(SAMPLES)})


def timeline(
    job: Job, milestones: Sequence[Event], samples: Sequence[Event], last_seq: int, now: datetime
) -> Timeline:
    """`milestones`: the newest events that are no checkpoints. `samples`: those at `sampled`."""
    end = job.finished_at or now
    scale = _Scale(job.created_at, max(end, job.created_at + timedelta(seconds=1)))
    moments = [*_states(job), *(_moment(event) for event in milestones)]
    return Timeline(
        moments=sorted(moments, key=lambda moment: moment.at),
        phases=_phases(job, milestones, end, scale),
        marks=[
            Mark(scale.x(event.created_at), _TONES[event.type])
            for event in milestones
            if event.type in _TONES
        ],
        curve=_curve(job, samples, scale),
        checkpoints=max(0, last_seq - len(milestones) - len(_states(job))),
    )


@dataclass(frozen=True)
class _Scale:
    began: datetime
    ended: datetime

    def x(self, at: datetime) -> float:
        share = (at - self.began) / (self.ended - self.began)
        return round(WIDTH * min(1.0, max(0.0, share)), 2)


_TONES: Final = {
    SHARD_LOST: Tone.BAD,
    SHARD_RETURNED: Tone.WARNING,
    SHARD_RESUMED: Tone.GOOD,
}
_ENDS: Final = {
    JobState.SUCCEEDED: Tone.GOOD,
    JobState.FAILED: Tone.BAD,
    JobState.CANCELLED: Tone.OVER,
    JobState.EXPIRED: Tone.WARNING,
}


def _states(job: Job) -> list[Moment]:
    """Moments that the job's own row tells."""
    moments = [Moment(job.created_at, "Submitted", Tone.WAITING)]
    if job.started_at is not None:
        waited = job.started_at - job.created_at
        moments.append(
            Moment(job.started_at, "Running", Tone.ACTIVE, f"first claimed after {duration(waited)}")
        )
    if job.finished_at is not None:
        words = job.state.value.capitalize()
        moments.append(Moment(job.finished_at, words, _ENDS.get(job.state, Tone.OVER)))
    return moments


def _moment(event: Event) -> Moment:
    words, tone, detail = _in_words(event.type, event.data)
    return Moment(event.created_at, words, tone, detail)


def _in_words(type: str, data: JsonObject) -> tuple[str, Tone, str]:
    shard, worker = data.get("shard"), data.get("worker_id", "")
    cause = str(data.get("cause", "")).replace("_", " ")
    match type:
        case "job.planned":
            return "Input cut", Tone.OVER, _count(data.get("shards", 0), "shard")
        case "job.updated":
            return "Priority changed", Tone.OVER, f"to {data.get('priority', '')}"
        case "job.paused":
            resumes_at = data.get("resumes_at")
            until = "" if resumes_at is None else f"until {from_seconds(resumes_at):%Y-%m-%d %H:%M} UTC"
            return "Paused", Tone.WARNING, until
        case "job.resumed":
            return "Resumed", Tone.ACTIVE, ""
        case "job.stopping":
            return "Told to stop", Tone.WARNING, str(data.get("reason", ""))
        case "job.finalizing":
            return "Output put together", Tone.ACTIVE, ""
        case "job.problem":
            problem = data.get("problem")
            if problem is None:
                return "Goes on", Tone.GOOD, "what kept it from going on is gone"
            return "Waits", Tone.WARNING, str(problem.get("message", ""))
        case "job.shard_lost":
            return "Worker lost", Tone.BAD, f"shard {shard} with {worker}: {cause}"
        case "job.shard_returned":
            return "Shard handed back", Tone.WARNING, f"shard {shard} by {worker}: {cause}"
        case "job.shard_resumed":
            rows = data.get("rows_done", 0)
            return "Shard resumed", Tone.GOOD, f"shard {shard} by {worker}, after {rows:,} rows that are done"
        case _:
            return type, Tone.OVER, ""


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _phases(job: Job, milestones: Sequence[Event], end: datetime, scale: _Scale) -> list[Phase]:
    """Phases of waiting, running, pausing and finalizing, one after the other."""
    changes = [(job.created_at, "queued")]
    if job.started_at is not None:
        changes.append((job.started_at, "running"))
    for event in milestones:
        if event.type in ("job.paused", "job.resumed"):
            is_running = job.started_at is not None and event.created_at >= job.started_at
            goes_on = "running" if is_running else "queued"
            changes.append((event.created_at, "paused" if event.type == "job.paused" else goes_on))
    if job.finalizing_at is not None:
        changes.append((job.finalizing_at, "finalizing"))
    changes.sort(key=lambda change: change[0])
    ends = [at for at, _ in changes[1:]] + [end]
    return [
        Phase(name, began, ended, scale.x(began), max(0.0, scale.x(ended) - scale.x(began)))
        for (began, name), ended in zip(changes, ends, strict=True)
        if ended > began
    ]


def _curve(job: Job, samples: Sequence[Event], scale: _Scale) -> str:
    done = [(event.created_at, _done(event.data)) for event in samples if event.type == PROGRESS]
    most = max([job.rows_expected or 0, *(rows for _, rows in done)], default=0)
    if not done or not most:
        return ""
    began = job.started_at or job.created_at
    points = [(began, 0), *done]
    return " ".join(f"{scale.x(at)},{round(HEIGHT * (1 - rows / most), 2)}" for at, rows in points)


def _done(data: JsonObject) -> int:
    counts = data.get("counts") or {}
    return int(counts.get("succeeded") or 0) + int(counts.get("failed") or 0)
