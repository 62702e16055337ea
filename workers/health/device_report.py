"""Prints, as one JSON object, the device a worker would use here and whether its models fit.

    python -m workers.health.device_report        # with a worker's settings

`nightshift doctor` runs it, since it imports torch. Nothing is loaded, and little of the device is used.
"""

import json
import os
import sys
from typing import Any

from nightshift.errors import NightshiftError
from nightshift.process.settings import WorkerSettings


def report(settings: WorkerSettings) -> dict[str, Any]:
    """`problem`: why a worker would not start here; else None. Sizes are in bytes."""
    from workers.serving.loading import estimate

    report: dict[str, Any] = {"cuda": cuda(), "device": None, "models": [], "problem": None}
    try:
        estimated = estimate(settings)
        report["device"] = estimated.device.type
        report["memory_bytes"] = estimated.memory.in_all
        report["models"] = [
            {
                "id": need.model_id,
                "weights_bytes": need.footprint.weights,
                "least_bytes": need.footprint.least,
            }
            for need in (*estimated.pinned, *estimated.lazy)
        ]
        estimated.check()
    except NightshiftError as error:
        report["problem"] = error.message
    return report


def cuda() -> dict[str, Any]:
    """The CUDA devices that torch sees, and why it sees none."""
    import torch

    said: dict[str, Any] = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "devices": []}
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        for place in range(torch.cuda.device_count()):
            free_bytes, total_bytes = torch.cuda.mem_get_info(place)
            name = torch.cuda.get_device_name(place)
            said["devices"].append({"name": name, "free_bytes": free_bytes, "total_bytes": total_bytes})
    except (RuntimeError, AssertionError) as error:  # the second is how torch says it was built without CUDA
        said["why_none"] = str(error).splitlines()[0]
    return said


def main() -> None:
    settings = WorkerSettings()
    if not settings.model_downloads:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's client is imported
    json.dump(report(settings), sys.stdout)


if __name__ == "__main__":
    main()
