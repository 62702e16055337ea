"""Images classified by our bare encoder engine and by transformers' pipeline: JPEGs of several sizes.

Both have the same checkpoint (random weights), dtype, threads and files, and read and decode them within the
time. The pipeline has its Pillow processor, and runs at its best batch size and number of loaders. Ours runs
before and after it in every round, and a ratio is to those two.

    python -m benchmarks.images --images 256 --shape base --dtype float32
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

import numpy as np

from benchmarks.environments import BENCH_DIRECTORY
from benchmarks.launch import LOGS_DIRECTORY, RunFailedError, run_process
from benchmarks.report import others, report, spread
from benchmarks.runners.images import ImageRun

SHAPES: Final = {
    "tiny": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "small": {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
}
"""Of ViT with 12 layers, patches of 16 and images of 224 x 224."""
SIDES: Final = (240, 320, 480, 640, 800, 1024, 1600)
"""Of which a JPEG's longer one is drawn; the other is 9/16 to 1 of it."""
SEED: Final = 5
WAYS: Final = ((16, 0), (8, 0), (1, 0), (8, 1), (16, 1))
"""Of the pipeline: images of a batch, processes that load. The fastest is compared."""
DIFFERENCE_MAX: Final = {"float32": 1e-3, "bfloat16": 5e-2}
"""Of an image's scores from ours; beyond it, one of them computes something else."""
TRIAL_IMAGES: Final = 48
RUN_TIMEOUT_S: Final = 1800.0
OURS: Final = "nightshift"
PIPELINE: Final = "transformers"


def sizes(count: int, seed: int = SEED) -> list[tuple[int, int]]:
    """Widths and heights of so many images."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        longer = draw.choice(SIDES)
        shorter = round(longer * draw.uniform(9 / 16, 1))
        found.append((longer, shorter) if draw.random() < 0.7 else (shorter, longer))
    return found


def write_images(folder: Path, count: int) -> list[Path]:
    """JPEGs with structure on every scale, as photos have: noise alone takes longer to decode."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, (width, height) in enumerate(sizes(count)):
        path = folder / f"{number:05}-{width}x{height}.jpg"
        paths.append(path)
        if path.exists():
            continue
        values = np.random.default_rng(number).integers(0, 256, (height // 16, width // 16, 3), np.uint8)
        image = Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)
        noise = np.random.default_rng(number + 1).integers(-8, 9, (height, width, 3), np.int16)
        mixed = np.clip(np.asarray(image).astype(np.int16) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(mixed).save(path, "JPEG", quality=85)
    return paths


def write_checkpoint(folder: Path, shape: str) -> Path:
    import torch
    from transformers import AutoConfig, AutoModelForImageClassification, ViTImageProcessorPil

    if not (folder / "model.safetensors").exists():
        torch.manual_seed(SEED)
        config = AutoConfig.for_model("vit", **SHAPES[shape], num_labels=1000)
        AutoModelForImageClassification.from_config(config).save_pretrained(folder)
        ViTImageProcessorPil().save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Setting:
    checkpoint: Path
    dtype: str
    threads: int
    folder: Path

    def run(self, engine: str, images: Sequence[Path], way: tuple[int, int] = (0, 0)) -> ImageRun:
        """Raises RunFailedError."""
        listed, result = self.folder / "images.txt", self.folder / f"{engine}.json"
        listed.write_text("\n".join(map(str, images)))
        command = [sys.executable, "-m", "benchmarks.runners.images", "--engine", engine]
        command += ["--model", str(self.checkpoint), "--images", str(listed), "--dtype", self.dtype]
        command += ["--threads", str(self.threads), "--batch-size", str(way[0]), "--loaders", str(way[1])]
        command += ["--result", str(result)]
        variables = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1"}
        run_process(command, variables, LOGS_DIRECTORY / f"images-{engine}.log", RUN_TIMEOUT_S)
        return ImageRun.read(result)


def compared(way: tuple[int, int], rounds: Sequence[tuple[ImageRun, ImageRun, ImageRun]]) -> dict[str, Any]:
    """A row of the table, of rounds of ours, theirs, ours. Raises RunFailedError where scores differ."""
    before, theirs, _ = rounds[0]
    difference = float(np.abs(np.subtract(before.first_scores, theirs.first_scores)).max())
    if not difference <= DIFFERENCE_MAX[before.dtype]:
        raise RunFailedError(f"its scores differ from ours by {difference:.2g}")
    ratios = [one.seconds / mean((first.seconds, last.seconds)) for first, one, last in rounds]
    ours = [run.images / run.seconds for first, _, last in rounds for run in (first, last)]
    return {
        "engine": f"{PIPELINE}, batches of {way[0]}, {way[1]} loaders",
        "images/s": spread([one.images / one.seconds for _, one, _ in rounds]),
        "ours, images/s": spread(ours),
        "ours / it": round(median(ratios), 3),
        "rounds": spread([round(ratio, 3) for ratio in ratios]),
        "difference": f"{difference:.1e}",
        "others' CPU": others(max(run.other_cpu_share for each in rounds for run in each)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--shape", choices=SHAPES, default="base")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--ways",
        type=int,
        choices=range(1, len(WAYS) + 1),
        default=len(WAYS),
        help="how many of the pipeline's settings are tried, the last ones first left out",
    )
    chosen = parser.parse_args()
    folder = BENCH_DIRECTORY / "images"
    LOGS_DIRECTORY.mkdir(parents=True, exist_ok=True)
    checkpoint = write_checkpoint(folder / f"vit-{chosen.shape}", chosen.shape)
    images = write_images(folder / "jpeg", chosen.images)
    setting = Setting(checkpoint, chosen.dtype, chosen.threads, folder)
    trial = images[:TRIAL_IMAGES]
    ways = WAYS[: chosen.ways]
    way = min(ways, key=lambda each: setting.run(PIPELINE, trial, each).seconds) if len(ways) > 1 else ways[0]
    rounds = [
        (setting.run(OURS, images), setting.run(PIPELINE, images, way), setting.run(OURS, images))
        for _ in range(chosen.rounds)
    ]
    note = f"ViT-{chosen.shape}, {len(images)} JPEGs, {chosen.threads} threads, {os.cpu_count()} cores"
    report(f"images-{chosen.shape}-{chosen.dtype}", [compared(way, rounds)], [note])


if __name__ == "__main__":
    main()
