"""A row with several prompts: one result, which a later lease goes on with."""

import json
from collections.abc import Iterator

import pytest

from nightshift.bulk.results.row_results import RowResult
from nightshift.cli.demo import demo_model_path
from nightshift.jobs import JsonObject
from nightshift.process.settings import WorkerSettings
from tests.unit.workers.scripted import claim_bulk
from tests.unit.workers.serving.conftest import submit
from tests.unit.workers.shard.helpers import Ground, finished
from workers.serving.carry_over import CarryOver
from workers.serving.loading import load_models
from workers.serving.models import Models

ROUTE = "/v1/completions"
BODY: JsonObject = {
    "model": "demo_model",
    "prompt": ["1 2", "7", "48213"],
    "max_tokens": 8,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def models() -> Iterator[Models]:
    fatal: list[BaseException] = []
    settings = WorkerSettings(models=(str(demo_model_path()),), device="cpu", dtype="float32")
    (server,) = load_models(settings, fatal.append)
    server.start()
    yield Models([server])
    server.stop()
    assert fatal == []


def run(ground: Ground, models: Models, bodies: dict[str, JsonObject]) -> dict[str, RowResult]:
    """The results of these bodies by id."""
    rows = [{"custom_id": id, "method": "POST", "url": ROUTE, "body": body} for id, body in bodies.items()]
    ground.plan([json.dumps(row) for row in rows], model=models.ids[0], endpoint=ROUTE)
    finished(ground.lease(claim=claim_bulk(ground.store, models=models.ids)))
    return ground.by_id


def test_a_row_with_several_prompts_has_a_choice_for_each(ground: Ground, models: Models) -> None:
    bodies = {"good": BODY | {"temperature": 0}, "bad": BODY | {"prompt": ["1", 2]}}
    results = run(ground, models, bodies)

    assert [choice["index"] for choice in results["good"].body["choices"]] == [0, 1, 2]
    assert results["good"].body["usage"]["completion_tokens"] == 3 * 8
    assert results["bad"].body["error"]["param"] == "prompt[1]"


def test_a_row_that_asks_for_too_long_an_answer_fails_before_it_runs(
    ground: Ground, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_answer_bytes_max", 100_000)
    results = run(ground, models, {"large": BODY | {"n": 40, "logprobs": 5}, "small": BODY})

    error = results["large"].body["error"]
    assert (error["code"], error["param"]) == ("answer_too_large", "n")
    assert "'n' 40, 'prompt' 3, 'max_tokens' 8, 'logprobs' 5" in error["message"]
    assert results["small"].status_code == 200


def test_what_an_earlier_lease_left_of_each_prompt_is_continued(models: Models) -> None:
    warm = BODY | {"temperature": 1.5}
    whole = submit(models, ROUTE, warm, id="whole")
    expected = whole.wait()
    for choice, kept in enumerate((8, 3, 0)):
        del whole.choices[choice].token_ids[kept:]
    made_by = models.get(models.ids[0]).made_by
    carry_over = CarryOver([whole.choices[choice] for choice in range(3)], made_by)

    continued = submit(models, ROUTE, warm, id="again", carry_over=carry_over).wait()

    assert continued.body == expected.body
