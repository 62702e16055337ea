"""Requests with a single output, at their end: the same text as from deltas, and readable before."""

from dataclasses import replace
from typing import Any

import pytest

from nightshift_engine import Engine, Request, SamplingParams
from tests.unit.engine.tiny.decoders import complete, greedy, random_prompts, run_to_end


def requests(sampling: SamplingParams, **fields: Any) -> list[Request]:
    prompts = random_prompts(6)
    return [Request(str(n), prompt, sampling, **fields) for n, prompt in enumerate(prompts)]


@pytest.mark.parametrize(
    "sampling",
    [
        greedy(24),
        greedy(24, logprobs=2),
        greedy(24, stop=("e",)),
        greedy(24, ignore_eos=False),
        greedy(24, stop_token_ids=(5, 60, 101)),
        SamplingParams(temperature=1.0, seed=3, max_tokens=24),
    ],
)
def test_the_only_output_is_what_deltas_add_up_to_of_a_resumed_request_too(
    engine: Engine, sampling: SamplingParams
) -> None:
    wanted = requests(sampling)
    expected = complete(engine, *wanted)

    for number, request in enumerate(wanted):
        tokens = expected[0].token_ids[:7] if number == 0 and not request.sampling.logprobs else ()
        engine.add(replace(request, output_kind="final_only", output_token_ids=tokens))
    outputs = []
    while engine.has_work:
        outputs += engine.step()

    assert sorted(output.id for output in outputs) == [request.id for request in wanted]
    for output in outputs:
        whole = expected[int(output.id)]
        assert (output.text, output.token_ids) == (whole.text, whole.token_ids)
        assert (output.finish_reason, output.end_token_id) == (whole.finish_reason, whole.end_token_id)
        assert (output.logprobs or []) == whole.logprobs


def test_what_it_has_generated_can_be_read_before(engine: Engine) -> None:
    (request, *_) = requests(greedy(12, logprobs=1), output_kind="final_only")
    engine.add(request)
    assert engine.generated(request.id) == ([], [])
    for _ in range(5):
        assert engine.step() == []

    early, logprobs = engine.generated(request.id)
    later, _ = engine.generated(request.id, start=3)

    output = run_to_end(engine)[request.id]
    assert 0 < len(early) < 12
    assert later == early[3:]
    assert output.token_ids[: len(early)] == early
    assert output.logprobs[: len(early)] == logprobs
    assert engine.generated(request.id) == ([], [])
