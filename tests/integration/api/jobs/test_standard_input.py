"""`nightshift run -` against the real API: standard input is uploaded in parts, and becomes a job's input."""

import io
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pyarrow as pa
import pytest

from nightshift.cli.bulk import standard_input
from nightshift.cli.main import main
from nightshift.client import http_client
from nightshift.process.settings import ApiSettings
from tests.integration.api.fake_worker import CHAT_MODEL
from tests.unit.nightshift.bulk.rows.columns.tables import parquet, stream

pytestmark = pytest.mark.usefixtures("forked_previews")

LINES = b'{"text": "a"}\n{"text": "b"}\n'
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(
    base_url: str,
    make_key: Callable[[], str],
    bulk: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Runs the command over these bytes. Returns its exit code and what it printed."""
    monkeypatch.setenv("NIGHTSHIFT_BASE_URL", base_url)
    monkeypatch.setenv("NIGHTSHIFT_API_KEY", make_key())
    monkeypatch.setattr(http_client, "PART_BYTES", 10)
    column = ("--endpoint", "completions", "--model", CHAT_MODEL, "--input-column", "text")

    def command(content: bytes, *words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        with pytest.raises(SystemExit) as ended:
            main(["run", "-", "--output", bulk["output"], *column, *words])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), " ".join(f"{printed.out}{printed.err}".replace("│", " ").split())

    return command


def files(http: httpx.Client) -> list[dict[str, Any]]:
    return list(http.get("/v1/files").json()["data"])


@pytest.mark.parametrize("held_bytes_max", [standard_input.HELD_BYTES_MAX, 5])
def test_it_becomes_a_file_of_its_bytes_that_expires(
    run: Run, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, held_bytes_max: int, worker: object
) -> None:
    monkeypatch.setattr(standard_input, "HELD_BYTES_MAX", held_bytes_max)

    code, job_id = run(LINES)

    assert code == 0
    (file,) = files(http)
    assert http.get(f"/v1/jobs/{job_id}").json()["input"] == file["id"]
    assert http.get(f"/v1/files/{file['id']}/content").content == LINES
    assert (file["filename"], file["expires_at"] - file["created_at"]) == ("stdin.jsonl", 30 * 86400)


@pytest.mark.parametrize(
    ("content", "words", "name"),
    [
        (parquet(pa.table({"text": ["a"]})), (), "stdin.parquet"),
        (stream(pa.table({"text": ["a"]})), (), "stdin.arrow"),
        (b"text,n\na,1\n", ("--input-format", "csv"), "stdin.csv"),
    ],
)
def test_its_format_is_told_or_shown_by_its_first_bytes(
    run: Run, http: httpx.Client, worker: object, content: bytes, words: tuple[str, ...], name: str
) -> None:
    assert run(content, *words)[0] == 0

    assert [file["filename"] for file in files(http)] == [name]


def test_a_dry_run_reads_it_and_leaves_nothing(run: Run, http: httpx.Client, worker: object) -> None:
    code, said = run(b"text,n\na,1\n", "--input-format", "csv", "--dry-run")

    assert code == 0
    assert "1 object of 11 bytes (csv with ',' between values)" in said
    assert "1 row checked, 0 with a problem" in said
    assert files(http) == []


def test_text_that_is_no_json_is_told_how_to_say_what_it_is(
    run: Run, http: httpx.Client, worker: object
) -> None:
    code, said = run(b"text,n\na,1\n", "--dry-run")

    assert code == 4
    assert "it may be CSV: give the object a name that ends in .csv or .tsv, or say what it is by" in said


def test_a_second_start_of_a_named_run_is_the_same_job_and_uploads_nothing(
    run: Run, http: httpx.Client, worker: object
) -> None:
    named = ("--name", "nightly", "--date", "2026-11-28")
    _, first = run(LINES, *named)
    before = files(http)

    code, said = run(LINES, *named)

    assert code == 0
    assert said.startswith(first)
    assert f"{first} was submitted as --name nightly --date 2026-11-28" in said
    assert files(http) == before


def test_a_refused_job_leaves_no_file(run: Run, http: httpx.Client) -> None:
    code, said = run(LINES)  # no worker serves the model

    assert code == 1
    assert CHAT_MODEL in said
    assert files(http) == []


def test_nothing_at_all_is_a_mistake(run: Run, http: httpx.Client, worker: object) -> None:
    code, said = run(b"")

    assert code == 2
    assert "standard input has no bytes" in said


def test_more_than_the_service_accepts_is_refused_by_its_limit(
    run: Run, http: httpx.Client, worker: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = ApiSettings().upload_bytes_max

    monkeypatch.setattr(standard_input, "_copied", lambda source, file: file.write(b"x") and limit + 1)

    code, said = run(LINES)

    assert code == 1
    assert f"Invalid 'bytes': at most {limit} are accepted, but got {limit + 1}" in said
