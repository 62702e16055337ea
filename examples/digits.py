"""An archive of handwritten digits: a folder of PNG files is classified, one row an image.

The images are real: 1,797 digits of 8 × 8 pixels, the copy of UCI's handwritten digits that comes with
scikit-learn (data/README.md). The last 397 are written to the archive; a small ViT is trained on the others.
Checked: the share of images whose label is right, beside that of the nearest mean image of each class.
"""

import csv
import gzip
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples.harness.example import Example, main
from examples.harness.outputs import rows_of
from examples.harness.service import Service
from examples.harness.training import fit, kept, save

DATA = Path(__file__).parent / "data" / "digits.csv.gz"
SIDE = 8
TRAINED_ON = 1400
STEPS = 700
BATCH = 64
# By at most a pixel each way, and half of the batches not at all.
MOVES = [(x, y) for x in range(3) for y in range(3)] + [(1, 1)] * 7
ACCURACY_MIN = 0.93


def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The images, uint8 [count, 8, 8] with 0 for paper, and what was written, int64 [count]."""
    with gzip.open(DATA, "rt") as file:
        table = np.array(list(csv.reader(file)), dtype=np.float32).astype(np.int64)
    return (table[:, :-1].reshape(-1, SIDE, SIDE) * 255 // 16).astype(np.uint8), table[:, -1]


def train(directory: Path) -> None:
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    torch.manual_seed(1)
    model = ViTForImageClassification(
        ViTConfig(
            image_size=SIDE,
            patch_size=2,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            initializer_range=0.1,  # so small a model learns faster from larger weights
            id2label={digit: str(digit) for digit in range(10)},
            label2id={str(digit): digit for digit in range(10)},
        )
    )
    images, written = digits()
    # As the processor below prepares an image: three equal channels from -1 to 1.
    pixels = torch.from_numpy(images[:TRAINED_ON]).float().div(127.5).sub(1)[:, None].expand(-1, 3, -1, -1)
    labels = torch.from_numpy(written[:TRAINED_ON])

    random = Random(1)

    def loss_of_step(_: int) -> torch.Tensor:
        at = torch.randint(TRAINED_ON, (BATCH,))
        padded = torch.nn.functional.pad(pixels[at], (1, 1, 1, 1), value=-1.0)
        x, y = random.choice(MOVES)
        moved = padded[:, :, y : y + SIDE, x : x + SIDE]
        loss: torch.Tensor = model(pixel_values=moved, labels=labels[at]).loss
        return loss

    fit(model, loss_of_step, steps=STEPS, learning_rate=2e-3)
    save(directory, model, ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}))


def models(cache: Path) -> list[Path]:
    return [kept(cache, "digits", sys.modules[__name__], train)]


def check(service: Service, folder: Path) -> list[str]:
    images, written = digits()
    archive = folder / "archive"
    for number in range(TRAINED_ON, len(images)):
        page = archive / f"page={number // 50}"
        page.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[number]).save(page / f"{number}.png")
    service.run(
        archive,
        folder / "labels",
        *("--endpoint", "classifications", "--model", "digits", "--input-column", "image"),
        *("--format", "parquet"),
    )
    count = len(images) - TRAINED_ON
    rows: dict[int, dict[str, Any]] = {
        int(Path(custom_id).stem): row for custom_id, row in rows_of(folder / "labels", rows=count).items()
    }
    right = sum(rows[number]["label"] == str(written[number]) for number in range(TRAINED_ON, len(images)))
    print(f"accuracy {right / count:.1%} on {count} images; by the nearest mean image {_nearest_mean():.1%}")
    if right / count < ACCURACY_MIN:
        return [f"accuracy {right / count:.1%} is below {ACCURACY_MIN:.0%}"]
    return []


def _nearest_mean() -> float:
    images, written = digits()
    flat = images.reshape(len(images), -1).astype(np.float32)
    means = np.stack([flat[:TRAINED_ON][written[:TRAINED_ON] == digit].mean(axis=0) for digit in range(10)])
    distances = ((flat[TRAINED_ON:, None] - means) ** 2).sum(axis=2)
    return float((distances.argmin(axis=1) == written[TRAINED_ON:]).mean())


EXAMPLE = Example("digits", "an archive of handwritten digits: classify a folder of images", models, check)

if __name__ == "__main__":
    main(EXAMPLE)
