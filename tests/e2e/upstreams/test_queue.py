"""The queue before an engine of others: every row once, whatever is killed, and chats beside."""

from collections.abc import Sequence

import openai

from nightshift.cli.demo import DEMO_MODEL_ID
from tests.e2e.service import (
    answer_of,
    ended_batch,
    job_of,
    kill_worker_in_the_middle,
    nightshift,
    output_lines,
    submit_batch,
    wait_for_rows,
)
from tests.e2e.upstreams.conftest import Served
from tests.helpers.waiting import wait_for


def check_rows(client: openai.OpenAI, served: Served, batch_id: str, numbers: Sequence[int]) -> None:
    """Every row is there once, with the engine's own answer."""
    batch = ended_batch(served.service, batch_id)
    assert batch.status == "completed"
    answers = [(line["custom_id"], answer_of(line)) for line in output_lines(client, batch_id)]
    assert answers == [(f"number-{number}", served.answer_to(number)) for number in numbers]


def test_every_row_is_answered_and_charged(
    served: Served, client: openai.OpenAI, numbers: Sequence[int]
) -> None:
    batch_id = submit_batch(client, numbers[:60])
    check_rows(client, served, batch_id, numbers[:60])
    lines = output_lines(client, batch_id)
    usage = client.batches.retrieve(batch_id).usage
    assert usage is not None
    assert usage.output_tokens == sum(
        line["response"]["body"]["usage"]["completion_tokens"] for line in lines
    )


def test_a_chat_streams(served: Served, client: openai.OpenAI, numbers: Sequence[int]) -> None:
    chunks = client.chat.completions.create(
        model=DEMO_MODEL_ID,
        messages=[{"role": "user", "content": str(numbers[0])}],
        temperature=0,
        stream=True,
    )
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == served.answer_to(numbers[0])
    assert sum(map(bool, texts)) > 1


def test_rows_of_a_worker_that_is_killed_are_run_again(
    served: Served, client: openai.OpenAI, numbers: Sequence[int]
) -> None:
    batch_id = submit_batch(client, numbers)
    kill_worker_in_the_middle(served.service, batch_id)
    check_rows(client, served, batch_id, numbers)


def test_a_job_says_that_its_upstream_is_away_and_ends_when_it_is_back(
    served: Served, client: openai.OpenAI, numbers: Sequence[int]
) -> None:
    batch_id = submit_batch(client, numbers)
    wait_for_rows(served.service, batch_id)
    served.upstream.kill()
    wait_for(
        "the job says why it waits",
        lambda: "model's upstream" in nightshift(served.service, "jobs", "show", job_of(batch_id)).stdout,
        said=served.service.logs,
    )
    served.upstream.start()
    check_rows(client, served, batch_id, numbers)
