"""A tenant that asks for far more than its share keeps no other one waiting."""

import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from nightshift.cli.demo import DEMO_MODEL_ID
from tests.e2e.service import Service, nightshift

NUM_JOBS = 6
CHOICES = 128  # each: as many as the engine runs at a time


@pytest.fixture
def greedy(service: Service) -> Iterator[httpx.Client]:
    """Another tenant than the first one, at our own routes."""
    made = nightshift(service, "keys", "create", "--tenant", "greedy", "--json")
    assert made.returncode == 0, made.stderr
    headers = {"authorization": f"Bearer {json.loads(made.stdout)['key']}"}
    with httpx.Client(base_url=service.base_url, headers=headers) as client:
        yield client


def test_one_chat_is_answered_before_the_hundreds_that_another_tenant_asked_for_first(
    client: openai.OpenAI, greedy: httpx.Client
) -> None:
    body = {
        "model": DEMO_MODEL_ID,
        "messages": [{"role": "user", "content": "1"}],
        "n": CHOICES,
        "max_tokens": 200,
        "ignore_eos": True,
        "temperature": 1,
    }
    jobs = [
        greedy.post("/jobs", json={"endpoint": "chat", "body": body}).json()["id"] for _ in range(NUM_JOBS)
    ]

    def num_ended() -> int:
        return sum(greedy.get(f"/jobs/{id}").json()["status"] == "succeeded" for id in jobs)

    before = num_ended()
    answer = client.chat.completions.create(
        model=DEMO_MODEL_ID, messages=[{"role": "user", "content": "48213"}], temperature=0
    )
    ended_meanwhile = num_ended() - before
    for id in jobs:
        greedy.post(f"/jobs/{id}/cancel")

    assert answer.choices[0].message.content == "forty-eight thousand two hundred thirteen"
    assert ended_meanwhile <= 2, f"of {NUM_JOBS} requests with {CHOICES} choices, before one with one"
