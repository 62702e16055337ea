"""Adapters of a service's model: added by the command and by the option, and run in its engine's process."""

from collections.abc import Iterator

import pytest

from nightshift.cli.demo import DEMO_MODEL_ID, demo_model_path, number_in_words
from nightshift.cli.main import main
from tests.e2e.service import Service, answers_of, forked
from tests.unit.engine.tiny.adapters import save_adapter

CHAT = "/v1/chat/completions"
NUMBERS = range(48213, 48217)
MODELS = (DEMO_MODEL_ID, "one", "two")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder, demo = tmp_path_factory.mktemp("adapters"), demo_model_path()
    one, two = (save_adapter(folder / f"{seed}", demo, seed=seed).path for seed in range(2))
    added = ["models", "add-adapter", "two", two, "--base", str(demo), "--data-dir", str(folder / "data")]
    with pytest.raises(SystemExit, match="0"):
        main(added)
    named = ("--model", str(demo), "--model", f"one={demo}+{one}")
    settings = {"DTYPE": "float32", "DEVICE": "cpu", "ENGINE_PROCESS": "true", "ENGINE_MAX_LORAS": "1"}
    with forked(folder / "data", *named, **settings) as service:
        yield service


def test_adapters_are_listed_with_the_model_that_they_change(service: Service) -> None:
    with service.http() as http:
        listed = {model["id"]: model["parent"] for model in http.get("/models").json()["data"]}
    assert listed == {DEMO_MODEL_ID: None, "one": DEMO_MODEL_ID, "two": DEMO_MODEL_ID}


def test_each_answers_alone_as_in_batches_beside_the_others(service: Service) -> None:
    """One slot for two adapters; a batch is of one model."""
    said: dict[str, list[str]] = {}
    for model in MODELS:
        bodies = {
            str(number): {
                "model": model,
                "messages": [{"role": "user", "content": str(number)}],
                "temperature": 0,
                "max_tokens": 24,
            }
            for number in NUMBERS
        }
        batch = answers_of(service, CHAT, bodies)
        with service.http() as http:
            online = [http.post("/chat/completions", json=body).json() for body in bodies.values()]
        assert {answer["model"] for answer in online} == {model}
        said[model] = [answer["choices"][0]["message"]["content"] for answer in online]
        assert [batch[id]["choices"][0]["message"]["content"] for id in bodies] == said[model]

    assert said[DEMO_MODEL_ID] == [number_in_words(number) for number in NUMBERS]
    assert len({str(answers) for answers in said.values()}) == len(MODELS), "an adapter changed nothing"
