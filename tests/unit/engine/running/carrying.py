"""A request moves to another engine as it does in production: by the carry-over that a worker saves."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from nightshift_engine import Completion, Engine, MadeBy, Request
from workers.serving.carry_over import CarryOver, ChoiceSoFar, decode_carry_overs, encode_carry_overs

SIZE_BYTES_MAX = 1_000_000


def save(engine: Engine, requests: Sequence[Request], so_far: Mapping[str, Completion]) -> bytes:
    """Bytes that the worker of `engine` stores of the requests that have not finished, numbered in order."""
    unfinished = {}
    for row, request in enumerate(requests):
        done = so_far.get(request.id, Completion(request.id))
        if not done.is_finished:
            choice = ChoiceSoFar(done.token_ids, done.logprobs)
            unfinished[row] = CarryOver([choice], asdict(engine.made_by))
    return encode_carry_overs(unfinished, SIZE_BYTES_MAX)


def resumed(engine: Engine, requests: Sequence[Request], saved: bytes) -> list[Request]:
    """The saved requests, to be added to `engine`, which continues them exactly."""
    return [
        continued(engine, requests[row], carry_over) for row, carry_over in decode_carry_overs(saved).items()
    ]


def continued(engine: Engine, request: Request, carry_over: CarryOver) -> Request:
    """Raises IncompatibleState."""
    assert engine.made_by.accepts(MadeBy.from_json(carry_over.made_by)), "something differs"
    (choice,) = carry_over.choices
    return replace(request, output_token_ids=choice.token_ids, output_logprobs=choice.logprobs)
