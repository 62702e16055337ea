"""What model code says that it computed can be counted, also where its process was killed."""

from pathlib import Path

import pytest

from benchmarks import records
from benchmarks.records import Recorder, calls_begun, calls_ended


class Killed(BaseException):
    """Stands for a signal in the middle of a call."""


def test_a_call_that_did_not_end_has_begun_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(records.FOLDER, str(tmp_path))
    recorder = Recorder()
    with recorder.call(64):
        pass
    with pytest.raises(Killed), recorder.call(32):
        raise Killed

    assert [call.rows for call in calls_begun(tmp_path)] == [64, 32]
    ended = calls_ended(tmp_path)
    assert [call.rows for call in ended] == [64]
    assert 0 < ended[0].began_ns <= ended[0].ended_ns


def test_calls_of_several_processes_are_in_the_order_of_their_beginnings(tmp_path: Path) -> None:
    (tmp_path / "7").write_text("20 0 1\n20 25 1\n40 0 3\n")
    (tmp_path / "9").write_text("30 0 2\n")

    assert [(call.pid, call.rows) for call in calls_begun(tmp_path)] == [(7, 1), (9, 2), (7, 3)]
