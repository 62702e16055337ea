"""Bad inputs of every model kind, in three ways: online, in a batch file and as rows of a job.

Each is an error that names the field, and what lies beside it is answered.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from nightshift import endpoints
from nightshift.demo import demo_model_path
from nightshift.errors import InvalidRequest
from tests.e2e.service import JOB_TIMEOUT_S, Service, forked, wait_until_ended
from tests.unit.workers.engine.encoders.tiny_classifiers import save_classifier, save_tokenizer
from tests.unit.workers.engine.encoders.tiny_encoders import (
    declare_modules,
    save_checkpoint,
    tiny_bert,
)
from tests.unit.workers.engine.images.test_decoding import PAGE, SVG, png_header
from tests.unit.workers.engine.images.tiny_images import as_bytes, picture, save_image_model
from tests.unit.workers.engine.seq2seq.tiny_seq2seq import save_seq2seq


def image(data: bytes) -> dict[str, str]:
    return {"image": f"data:image/png;base64,{base64.b64encode(data).decode()}"}


@dataclass(frozen=True)
class Asked:
    """What a model is asked, and bad inputs: what replaces some of it, what their error names, and says."""

    route: str
    good: dict[str, Any]
    bad: tuple[tuple[dict[str, Any], str, str], ...]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The good one first."""
        return [self.good, *(self.good | fields for fields, _, _ in self.bad)]

    @property
    def found_early(self) -> set[int]:
        """Which bodies a batch file is refused for before any of its rows runs."""
        return {number for number, body in enumerate(self.bodies) if self._is_refused(body)}

    def _is_refused(self, body: dict[str, Any]) -> bool:
        try:
            endpoints.get(self.route).check_line(body)
        except InvalidRequest:
            return True
        return False


ASKED = (
    Asked(
        "/v1/chat/completions",
        {"model": "demo_model", "messages": [{"role": "user", "content": "48213"}], "max_tokens": 2},
        (
            ({"prompt_logprobs": 1}, "prompt_logprobs", "not supported by this endpoint"),
            ({"truncate_prompt_tokens": 8}, "truncate_prompt_tokens", "not supported by this endpoint"),
            ({"stop_token_ids": [10**9]}, "stop_token_ids", "outside the vocabulary"),
            (
                {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                "messages[0].content[0]",
                "image_url",
            ),
            ({"messages": [{"role": "user", "content": "7" * 9_000}]}, "messages", "context"),
        ),
    ),
    Asked(
        "/v1/completions",
        {"model": "m2m", "prompt": "good morning", "target_language": "fr_XX", "max_tokens": 3},
        (
            ({"target_language": "xx_XX"}, "target_language", "no language 'xx_XX'"),
            ({"source_language": "??"}, "source_language", "no language '??'"),
            ({"num_beams": 4}, "num_beams", "not supported"),
            ({"prompt": [[1, -1]]}, "prompt[0][1]", "at least 0"),
            ({"prompt": [[10**9]]}, "prompt", "outside"),
        ),
    ),
    Asked(
        "/v1/embeddings",
        {"model": "embedder", "input": ["w1 w2", "w3"]},
        (
            ({"dimensions": 0}, "dimensions", "greater than or equal to 1"),
            ({"dimensions": 33}, "dimensions", "32"),
            ({"input": ["w1", ""]}, "input", "input[1]"),
            ({"input": []}, "input", ""),
            ({"input": ["w1"] * 10_000}, "input", "2048"),
            ({"input": [10**9]}, "input", "outside"),
            ({"input": "w1 " * 1_000}, "input", "64"),
            ({"input": {"image": "file:///etc/passwd"}}, "input", "image"),
            ({"encoding_format": "int8"}, "encoding_format", "float"),
            ({"normalize": True}, "normalize", "not supported by this endpoint"),
        ),
    ),
    Asked(
        "/v1/classifications",
        {"model": "animals", "input": image(as_bytes(picture(1)))},
        (
            ({"input": image(png_header(0, 0))}, "input.image", ""),
            ({"input": image(png_header(30_000, 30_000))}, "input.image", "30000 x 30000 pixels"),
            ({"input": image(as_bytes(picture(7, 400, 400), "JPEG")[:2000])}, "input.image", "truncated"),
            ({"input": image(SVG)}, "input.image", "SVG drawing"),
            ({"input": image(PAGE)}, "input.image", "web page"),
            ({"input": {"image": "https://10.0.0.1/cat.jpg"}}, "input.image", "may not"),
            ({"input": {"image": "file:///etc/passwd"}}, "input.image", "may not name"),
            ({"input": "w1"}, "input", "image"),
        ),
    ),
    Asked(
        "/v1/classifications",
        {"model": "single", "input": "w1"},
        (
            ({"input": {"text": "w1", "text_pair": "w2"}}, "input.text_pair", "one text"),
            ({"input": []}, "input", "1 to 2048"),
            ({"input": ["w1"] * 10_000}, "input", "1 to 2048"),
            ({"input": image(SVG)}, "input.image", "text"),
            ({"top_k": 0}, "top_k", "greater than or equal to 1"),
        ),
    ),
    Asked(
        "/v1/rerank",
        {"model": "reranker", "query": "w1", "documents": ["w2", "w3"]},
        (
            ({"documents": []}, "documents", "1 to 2048"),
            ({"documents": ["w2"] * 10_000}, "documents", "1 to 2048"),
            ({"documents": ["w2", ""]}, "documents", "documents[1]"),
            ({"query": ""}, "query", ""),
            ({"top_n": 0}, "top_n", "greater than or equal to 1"),
            ({"documents": ["w2", "w3 " * 1_000]}, "documents[1]", "64"),
            ({"max_tokens_per_doc": 9}, "max_tokens_per_doc", "not supported by this endpoint"),
        ),
    ),
    Asked(
        "/v1/score",
        {"model": "reranker", "text_1": "w1", "text_2": ["w2", "w3"]},
        (
            ({"text_1": ["w1", "w2", "w3"]}, "text_2", "as many"),
            ({"text_2": 7}, "text_2", "a text or a list"),
            ({"text_2": []}, "text_2", "1 to 2048"),
        ),
    ),
)


def each_of(asked: Sequence[Asked]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("asked", asked, ids=lambda each: f"{each.good['model']} {each.route[4:]}")


EACH = each_of(ASKED)


def check_error(error: dict[str, Any], wanted: tuple[dict[str, Any], str, str]) -> None:
    fields, param, said = wanted
    assert error["param"] == param, (str(fields)[:200], error)
    assert said in error["message"], error
    assert error["code"], error


def lines(asked: Asked, numbers: Iterable[int]) -> bytes:
    rows = (
        {"custom_id": str(number), "method": "POST", "url": asked.route, "body": asked.bodies[number]}
        for number in numbers
    )
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def batch_of(service: Service, http: httpx.Client, asked: Asked, numbers: Iterable[int]) -> dict[str, Any]:
    """It has ended."""
    file = http.post("/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", lines(asked, numbers))})
    body = {"input_file_id": file.json()["id"], "endpoint": asked.route, "completion_window": "24h"}
    batch: dict[str, Any] = http.post("/batches", json=body).json()
    wait_until_ended(service, batch["id"])
    return dict(http.get(f"/batches/{batch['id']}").json())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad-inputs")
    embedder = save_checkpoint(folder / "embedder", tiny_bert())
    declare_modules(embedder, {"pooling_mode": "mean"}, "Transformer", "Pooling", "Normalize")
    save_classifier(folder / "single", "llama", num_labels=2)
    save_tokenizer(folder / "single", has_types=False, has_pairs=False, pad_token=None)
    save_classifier(folder / "reranker", "bert", num_labels=1)
    save_image_model(folder / "animals", "ViT", id2label={0: "cat", 1: "dog"}, label2id=None)
    save_seq2seq(folder / "m2m", "m2m_100", has_languages=True)
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    names = ("embedder", "single", "reranker", "animals", "m2m")
    models = [word for name in names for word in ("--model", str(folder / name))]
    models += ["--model", demo_model_path()]
    with forked(folder / "data", *models, FILE_ROOTS=str(folder), DTYPE="float32") as service:
        yield service


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with service.http() as client:
        client.timeout = JOB_TIMEOUT_S
        yield client


