"""Kernels are built once per machine, survive what lies in their cache, and can be done without."""

import ctypes
import logging
import os
import platform
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from nightshift_engine.kernels.native import build
from tests.unit.engine.tiny.cases import mostly_exhaustive

TWICE = """
#include <omp.h>
extern "C" float twice(float x) { return 2.0f * x; }
extern "C" int threads() {
    int count = 0;
    #pragma omp parallel num_threads(2)
    #pragma omp atomic
    count++;
    return count;
}
"""
LOAD_IN_NEW_PROCESS = """
import sys
from pathlib import Path
from nightshift_engine.kernels.native import build
build.SOURCES = Path(sys.argv[1])
print(build.load_kernels("twice") is not None)
"""


SOURCES = build.SOURCES
KERNELS = sorted(SOURCES.rglob("*.cpp"))
INSTRUCTIONS = ("x86-64-v3", "x86-64-v4", "sapphirerapids")


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small kernel, and an empty cache."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "twice.cpp").write_text(TWICE)
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setattr(build, "_loaded", {})
    monkeypatch.setenv("NIGHTSHIFT_KERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NIGHTSHIFT_NATIVE_KERNELS", raising=False)
    return folder


def load() -> ctypes.CDLL:
    library = build.load_kernels("twice")
    assert library is not None
    library.twice.restype, library.twice.argtypes = ctypes.c_float, [ctypes.c_float]
    return library


def cached(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").iterdir())


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets earlier loads, as a new process would."""
    monkeypatch.setattr(build, "_loaded", {})


def test_a_kernel_is_built_once_and_then_comes_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load().twice(21.0) == 42.0
    [library] = cached(tmp_path)
    built_at = library.stat().st_mtime_ns

    forget(monkeypatch)
    assert load().twice(21.0) == 42.0

    assert cached(tmp_path) == [library]
    assert library.stat().st_mtime_ns == built_at


def test_another_source_or_other_flags_make_another_library(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    assert build.load_kernels("twice", "-DOTHER") is not None
    (sources / "twice.cpp").write_text(TWICE.replace("2.0f", "3.0f"))
    forget(monkeypatch)

    assert load().twice(1.0) == 3.0
    assert len(cached(tmp_path)) == 3


def test_another_environment_with_the_same_runtime_has_the_same_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library names the runtime as it is called, and not its folder."""
    load()
    runtime = build._openmp_runtime()
    elsewhere = tmp_path / "elsewhere" / runtime.name
    elsewhere.parent.mkdir()
    elsewhere.symlink_to(runtime)
    monkeypatch.setattr(build, "_openmp_runtime", lambda: elsewhere)
    forget(monkeypatch)

    assert load().twice(21.0) == 42.0
    [library] = cached(tmp_path)
    assert str(runtime.parent).encode() not in library.read_bytes()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small kernel in a cache, by another process: what this one has loaded, it would not load again."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "twice.cpp").write_text(TWICE)
    environment = os.environ | {"NIGHTSHIFT_KERNEL_CACHE": str(folder / "cache")}
    command = [sys.executable, "-c", LOAD_IN_NEW_PROCESS, str(folder)]
    subprocess.run(command, env=environment, check=True, timeout=100)
    return folder / "cache"


@pytest.mark.parametrize("content", [b"not a library at all, but long enough to hold a digest", None])
def test_a_broken_file_in_the_cache_is_built_again(
    tmp_path: Path, built: Path, content: bytes | None
) -> None:
    shutil.copytree(built, tmp_path / "cache")
    [library] = cached(tmp_path)
    half = library.read_bytes()[: library.stat().st_size // 2]
    library.write_bytes(half if content is None else content)

    assert load().twice(21.0) == 42.0


def test_of_two_processes_that_start_at_once_one_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, calls = tmp_path / "compiler", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    command = [sys.executable, "-c", LOAD_IN_NEW_PROCESS, str(build.SOURCES)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    assert [process.communicate(timeout=100)[0] for process in both] == ["True\n", "True\n"]
    assert sum(" -c " in call for call in calls.read_text().splitlines()) == 1
    assert len(cached(tmp_path)) == 1, "something is left lying about"
    assert load().twice(21.0) == 42.0


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_working_compiler_there_is_one_line_and_no_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, compiler: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with caplog.at_level(logging.WARNING):
        assert build.load_kernels("twice") is None
        assert build.load_kernels("twice") is None

    [message] = caplog.messages
    assert "twice" in message
    assert compiler in message


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NIGHTSHIFT_KERNEL_CACHE", str(tmp_path / "file" / "cache"))

    assert build.load_kernels("twice") is None
    assert len(caplog.messages) == 1


def test_kernels_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_NATIVE_KERNELS", "0")

    assert build.load_kernels("twice") is None
    assert not (tmp_path / "cache").exists()


def test_kernels_share_the_threads_of_torch() -> None:
    """A second OpenMP runtime would spin on the cores that torch computes on."""
    assert load().threads() == 2

    mapped = Path("/proc/self/maps").read_text().splitlines()
    runtimes = {os.path.realpath(line.split()[-1]) for line in mapped if "libgomp" in line}
    assert len(runtimes) == 1


def test_loading_a_kernel_leaves_denormals_alone() -> None:
    load()

    assert (torch.tensor(1e-40) * 1.0).item() != 0.0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of another processor")
@pytest.mark.parametrize(
    ("instructions", "kernel"),
    mostly_exhaustive(
        product(INSTRUCTIONS, KERNELS), default=[*zip(INSTRUCTIONS[::2], KERNELS[::2], strict=False)]
    ),
)
def test_every_kernel_compiles_for_processors_that_this_one_is_not(instructions: str, kernel: Path) -> None:
    """Processors with AVX2 alone, with AVX-512 but no bfloat16, and with AMX."""
    flags = [flag for flag in build.FLAGS if not flag.startswith(("-march", "-O"))]
    command = ["g++", *flags, f"-march={instructions}", "-fsyntax-only", f"-I{SOURCES}", str(kernel)]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
