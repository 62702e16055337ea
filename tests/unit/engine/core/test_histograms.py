"""Histograms of an engine's steps and requests."""

from pathlib import Path

import pytest

from nightshift_engine import Engine, Request, SamplingParams
from nightshift_engine.core.stats import Histogram
from nightshift_engine.encoders.engine import EncoderEngine
from nightshift_engine.encoders.request import EncodeRequest
from tests.unit.engine.encoders.formula import FormulaEncoder
from tests.unit.engine.running.scripted_runner import scripted
from tests.unit.engine.tiny.decoders import run_to_end

GREEDY = SamplingParams(temperature=0)


def test_a_bound_counts_what_equals_it() -> None:
    histogram = Histogram((1, 2.5))
    for value in (0, 1, 1.5, 2.5, 3):
        histogram.observe(value)

    assert histogram.cumulative() == [("1", 2), ("2.5", 4), ("+Inf", 5)]
    assert histogram.sum == pytest.approx(8)


@pytest.fixture
def engine(llama: Path) -> Engine:
    """Its answers are two characters and an end."""
    return scripted(llama, "ab")


def test_a_step_has_a_batch_and_tokens(engine: Engine) -> None:
    for name in ("a", "b"):
        engine.add(Request(name, [1, 2, 3], GREEDY))
    run_to_end(engine)

    histograms = engine.histograms
    assert (sum(histograms.batch_size.counts), histograms.batch_size.sum) == (3, 6)
    assert histograms.tokens_per_step.sum == 2 * (3 + 1 + 1)


def test_each_class_has_its_own_times_and_tokens(engine: Engine) -> None:
    engine.add(Request("chat", [1, 2, 3], GREEDY, priority="interactive"))
    engine.add(Request("row", [1], GREEDY, priority="background"))
    run_to_end(engine)

    chat, row, none = (engine.histograms.by_class[name] for name in ("interactive", "background", "standard"))
    assert (chat.prompt_tokens, chat.generation_tokens) == (3, 3)
    assert (row.prompt_tokens, row.generation_tokens) == (1, 3)
    assert (none.prompt_tokens, sum(none.queue_s.counts)) == (0, 0)
    for histograms in (chat, row):
        assert [
            sum(one.counts) for one in (histograms.queue_s, histograms.prefill_s, histograms.decode_s)
        ] == [1, 1, 1]
        assert sum(histograms.inter_token_s.counts) == 2
        assert histograms.decode_s.sum == pytest.approx(histograms.inter_token_s.sum)


def test_a_request_that_is_aborted_before_its_first_step_has_no_times(engine: Engine) -> None:
    engine.add(Request("a", [1, 2, 3], GREEDY))
    engine.abort("a")
    run_to_end(engine)

    histograms = engine.histograms.by_class["standard"]
    assert [sum(one.counts) for one in (histograms.queue_s, histograms.prefill_s, histograms.decode_s)] == [
        0
    ] * 3


def test_an_encoder_counts_each_input() -> None:
    now_us = 0
    engine = EncoderEngine(FormulaEncoder(), clock_us=lambda: now_us)
    engine.add(EncodeRequest("a", [[1, 2], [3]], "background"))
    now_us = 2_000_000
    while engine.has_work:
        engine.step()

    histograms = engine.histograms.by_class["background"]
    assert sum(histograms.queue_s.counts) == 2
    assert histograms.queue_s.sum == pytest.approx(4)
    assert histograms.prompt_tokens == 3
    assert engine.histograms.tokens_per_step.sum == 3
