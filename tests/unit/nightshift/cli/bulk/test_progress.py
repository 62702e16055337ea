import re

import pytest

from nightshift.cli.bulk.progress import Pace, Sample, describe, progress_of
from nightshift.client import RemoteJob


def a_job(done: int, total: int | None = None, *, failed: int = 0, estimated: int | None = None) -> RemoteJob:
    counts = {"total": total, "succeeded": done - failed, "failed": failed}
    return RemoteJob.from_json(
        {"id": "job_1", "status": "running", "counts": counts, "rows_estimated": estimated}
    )


def a_pace(*samples: tuple[float, int, int]) -> Pace:
    pace = Pace()
    for sample in samples:
        pace.add(Sample(*sample))
    return pace


def test_the_pace_is_that_of_the_last_moments():
    pace = a_pace((0, 0, 0), (10, 10, 1000), (20, 510, 21_000), (30, 1010, 41_000))
    assert pace.rows_per_s == pytest.approx(50)
    assert pace.tokens_per_s == pytest.approx(2000)
    assert pace.left_s(100) == pytest.approx(2)


@pytest.mark.parametrize("samples", [(), ((0, 5, 5),), ((0, 5, 5), (0, 9, 9))])
def test_without_a_rate_no_time_left_is_shown(samples):
    pace = a_pace(*samples)
    assert (pace.rows_per_s, pace.tokens_per_s, pace.left_s(10)) == (0, 0, None)


@pytest.mark.parametrize(
    ("job", "pace", "words"),
    [
        (a_job(0), a_pace(), "0 rows"),
        (a_job(5, estimated=90), a_pace((0, 0, 0)), "5/about 90 rows"),
        (
            a_job(100, 1000, failed=3),
            a_pace((0, 0, 0), (10, 100, 500)),
            "100/1000 rows, 3 failed, 10.0 rows/s, 50 tokens/s, 0:01:30 left",
        ),
        (
            a_job(200, estimated=100),  # the estimate was too low
            a_pace((0, 0, 0), (10, 200, 500)),
            "200/about 100 rows, 20.0 rows/s, 50 tokens/s, 0:00:00 left",
        ),
    ],
)
def test_progress_in_words(job, pace, words):
    assert describe(job, pace) == words


@pytest.fixture
def terminal(monkeypatch):
    """Makes a terminal of so many columns of what the command writes to."""

    def columns(count: int) -> None:
        monkeypatch.setattr("nightshift.cli.bulk.progress.is_interactive", lambda: True)
        for name, value in {"COLUMNS": str(count), "TTY_COMPATIBLE": "1", "NO_COLOR": "1"}.items():
            monkeypatch.setenv(name, value)

    return columns


def test_at_80_columns_progress_is_one_line(capsys, monkeypatch, terminal):
    terminal(80)
    monkeypatch.setattr(Pace, "rows_per_s", 45.0)
    job_id = "job_4kabcdefghijklmnopqrstuv"
    counts = {"total": 12345, "succeeded": 12000, "failed": 300}
    with progress_of(job_id) as show:
        show(RemoteJob.from_json({"id": job_id, "status": "finalizing", "counts": counts}))

    drawn = capsys.readouterr()
    assert drawn.out == ""
    frames = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "\n", drawn.err).splitlines()
    line = next(line for line in frames if "12300" in line)  # a slow machine draws it more than once
    assert "job_4kabcd… finalizing" in line
    assert "━" * 7 in line
    assert "12300/12345 rows, 300 failed, 0:00:01 left" in line


def show_problems(*messages: str | None, end: str | None = None) -> None:
    """Follows a job that these problems keep from going on, one after the other."""
    statuses = [*((message, "running") for message in messages), *([(None, end)] if end else [])]
    with progress_of("job_1") as show:
        for message, status in statuses:
            problem = message and {"code": message, "message": message, "is_permanent": False}
            show(RemoteJob.from_json({"id": "job_1", "status": status, "problem": problem}))


def test_what_keeps_a_job_from_going_on_stays_above_the_bar_once(capsys, terminal):
    terminal(200)

    show_problems(None, "[away]", "[away]", None, "full", "full")

    drawn = capsys.readouterr().err
    for said in ("[away]; tried again", "full; tried again", "job_1 goes on"):
        assert drawn.count(said) == 1


def test_in_a_pipe_nothing_is_said_but_what_keeps_a_job_from_going_on(capsys):
    show_problems(None, "away", "away", None, "full", end="failed")  # its end says more

    assert capsys.readouterr() == ("", "away; tried again\njob_1 goes on\nfull; tried again\n")


def test_in_a_pipe_a_job_that_waits_for_its_window_says_until_when(capsys):
    with progress_of("job_1") as show:
        for resumes_at in (1_795_910_400, 1_795_910_400, None):
            show(RemoteJob.from_json({"id": "job_1", "status": "queued", "resumes_at": resumes_at}))

    assert capsys.readouterr() == (
        "",
        "job_1 waits for its window, until 2026-11-29 00:00:00Z\njob_1 goes on\n",
    )
