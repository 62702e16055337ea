"""Our encoder as the comparison of embeddings runs it: vectors, and what it counted."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.runners.embedding import MAX_LENGTH, EmbeddingRun
from tests.unit.workers.engine.encoders.tiny_encoders import save_checkpoint, tiny_bert


def test_ours_is_run_and_says_what_it_counted_of_the_texts_alone(tmp_path: Path) -> None:
    texts, result = tmp_path / "texts.json", tmp_path / "result.json"
    texts.write_text(json.dumps([f"text {number}" for number in range(40)]))
    model = save_checkpoint(tmp_path / "model", tiny_bert(MAX_LENGTH))
    command = [sys.executable, "-m", "benchmarks.runners.embedding", "--engine", "nightshift"]
    command += ["--model", str(model), "--texts", str(texts), "--dtype", "float32", "--threads", "1"]

    subprocess.run([*command, "--result", str(result)], check=True, capture_output=True)

    run = EmbeddingRun.read(result)
    assert run.counts["tokens_computed"] == 40 * 4, "two words and what begins and ends a text"
    assert len(run.first_vectors[0]) == tiny_bert().config.hidden_size
