"""Requests that are aborted."""

from __future__ import annotations

from nightshift_engine import Engine, Request
from tests.unit.engine.tiny.decoders import complete, greedy


def test_an_abort_takes_effect_at_the_next_step_and_is_reported(engine: Engine) -> None:
    for id in ("running", "other"):
        engine.add(Request(id, [1, 2, 3], greedy(10)))
    engine.step()
    engine.abort("running")

    outputs = {output.id: output for output in engine.step()}

    assert outputs["running"].finish_reason == "abort"
    assert outputs["running"].token_ids == []
    assert outputs["running"].error is None
    assert outputs["other"].finish_reason is None
    engine.check_integrity()


def test_a_request_aborted_before_it_started_never_runs(engine: Engine) -> None:
    engine.add(Request("a", [1, 2, 3], greedy(10)))
    engine.abort("a")

    assert [output.finish_reason for output in engine.step()] == ["abort"]
    assert not engine.has_work
    assert engine.stats().tokens_computed == 0


def test_aborting_what_is_not_there_is_ignored(engine: Engine) -> None:
    engine.abort("never seen")
    complete(engine, Request("a", [1], greedy(1)))
    engine.abort("a")

    assert engine.step() == []


def test_aborting_twice_reports_once(engine: Engine) -> None:
    engine.add(Request("a", [1], greedy(10)))
    engine.step()
    engine.abort("a")
    engine.abort("a")

    assert len(engine.step()) == 1
    assert engine.step() == []