@EACH
def test_online_each_is_a_400_that_names_the_field(http: httpx.Client, asked: Asked) -> None:
    good, *bad = (http.post(asked.route.removeprefix("/v1"), json=body) for body in asked.bodies)

    assert good.status_code == 200, good.text
    for answer, wanted in zip(bad, asked.bad, strict=True):
        assert answer.status_code == 400, (wanted, answer.text)
        check_error(answer.json()["error"], wanted)


@EACH
def test_a_batch_file_has_an_error_for_each_row_and_an_answer_for_the_one_beside_them(
    service: Service, http: httpx.Client, asked: Asked
) -> None:
    numbers = [number for number in range(len(asked.bodies)) if number not in asked.found_early]
    batch = batch_of(service, http, asked, numbers)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": len(numbers), "completed": 1, "failed": len(numbers) - 1}

    if len(numbers) > 1:
        found = http.get(f"/files/{batch['error_file_id']}/content").text.splitlines()
        errors = {
            int(line["custom_id"]): line["response"]["body"]["error"] for line in map(json.loads, found)
        }
        assert sorted(errors) == numbers[1:]
        for number, error in errors.items():
            check_error(error, asked.bad[number - 1])


@each_of([asked for asked in ASKED if asked.found_early])
def test_a_batch_file_is_refused_for_the_rows_that_are_bad_at_first_sight(
    service: Service, http: httpx.Client, asked: Asked
) -> None:
    batch = batch_of(service, http, asked, range(len(asked.bodies)))

    assert batch["status"] == "failed"
    assert {error["line"] - 1 for error in batch["errors"]["data"]} == asked.found_early


@EACH
def test_rows_of_a_job_have_an_error_each_and_the_one_beside_them_an_answer(
    service: Service, http: httpx.Client, folder: Path, asked: Asked
) -> None:
    path = folder / f"{asked.good['model']}-{asked.route.replace('/', '-')}.jsonl"
    path.write_bytes(lines(asked, range(len(asked.bodies))))
    places = {"input": f"file://{path}", "output": f"file://{path.with_suffix('')}/"}
    body = {"endpoint": asked.route, **places, "max_error_rate": 1}
    created = http.post("/jobs", json=body).json()
    assert "id" in created, created
    wait_until_ended(service, created["id"])
    job = http.get(f"/jobs/{created['id']}").json()

    assert job["counts"] == {"total": len(asked.bodies), "succeeded": 1, "failed": len(asked.bad)}, job
    results = http.get(f"/jobs/{created['id']}/results", headers={"accept": "application/x-ndjson"}).text
    rows = {int(row["custom_id"]): row for row in map(json.loads, results.splitlines())}
    assert sorted(rows) == [*range(len(asked.bodies))]
    for number, wanted in enumerate(asked.bad, 1):
        check_error(rows[number]["response"]["body"]["error"], wanted)
