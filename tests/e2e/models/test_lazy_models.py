"""Two models in a worker with room for one: each is loaded when work waits for it, and no row is lost."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.cli.demo import demo_model_path, number_in_words
from nightshift.process.settings import WorkerSettings
from nightshift_engine.models import EncoderModel, encoder_footprint, generator_footprint
from tests.e2e.service import Service, command, forked
from tests.unit.engine.tiny.encoders import declare_modules, save_checkpoint, tiny_bert
from workers.serving.kinds.generators import engine_config

KV_BLOCKS = 200
ROWS = 300
WAIT_MAX_S = 120.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "demo").symlink_to(demo_model_path())
    directory = save_checkpoint(folder / "embedder", tiny_bert())
    declare_modules(directory, {"pooling_mode": "mean"}, "Transformer", "Pooling", "Normalize")
    with (folder / "numbers.jsonl").open("w") as file:
        for number in range(ROWS):
            body = {"model": "demo", "messages": [{"role": "user", "content": str(number)}]}
            file.write(json.dumps({"custom_id": str(number), "body": body}) + "\n")
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    settings = WorkerSettings(device="cpu", dtype="float32", engine_num_kv_blocks=KV_BLOCKS)
    demo = generator_footprint(engine_config(str(demo_model_path()), settings), demo_model_path())
    embedder = encoder_footprint(folder / "embedder", "float32", "cpu")
    lazy = ("--lazy-model", str(folder / "demo"), "--lazy-model", str(folder / "embedder"))
    with forked(
        folder / "data",
        *lazy,
        FILE_ROOTS=str(folder),
        DTYPE="float32",
        DEVICE="cpu",
        ENGINE_NUM_KV_BLOCKS=str(KV_BLOCKS),
        DEVICE_MEMORY_BYTES=str(max(demo.least, embedder.least)),
        MODEL_RESIDENCY_S="0.5",
        MODEL_IDLE_S="0",
        ONLINE_SLOTS="16",
    ) as service:
        yield service


def warm(service: Service) -> list[str]:
    with service.http() as http:
        [worker] = http.get("/workers").json()["data"]
    return list(worker["warm_models"])


def test_each_model_answers_though_only_one_fits_at_a_time(service: Service, folder: Path) -> None:
    with service.http() as http:
        listed = {model["id"]: model for model in http.get("/models").json()["data"]}
        assert warm(service) == []
        assert (listed["demo"]["kind"], listed["embedder"]["kind"]) == ("decoder", "encoder")

        for _ in range(2):
            chat = {"model": "demo", "messages": [{"role": "user", "content": "48213"}], "temperature": 0}
            answer = http.post("/chat/completions", json=chat, timeout=WAIT_MAX_S).json()
            assert answer["choices"][0]["message"]["content"] == number_in_words(48213)
            assert warm(service) == ["demo"]

            body = {"model": "embedder", "input": "w1 w2"}
            answer = http.post("/embeddings", json=body, timeout=WAIT_MAX_S).json()
            expected = EncoderModel.load(folder / "embedder", "float32", "cpu")
            [vector] = expected.encode(expected.tokenize_all(["w1 w2"])).tolist()
            assert answer["data"][0]["embedding"] == pytest.approx(vector, abs=1e-5)
            assert warm(service) == ["embedder"]

        wrong = http.post("/embeddings", json={"model": "demo", "input": "w1"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "model_not_supported")


def test_rows_of_a_model_that_makes_room_go_on_where_they_were(service: Service, folder: Path) -> None:
    run = ("run", "numbers.jsonl", "--output", "words", "--endpoint", "chat", "--wait")
    rows = subprocess.Popen(command(*run), env=os.environ | service.environment(), cwd=folder)
    with service.http() as http:
        for _ in range(3):
            answer = http.post(
                "/embeddings", json={"model": "embedder", "input": "w1 w2"}, timeout=WAIT_MAX_S
            )
            assert answer.status_code == 200, answer.text

    assert rows.wait(WAIT_MAX_S) == 0
    parts = sorted((folder / "words").glob("part-*"))
    lines = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    answers = {
        line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines
    }
    assert answers == {str(number): number_in_words(number) for number in range(ROWS)}
    assert len(lines) == ROWS
