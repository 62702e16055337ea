"""Long rows of a worker that dies go on from the text that it had heard."""

import os
import signal
from collections.abc import Sequence

import openai
import pytest

from tests.e2e.service import Service, answer_of, ended_batch, output_lines, submit_batch
from tests.e2e.upstreams.conftest import Served, simulated
from tests.helpers.upstreams import UpstreamProcess, behaviours, texts
from tests.helpers.waiting import wait_for

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.parametrize("served", [simulated], indirect=True, ids=["simulated"]),
]

ROWS = 4
TOKENS = 60  # of each answer
HELD_AT = 31  # events: a chat's first has no token


def test_rows_of_a_killed_worker_go_on_from_their_text(
    served: Served, client: openai.OpenAI, numbers: Sequence[int]
) -> None:
    upstream, rows = served.upstream, numbers[:ROWS]
    assert isinstance(upstream, UpstreamProcess)
    upstream.serve(own_tokens=TOKENS)
    upstream.behave(behaviours.holds(HELD_AT))
    batch_id = submit_batch(client, rows)
    wait_for("the text of every row is saved", lambda: _rows_saved(served.service) == ROWS)
    os.kill(served.service.worker_pid(), signal.SIGKILL)
    upstream.behave()

    batch = ended_batch(served.service, batch_id)
    arrivals = upstream.seen()["arrivals"]
    upstream.serve(own_tokens=None)
    answers = {line["custom_id"]: answer_of(line) for line in output_lines(client, batch.id)}
    assert answers == {f"number-{number}": _answer(number) for number in rows}
    assert sorted(arrival["num_continued"] for arrival in arrivals[-ROWS:]) == [HELD_AT - 1] * ROWS
    assert batch.usage is not None
    assert batch.usage.output_tokens == ROWS * TOKENS


def _rows_saved(service: Service) -> int:
    """The number of unfinished rows in the newest carry-over."""
    paths = sorted(service.data_dir.glob("**/t*-c*.jsonl"), key=os.path.getmtime)
    return len(paths[-1].read_text().splitlines()) if paths else 0


def _answer(number: int) -> str:
    prompt = texts.encode(texts.rendered({"messages": [{"role": "user", "content": str(number)}]}))
    return texts.answer(prompt, None, own_tokens=TOKENS).text
