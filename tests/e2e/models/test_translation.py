"""An encoder-decoder in a real service: online, streamed, in a batch file and as rows, and after a crash."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift_engine import SamplingParams
from tests.e2e.service import (
    Service,
    answers_of,
    kill_worker_in_the_middle,
    nightshift,
    wait_until_ended,
)
from tests.unit.engine.tiny.decoders import EOS, byte_tokenizer, complete
from tests.unit.engine.tiny.seq2seq import (
    LANGUAGES,
    START,
    generate,
    make_seq2seq_engine,
    translation,
)

TEXTS = ["good morning", "a", "the night shift begins", "one two three"]
ASKED: dict[str, Any] = {"model": "m2m", "max_tokens": 12, "target_language": "fr_XX"}


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, str]:
    """The outputs of `generate` for each text, without the language's token."""
    tokenizer = byte_tokenizer()
    sources = [tokenizer(text)["input_ids"] for text in TEXTS]
    outputs = generate(folder / "m2m", sources, 13, eos_token_id=EOS, forced_bos_token_id=LANGUAGES["fr_XX"])
    texts = {
        text: tokenizer.decode(ids[1:], skip_special_tokens=True)
        for text, ids in zip(TEXTS, outputs, strict=True)
    }
    assert len({*texts.values()}) == len(TEXTS), "the outputs do not depend on the sources"
    return texts


def test_a_translation_is_that_of_generate_whole_and_streamed(
    service: Service, expected: dict[str, str]
) -> None:
    extra = {"target_language": "fr_XX"}
    with service.openai() as client:
        whole = [
            client.completions.create(model="m2m", prompt=text, max_tokens=12, extra_body=extra)
            for text in TEXTS
        ]
        stream = client.completions.create(
            model="m2m", prompt=TEXTS[0], max_tokens=12, extra_body=extra, stream=True
        )
        parts = [chunk.choices[0].text for chunk in stream if chunk.choices]

    assert [completion.choices[0].text for completion in whole] == [expected[text] for text in TEXTS]
    assert "".join(parts) == expected[TEXTS[0]]


def test_a_form_of_the_output_is_kept_to(service: Service) -> None:
    """A grammar holds as in a decoder, and log-probabilities and choices are there."""
    choices = {"structured_outputs": {"choice": ["yes", "no"]}, "n": 2, "logprobs": 1}
    with service.http() as http:
        answer = http.post("/completions", json=ASKED | {"prompt": TEXTS[0]} | choices).json()

    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    for choice in answer["choices"]:
        assert choice["text"] in ("yes", "no")
        assert len(choice["logprobs"]["token_logprobs"]) >= len(choice["text"])


def test_a_batch_file_is_translated(service: Service, expected: dict[str, str]) -> None:
    answers = answers_of(service, "/v1/completions", {text: ASKED | {"prompt": text} for text in TEXTS})

    assert {text: answer["choices"][0]["text"] for text, answer in answers.items()} == expected


@pytest.mark.exhaustive  # tests/faults kills workers
def test_rows_of_a_template_outlive_a_killed_worker(service: Service, folder: Path) -> None:
    """Killed once rows have been counted, with others in the engine."""
    rows = [f"{text} {number}" for number in range(75) for text in TEXTS]
    pq.write_table(pa.table({"text": rows}), folder / "translated.parquet")
    (folder / "request.json").write_text(json.dumps(ASKED | {"prompt": "{{text}}"}))
    submitted = nightshift(
        service,
        *("run", "translated.parquet", "--output", "translated", "--endpoint", "completions"),
        *("--template", "request.json", "--format", "parquet"),
        cwd=folder,
    )
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    job_id = next(word for word in submitted.stdout.split() if word.startswith("job_"))

    done = kill_worker_in_the_middle(service, job_id)
    wait_until_ended(service, job_id)
    with service.client() as client:
        ended = client.get_job(job_id)

    assert 0 < done < len(rows), "it was killed before or after its work"
    assert ended.state == "succeeded", service.logs()
    output = pa.concat_tables(pq.read_table(path) for path in sorted((folder / "translated").glob("part-*")))
    tokenizer, start = byte_tokenizer(), (START, LANGUAGES["fr_XX"])
    sampling = SamplingParams(temperature=0, max_tokens=12)
    alone = complete(
        make_seq2seq_engine(folder / "m2m"),
        *(translation(text, tokenizer(text)["input_ids"], start=start, sampling=sampling) for text in rows),
    )
    assert Counter(output["text"].to_pylist()) == Counter(translated.text for translated in alone)
