"""Engines of others, asked directly: what the tests through the queue stand on."""

import openai
import pytest

from nightshift.cli.demo import DEMO_MODEL_ID, number_in_words
from tests.e2e.upstreams.engines import Engine

pytestmark = pytest.mark.exhaustive


def test_an_engine_answers_as_the_demo_model_does(engine: Engine, numbers: list[int]) -> None:
    with openai.OpenAI(base_url=engine.url, api_key="none") as client:
        for number in numbers[:5]:
            answer = client.chat.completions.create(
                model=DEMO_MODEL_ID, messages=[{"role": "user", "content": str(number)}], temperature=0
            )
            assert answer.choices[0].message.content == number_in_words(number)


def test_an_engine_streams(engine: Engine, numbers: list[int]) -> None:
    with openai.OpenAI(base_url=engine.url, api_key="none") as client:
        chunks = client.chat.completions.create(
            model=DEMO_MODEL_ID,
            messages=[{"role": "user", "content": str(numbers[0])}],
            temperature=0,
            stream=True,
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == number_in_words(numbers[0])
