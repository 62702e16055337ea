"""An embedder in a real service: online, and as rows; what was cut is counted in the manifest."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.service import Service, run
from tests.unit.engine.tiny.encoders import TOLERANCE, WORDS, mean_and_normalize, reference

LONG = " ".join(WORDS * 3)
CUT_IDS = [2, 54, 55, *range(4, 16), 3]  # of LONG behind the prompt, to 16 tokens


def expected(folder: Path, *inputs: list[int]) -> list[list[float]]:
    whole = reference(folder / "embedder", inputs, mean_and_normalize)[:, :8]
    return (whole / np.linalg.norm(whole, axis=1, keepdims=True)).tolist()  # type: ignore[no-any-return]


ASKED = {"model": "embedder", "dimensions": 8, "prompt_name": "query", "truncate_prompt_tokens": 16}


def test_a_request_names_a_size_a_prompt_and_a_length(service: Service, folder: Path) -> None:
    with service.http() as http:
        answer = http.post("/embeddings", json=ASKED | {"input": ["w1", LONG]}).json()
        wrong = [
            http.post("/embeddings", json=ASKED | {"input": "w1", field: value})
            for field, value in (
                *(("dimensions", 0), ("dimensions", 33), ("prompt_name", "title")),
                *(("truncate_prompt_tokens", 65), ("input_type", "query")),
            )
        ]
        too_long = http.post("/embeddings", json={"model": "embedder", "input": LONG})

    [short, cut] = expected(folder, [2, 54, 55, 5, 3], CUT_IDS)
    assert answer["data"][0]["embedding"] == pytest.approx(short, abs=TOLERANCE)
    assert answer["data"][1]["embedding"] == pytest.approx(cut, abs=TOLERANCE)
    assert answer["usage"] == {"prompt_tokens": 21, "total_tokens": 21, "truncated_inputs": 1}
    assert [answer.status_code for answer in (*wrong, too_long)] == [400] * 6
    params = [answer.json()["error"]["param"] for answer in wrong[:4]]
    assert params == ["dimensions", "dimensions", "prompt_name", "truncate_prompt_tokens"]


def test_rows_become_short_vectors_and_what_was_cut_is_counted(service: Service, folder: Path) -> None:
    pq.write_table(pa.table({"text": ["w1", LONG, "w2", LONG]}), folder / "texts.parquet")
    (folder / "request.json").write_text(json.dumps(ASKED | {"input": "{{text}}"}))

    how = ("--endpoint", "embeddings", "--template", "request.json", "--format", "parquet")
    ended = run(service, folder, "texts.parquet", "--output", "of-embedder", *how)

    assert "4 rows succeeded" in ended.stdout, ended.stdout + ended.stderr
    table = pa.concat_tables(pq.read_table(path) for path in sorted((folder / "of-embedder").glob("part-*")))
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 8)
    assert sorted(table["truncated_inputs"].to_pylist()) == [0, 0, 1, 1]
    [cut] = expected(folder, CUT_IDS)
    for row in table.to_pylist():
        if row["truncated_inputs"]:
            assert row["embedding"] == pytest.approx(cut, abs=TOLERANCE)
    manifest = json.loads((folder / "of-embedder" / "_manifest.json").read_text())
    assert manifest["truncated"] == {"rows": 2}
    assert sum(part.get("truncated", 0) for part in manifest["parts"]) == 2
