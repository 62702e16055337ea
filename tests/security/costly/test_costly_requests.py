"""Each request of the corpus, sent to an API of limited memory: none costs more than 30 times its size and a
second of CPU, and none stops the event loop for long. `/healthz` is answered all the while;
`python -m benchmarks.health` measures how soon.
"""

from collections.abc import Iterator

import pytest

from tests.security.costly.children import MIB, slowness
from tests.security.costly.corpus import CORPUS, Costly
from tests.security.costly.limited_api import LimitedApi, limited_api

COST_FACTOR = 30
LITTLE_BYTES = 96 * MIB  # what earlier requests have left to the allocator comes and goes
CPU_S_MAX = 1.5  # a second, and half of one for a machine whose caches others use
BLOCKED_S_MAX = 0.5  # CPU time of all threads, which may run beside the loop


# One of each way in which a request may cost too much.
QUICK = {
    *("parts that are numbers", "lists in lists", "lists without an end", "one field many times", "numbers"),
    *("long numbers", "a longer number", "escapes", "text of brackets", "arguments without an end", "tools"),
    *("an enum", "schemas in a circle", "a template of openings", "a glob", "event types", "a range"),
    *("parameters", "form fields", "beginnings of boundaries", "before the first boundary"),
}
EACH = [
    pytest.param(costly, id=costly.name, marks=() if costly.name in QUICK else pytest.mark.exhaustive)
    for costly in CORPUS
]


@pytest.fixture(scope="module")
def api() -> Iterator[LimitedApi]:
    with limited_api(MODELS="m") as api:
        yield api


@pytest.mark.parametrize("request_", EACH)
def test_a_request_costs_little(api: LimitedApi, request_: Costly) -> None:
    body = request_.make()
    answers = len(api.health_s)

    cost = api.ask(request_.method, request_.path, body, request_.headers)

    assert cost.status == request_.status, cost.answer[:500]
    assert cost.memory_bytes <= max(COST_FACTOR * len(body), LITTLE_BYTES)
    assert cost.cpu_s <= CPU_S_MAX * slowness()
    assert cost.blocked_s <= BLOCKED_S_MAX * slowness()
    assert api.is_alive
    assert len(api.health_s) >= answers
