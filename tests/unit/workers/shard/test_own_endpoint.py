"""An endpoint is one module: this file has one, and nothing else knows of it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nightshift import endpoints
from nightshift.bulk.results.output_rows import Chunk
from nightshift.bulk.results.part_encoding import PartSchema, part_encoder
from nightshift.bulk.results.shard_results import ShardResults
from nightshift.bulk.rows.text.lines import split_lines
from nightshift.bulk.rows.validation import FileLimits, validate
from nightshift.cli.bulk.requests_of_rows import template_of
from nightshift.cli.demo import demo_model_path, number_in_words
from nightshift.endpoints.texts.choices import ChoicesEndpoint, ChoicesRequest
from nightshift.endpoints.texts.generation import Choice, Conversation
from nightshift.endpoints.texts.logprobs import Chosen
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from tests.helpers.fakes import offered
from tests.unit.workers.scripted import claim_bulk
from tests.unit.workers.serving.conftest import started
from tests.unit.workers.shard.helpers import Ground, finished
from workers.serving.models import Models

ROUTE = "/v1/spellings"


class SpellingRequest(ChoicesRequest):
    number: int

    @property
    def prompts_given(self) -> list[Conversation]:
        return [Conversation([{"role": "user", "content": str(self.number)}])]

    @property
    def logprobs_asked(self) -> None:
        return None


class Spellings(ChoicesEndpoint):
    """POST /v1/spellings: a number in, its words out."""

    route = ROUTE
    name = "spellings"
    operation = "create_spelling"
    summary = "Spell a number"
    request_type = SpellingRequest
    prompt_field = "number"
    id_prefix = "spell-"
    object_name = "spelling"
    chunk_object_name = "spelling.chunk"

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        return {"model": model, "number": placeholder}

    def check_line(self, body: JsonObject) -> int:
        if not isinstance(body.get("number"), int):
            raise InvalidRequest("'number' must be a number.", param="number", code="invalid_type")
        return 0

    def choice_json(self, choice: Choice) -> JsonObject:
        return {"spelling": choice.text}

    def choice_text(self, choice: JsonObject) -> str:
        return str(choice["spelling"])

    def chunk_opening(self, *, may_call: bool) -> JsonObject:
        return {"spelling": ""}

    def chunk_delta(self, text: str) -> JsonObject:
        return {"spelling": text}

    def chunk_closing(self) -> JsonObject:
        return {}

    def logprobs(self, chosen: Sequence[Chosen]) -> JsonObject:
        return {"logprobs": [token.chance.logprob for token in chosen]}


@pytest.fixture
def models() -> Iterator[Models]:
    with started(demo_model_path()) as models:
        yield models


@pytest.fixture(autouse=True)
def spellings() -> Iterator[Spellings]:
    endpoint = Spellings()
    with offered(endpoint):
        yield endpoint


def line(number: int | str) -> bytes:
    body = {"model": "demo_model", "number": number, "temperature": 0}
    row = {"custom_id": f"r{number}", "method": "POST", "url": ROUTE, "body": body}
    return json.dumps(row).encode() + b"\n"


def test_rows_of_a_new_endpoint_are_run_and_written_in_its_columns(
    ground: Ground, models: Models, spellings: Spellings, tmp_path: Path
) -> None:
    lines = [line(number).decode().rstrip() for number in (7, 48213)]
    ground.plan(lines, model=models.ids[0], endpoint=ROUTE)
    finished(ground.lease(claim=claim_bulk(ground.store, models=models.ids)))

    results = ground.by_id
    assert results["r48213"].body["object"] == "spelling"
    assert results["r48213"].body["id"].startswith("spell-")
    part = tmp_path / "part.parquet"
    with ground.store.snapshot() as tx:
        segments = tx.shards.segments(ground.shard.id)
    with ShardResults(ground.objects, segments) as stored:
        file = part_encoder("parquet", PartSchema(spellings))
        pieces = [piece for window in stored.windows() for piece in file.add(Chunk(window))]
        part.write_bytes(b"".join([*pieces, *file.end()]))
    assert pq.read_table(part)["text"].to_pylist() == [number_in_words(7), number_in_words(48213)]


def test_a_batch_file_of_a_new_endpoint_is_checked_by_its_own_rule(spellings: Spellings) -> None:
    limits = FileLimits(rows_max=10, embedding_inputs_max=10, shard_bytes=1000, shard_rows=10)
    content = line(7) + line("seven")

    report = validate(split_lines([content], line_bytes_max=1000), spellings, lambda model: None, limits)

    assert [(error.line, error.code, error.param) for error in report.errors] == [
        (2, "invalid_type", "body.number")
    ]


def test_a_new_endpoint_has_its_word_on_the_command_line() -> None:
    template = template_of("spellings", "m", None, "n")

    assert template == {"model": "m", "number": "{{n}}"}
    assert endpoints.named("spellings").route == ROUTE
