"""The device of a worker, beside a stand-in for NVIDIA's library with its binary interface."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from workers.health.device import Gpu, device_reader

NVML = r"""
#include <string.h>
typedef struct { unsigned int gpu; unsigned int memory; } nvmlUtilization_t;
typedef struct opaque *nvmlDevice_t;
static int device;
int nvmlInit_v2(void) { return %(init)d; }
int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *found) {
    if (strcmp(uuid, "GPU-1234")) return 6;
    *found = (nvmlDevice_t) &device;
    return 0;
}
int nvmlDeviceGetUtilizationRates(nvmlDevice_t found, nvmlUtilization_t *rates) {
    if (found != (nvmlDevice_t) &device) return 2;
    rates->gpu = 37;
    rates->memory = 12;
    return %(rates)d;
}
"""


@pytest.fixture
def nvml(tmp_path: Path) -> Callable[..., str]:
    """Builds the library, whose calls answer with these statuses."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")

    def build(init: int = 0, rates: int = 0) -> str:
        library = tmp_path / f"libnvidia-ml-{init}-{rates}.so.1"
        source = tmp_path / "nvml.c"
        source.write_text(NVML % {"init": init, "rates": rates})
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        return str(library)

    return build


def test_the_driver_says_how_busy_a_gpu_is(nvml: Callable[..., str]) -> None:
    gpu = Gpu.find("GPU-1234", nvml())
    assert gpu is not None
    assert gpu.utilisation == 0.37

    gpu = Gpu.find("GPU-1234", nvml(rates=3))
    assert gpu is not None
    assert gpu.utilisation is None, "the driver does not say"


def test_without_a_driver_or_the_device_there_is_no_gpu(nvml: Callable[..., str], tmp_path: Path) -> None:
    assert Gpu.find("GPU-1234", str(tmp_path / "nowhere.so")) is None
    assert Gpu.find("GPU-1234", "libc.so.6") is None
    assert Gpu.find("GPU-other", nvml()) is None
    assert Gpu.find("GPU-1234", nvml(init=9)) is None


def test_of_a_cpu_its_memory_is_told_and_no_utilisation() -> None:
    assert torch.__version__  # it is loaded
    figures = device_reader("cpu")()

    assert figures is not None
    assert (figures.kind, figures.utilisation) == ("cpu", None)
    assert figures.memory_bytes is not None
    assert figures.memory_used_bytes is not None
    assert 0 < figures.memory_used_bytes < figures.memory_bytes
