"""Files of images to their scores by one engine, as a process of its own, which reads and decodes them within
the time.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import cpu_times

SCORES_KEPT = 8  # images
WARM_UP = 16

Classify = Callable[[Sequence[Path]], Sequence[Any]]
"""Scores `[labels]` of each image, softmax."""


@dataclass
class ImageRun:
    images: int
    seconds: float
    dtype: str
    other_cpu_share: float
    first_scores: list[list[float]]

    @classmethod
    def read(cls, path: Path) -> ImageRun:
        return cls(**json.loads(path.read_text()))


def nightshift(chosen: argparse.Namespace) -> Classify:
    """The worker's own parts: its server of images with its threads that read and decode, and its engine."""
    from workers.engine.execution.openmp import limit_spinning

    limit_spinning(os.environ)  # as a worker does
    import torch

    from nightshift import endpoints
    from nightshift.endpoints.results import Identity
    from nightshift.jobs.priorities import PriorityClass
    from nightshift.objectstore import Locations, open_store
    from nightshift.objectstore.sources import Sources
    from nightshift.settings import ImageSettings, WorkerSettings
    from workers.serving.images.fetching import ReferencedFiles, egress_of
    from workers.serving.loading import load_models
    from workers.serving.model_server import Busy, Inference

    torch.set_num_threads(chosen.threads)
    settings = WorkerSettings(device="cpu", dtype=chosen.dtype, models=(chosen.model,))
    [server] = load_models(settings, _raise)
    folder = chosen.images.parent
    sources = Sources(open_store(f"file://{folder}/own"), Locations(file_roots=[f"bench={folder}"]))
    server.use_files(ReferencedFiles(sources, egress_of(ImageSettings())))
    server.start()
    endpoint = endpoints.get("/v1/classifications")

    def classify(paths: Sequence[Path]) -> list[Any]:
        results = _Results()
        for number, path in enumerate(paths):
            request = endpoint.parse({"model": server.model.id, "input": f"file://{path}"})
            inference = Inference(
                f"{number}", endpoint, request, Identity(f"job/0/{number}", 0), PriorityClass.BACKGROUND,
                results.listener(number), group="job", tenant_id="bench",
            )  # fmt: skip
            while True:
                ended = results.count
                try:
                    server.submit(inference)
                    break
                except Busy:
                    results.wait_for(ended + 1)
        results.wait_for(len(paths))
        return [_scores(endpoint, results.found[number].result) for number in range(len(paths))]

    return classify


class _Results:
    """What the engine's thread has told."""

    def __init__(self) -> None:
        self.found: dict[int, Any] = {}
        self._changed = threading.Condition()

    @property
    def count(self) -> int:
        return len(self.found)

    def listener(self, number: int) -> Callable[[Any], None]:
        def listen(progress: Any) -> None:
            with self._changed:
                self.found[number] = progress
                self._changed.notify()

        return listen

    def wait_for(self, count: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self.found) >= count)


def _scores(endpoint: Any, result: Any) -> list[float]:
    from nightshift.endpoints.results import Identity, Origin
    from nightshift.jobs.priorities import PriorityClass

    if result is None or result.status_code != 200:
        raise RuntimeError(f"an image failed: {result}")
    body = endpoint.body_of(Origin(Identity("job/0/0", 0), "m", PriorityClass.BACKGROUND), result)
    [one] = body["data"]
    return _in_order({each["label"]: each["score"] for each in one["scores"]})


def transformers_pipeline(chosen: argparse.Namespace) -> Classify:
    import torch
    import transformers

    torch.set_num_threads(chosen.threads)
    processor = transformers.AutoImageProcessor.from_pretrained(chosen.model, backend="pil")
    pipeline = transformers.pipeline(
        "image-classification",
        model=chosen.model,
        image_processor=processor,
        dtype=getattr(torch, chosen.dtype),
        device="cpu",
    )
    labels = len(pipeline.model.config.id2label or ())

    def classify(paths: Sequence[Path]) -> list[Any]:
        answers = pipeline(
            list(map(str, paths)), batch_size=chosen.batch_size, num_workers=chosen.loaders, top_k=labels
        )
        return [_in_order({each["label"]: each["score"] for each in answer}) for answer in answers]

    return classify


def _in_order(scores: dict[str, float]) -> list[float]:
    """By the number in `LABEL_12`."""
    return [scores[label] for label in sorted(scores, key=lambda label: int(label.rpartition("_")[2]))]


def _raise(error: BaseException) -> None:
    raise error


ENGINES: dict[str, Callable[[argparse.Namespace], Classify]] = {
    "nightshift": nightshift,
    "transformers": transformers_pipeline,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--images", type=Path, required=True, help="a file with their paths")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--result", type=Path, required=True)
    chosen = parser.parse_args()
    paths = [Path(line) for line in chosen.images.read_text().splitlines()]
    classify = ENGINES[chosen.engine](chosen)
    classify(paths[-WARM_UP:])
    cpu = cpu_times()
    started = time.perf_counter()
    scores = classify(paths)
    seconds = time.perf_counter() - started
    share = cpu_times().other_share_since(cpu)
    first = [[float(x) for x in each] for each in scores[:SCORES_KEPT]]
    chosen.result.write_text(json.dumps(asdict(ImageRun(len(paths), seconds, chosen.dtype, share, first))))


if __name__ == "__main__":
    main()
