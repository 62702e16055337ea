"""A flow that has taken all slots yields some to others of its class, and every answer stays what it was."""

from pathlib import Path

import pytest

from nightshift_engine import Completion, Engine, Request, SamplingParams
from tests.unit.engine.tiny.decoders import complete, make_engine, random_prompts

SLOTS = 4


def requests(flow: str, count: int, num_tokens: int) -> list[Request]:
    prompts = random_prompts(count, seed=len(flow))
    return [
        Request(
            f"{flow}-{number}",
            prompt,
            SamplingParams(temperature=1.0, seed=number, max_tokens=num_tokens, ignore_eos=True),
            flow=flow,
            cache_salt=flow,
        )
        for number, prompt in enumerate(prompts)
    ]


def run(engine: Engine, first: list[Request], late: list[Request]) -> dict[str, Completion]:
    """The late ones come one by one, while the first hold what there is."""
    completions = {request.id: Completion(request.id) for request in (*first, *late)}
    for request in first:
        engine.add(request)
    arrivals = {8 + 6 * number: request for number, request in enumerate(late)}
    step = 0
    while engine.has_work or arrivals:
        if (arrived := arrivals.pop(step, None)) is not None:
            engine.add(arrived)
        step += 1
        for output in engine.step():
            completions[output.id].append(output)
        engine.check_integrity()
    return completions


@pytest.mark.parametrize(("overlap", "num_kv_blocks"), [(False, 24), (True, 200)])
def test_answers_are_the_same_whether_their_sequences_yielded_or_not(
    llama: Path, overlap: bool, num_kv_blocks: int
) -> None:
    first, late = requests("many", SLOTS, 60), requests("one", 6, 4)
    alone = {
        request.id: complete(make_engine(llama, max_num_seqs=1, deterministic=True), request)[0]
        for request in (*first, *late)
    }
    engine = make_engine(
        llama,
        max_num_seqs=SLOTS,
        num_kv_blocks=num_kv_blocks,
        overlap_steps=overlap,
        deterministic=True,
    )

    completions = run(engine, first, late)

    assert engine.stats().preemptions >= 1
    assert {id: completion.token_ids for id, completion in completions.items()} == {
        id: completion.token_ids for id, completion in alone.items()
    }
    assert {completion.finish_reason for completion in completions.values()} == {"length"}
