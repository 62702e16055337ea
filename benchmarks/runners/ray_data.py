"""Parquet to Parquet by Ray Data, with our own encoder in its actors. Runs in Ray's environment."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OBJECT_STORE_BYTES = 1 << 30


class Embed:
    """An actor: one torch thread, as a worker of ours."""

    def __init__(self, model: str) -> None:
        import torch

        from benchmarks.recorded_encoder import RecordedEncoder

        torch.set_num_threads(1)
        self._encoder = RecordedEncoder.load(model, "float32")

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        inputs = self._encoder.tokenize_all([str(text) for text in batch["text"]])
        vectors: NDArray[np.float32] = self._encoder.encode(inputs)
        return {"id": batch["id"], "embedding": vectors}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--result", type=Path, required=True, help="CLOCK_MONOTONIC in ns of its end")
    parser.add_argument("--folder", required=True, help="for the cluster's own files")
    parser.add_argument("--actors", type=int, required=True)
    parser.add_argument("--batch-rows", type=int, required=True)
    parser.add_argument("--block-rows", type=int, required=True)
    parser.add_argument("--checkpoint", help="a folder: what is written there is not computed again")
    chosen = parser.parse_args(arguments)
    # Reading and writing are tasks that need a CPU each beside the actors', or they never run.
    ray.init(
        address="local",
        num_cpus=2 * chosen.actors,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _temp_dir=chosen.folder,
    )
    if chosen.checkpoint:
        from ray.data.checkpoint import CheckpointConfig

        config = CheckpointConfig(id_column="id", checkpoint_path=chosen.checkpoint)
        ray.data.DataContext.get_current().checkpoint_config = config
    # Small files become one block, which would leave all actors but one without work.
    rows = ray.data.read_parquet(chosen.input).repartition(target_num_rows_per_block=chosen.block_rows)
    vectors = rows.map_batches(
        Embed,
        fn_constructor_args=(chosen.model,),
        batch_size=chosen.batch_rows,
        compute=ray.data.ActorPoolStrategy(size=chosen.actors),
        num_cpus=1,
        batch_format="numpy",
    )
    vectors.write_parquet(chosen.output)
    chosen.result.write_text(json.dumps({"ended_ns": time.monotonic_ns()}))


if __name__ == "__main__":
    main()
