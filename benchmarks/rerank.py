"""Reranking by our bare encoder engine and by OpenVINO GenAI's TextRerankPipeline.

Documents have lognormal lengths, 8 to 512 tokens. Both have the same weights, dtype, threads, queries and
documents, and tokenize them themselves; the peer runs at its best batch size. Ours runs before and after it,
and a ratio is to those two.

    python -m benchmarks.rerank --queries 16 --shape minilm
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

from benchmarks import conversions
from benchmarks.classifiers import SHAPES, Query, ensure_classifier, make_queries
from benchmarks.embeddings import make_texts
from benchmarks.environments import BENCH_DIRECTORY, ENVIRONMENTS, PeerUnavailableError, ensure
from benchmarks.launch import LOGS_DIRECTORY, RunFailedError, run_process
from benchmarks.report import Cell, others, report
from benchmarks.runners.rerank import RerankRun

DOCUMENTS: Final = 32
"""Of each query."""
SEED: Final = 17
OURS, PEER = "nightshift", "openvino"
BATCH_SIZES: Final = (1, 4, 8, DOCUMENTS)
TRIAL_QUERIES: Final = 4
"""With which the best batch size is found."""
DIFFERENCE_MAX: Final = {"float32": 1e-3, "bfloat16": 5e-2}
"""Of a score between 0 and 1 from ours; beyond it, an engine computes something else."""
RUN_TIMEOUT_S: Final = 900.0


@dataclass(frozen=True)
class Setting:
    shape: str
    dtype: str
    threads: int
    folder: Path

    def run(self, engine: str, queries: Sequence[Query], batch_size: int = DOCUMENTS) -> RerankRun:
        """Raises PeerUnavailableError or RunFailedError."""
        python = sys.executable if engine == OURS else str(ensure(ENVIRONMENTS[engine]))
        model = str(for_openvino(self.shape) if engine == PEER else ensure_classifier(self.shape, 1))
        queries_path, result = self.folder / f"queries-{len(queries)}.json", self.folder / f"{engine}.json"
        queries_path.write_text(json.dumps([query.as_json() for query in queries]))
        command = [python, "-m", "benchmarks.runners.rerank", "--engine", engine, "--model", model]
        command += ["--queries", str(queries_path), "--dtype", self.dtype, "--threads", str(self.threads)]
        command += ["--batch-size", str(batch_size), "--result", str(result)]
        variables = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1"}
        if engine != OURS:
            variables.pop("PYTHONPATH", None)
        run_process(command, variables, LOGS_DIRECTORY / f"rerank-{engine}.log", RUN_TIMEOUT_S)
        return RerankRun.read(result)


def for_openvino(shape: str) -> Path:
    """OpenVINO's IR of the reranker, float32. Raises PeerUnavailableError."""
    tool = str(ENVIRONMENTS[PEER].python().with_name("optimum-cli"))
    command = [tool, "export", "openvino", "--model", str(ensure_classifier(shape, 1))]
    command += ["--task", "text-classification", "--library", "transformers", "--weight-format", "fp32"]
    return conversions.converted(f"{shape}-openvino-rerank", command)


def largest_difference(one: RerankRun, other: RerankRun) -> float:
    pairs = zip(one.scores, other.scores, strict=True)
    return max(abs(a - b) for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True))


def compare(setting: Setting, queries: Sequence[Query]) -> dict[str, Cell]:
    """The peer at its best batch size, between two runs of ours. Raises RunFailedError."""
    trial = queries[:TRIAL_QUERIES]
    best = min(BATCH_SIZES, key=lambda size: setting.run(PEER, trial, size).seconds)
    before = setting.run(OURS, queries)
    theirs = setting.run(PEER, queries, best)
    after = setting.run(OURS, queries)
    if (difference := largest_difference(before, theirs)) > DIFFERENCE_MAX[setting.dtype]:
        raise RunFailedError(f"its scores differ from ours by {difference:.2g}")
    ours_s, documents = mean((before.seconds, after.seconds)), sum(len(each.documents) for each in queries)
    return {
        "engine": f"TextRerankPipeline, batches of {best}",
        "documents/s": documents / theirs.seconds,
        "ours, documents/s": documents / ours_s,
        "ours / it": round(theirs.seconds / ours_s, 3),
        "difference": f"{difference:.1e}",
        "others' CPU": others(max(run.other_cpu_share for run in (before, theirs, after))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--shape", choices=SHAPES, default="minilm")
    parser.add_argument("--dtype", choices=DIFFERENCE_MAX, default="float32")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    folder = BENCH_DIRECTORY / "rerank"
    for directory in (folder, LOGS_DIRECTORY):
        directory.mkdir(parents=True, exist_ok=True)
    setting = Setting(chosen.shape, chosen.dtype, chosen.threads, folder)
    queries = make_queries(make_texts(chosen.queries * DOCUMENTS), DOCUMENTS, SEED)
    rows, notes = [], [f"{chosen.shape}, {chosen.queries} queries, {DOCUMENTS} documents each"]
    try:
        rows.append(compare(setting, queries))
    except (PeerUnavailableError, RunFailedError) as error:
        notes.append(f"{PEER}: {error}")
    report(f"rerank-{chosen.shape}-{chosen.dtype}", rows, notes)


if __name__ == "__main__":
    main()
