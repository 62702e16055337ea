"""Builds our C++ kernels at first use, once per machine, and loads them. One library per source.

The library lies in a cache under a name that says what it was made of: source, flags, compiler and CPU. It is
written under another name and then renamed, and it ends with a digest of itself, so half a file, or one from
another source, is built again rather than loaded. Of processes that start at once, one builds and the others
wait; where the file system has no locks each builds, which does no harm.

Where nothing can be built, one line is logged and the caller gets None: every kernel has a fallback in torch.
"""

import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent
FLAGS = (
    "-O3",
    "-march=native",
    # Sums may be vectorised. Never -ffast-math: it would set flush-to-zero for the whole process at load.
    "-fassociative-math",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-fopenmp",
    "-std=c++17",
    "-fPIC",
)
BUILD_TIMEOUT_S = 120.0
DIGEST_BYTES = 32


class BuildFailed(Exception):
    """The library could not be made; the message says why."""


_lock = threading.Lock()
_loaded: dict[tuple[str, ...], ctypes.CDLL | None] = {}


def load_kernels(name: str, *extra_flags: str) -> ctypes.CDLL | None:
    """The library of `<name>.cpp`, built if need be; None where that cannot be, which is logged once."""
    if os.environ.get("NIGHTSHIFT_NATIVE_KERNELS") == "0":
        return None
    with _lock:
        key = (name, *extra_flags, str(cache_directory()), _compiler())
        if key not in _loaded:
            _loaded[key] = _load_or_explain(name, extra_flags)
        return _loaded[key]


def cache_directory() -> Path:
    """The directory that keeps libraries: `NIGHTSHIFT_KERNEL_CACHE`, else a folder of the user's XDG
    cache.
    """
    if configured := os.environ.get("NIGHTSHIFT_KERNEL_CACHE"):
        return Path(configured)
    xdg_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(xdg_cache) / "nightshift" / "kernels"


def _load_or_explain(name: str, extra_flags: tuple[str, ...]) -> ctypes.CDLL | None:
    try:
        return _load(name, extra_flags)
    except (BuildFailed, OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        log.warning("native kernel %s is not available, torch is used instead: %s", name, error)
        return None


def _load(name: str, extra_flags: tuple[str, ...]) -> ctypes.CDLL:
    openmp = _openmp_runtime()
    flags = (*FLAGS, *extra_flags)
    library = cache_directory() / f"{name}-{_key(name, flags, openmp)}.so"
    if not _is_intact(library):
        library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(library.parent):
            if not _is_intact(library):  # another process may just have built it
                _build(_source(name), flags, openmp, library)
    return ctypes.CDLL(str(library))


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keeps other processes from building in `directory`."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _openmp_runtime() -> Path:
    """The OpenMP runtime torch has loaded: a second one would be a second pool of threads on our cores."""
    import torch  # noqa: F401  (maps its runtime into this process)

    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except OSError as error:
        raise BuildFailed("this platform does not say which OpenMP runtime torch uses") from error
    paths = {line.split(maxsplit=5)[-1] for line in mapped if "/" in line}
    for prefix in ("libgomp", "libiomp5"):  # Intel's answers to the same calls
        for path in sorted(paths):
            if Path(path).name.startswith(prefix):
                return Path(path)
    raise BuildFailed("torch has no OpenMP runtime that g++ could use")


def _source(name: str) -> Path:
    return next(SOURCES.rglob(f"{name}.cpp"))


def _key(name: str, flags: tuple[str, ...], openmp: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for source in (_source(name), *sorted(SOURCES.rglob("*.h"))):
        digest.update(source.read_bytes())
    # Without the runtime's folder, which no library names: another environment's has the same kernels.
    for part in (*flags, openmp.name, _compiler_version(), _cpu()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _compiler() -> str:
    return os.environ.get("CXX") or "g++"


def _compiler_version() -> str:
    path = shutil.which(_compiler())
    if path is None:
        raise BuildFailed(f"there is no compiler {_compiler()!r}")
    return _run([path, "--version"])


def _cpu() -> str:
    """Model and features of the first CPU, on which -march=native depends."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    told = [line for line in lines if line.split("\t")[0].strip() in ("model name", "flags", "Features")]
    return "\n".join([platform.machine(), *told])


def _build(source: Path, flags: tuple[str, ...], openmp: Path, library: Path) -> None:
    """Compile, seal with a digest, and put in place in one move."""
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=f".{library.stem}-") as scratch:
        compiled, linked = Path(scratch) / "kernel.o", Path(scratch) / "kernel.so"
        _run([_compiler(), *flags, f"-I{SOURCES}", "-c", str(source), "-o", str(compiled)])
        # Without -fopenmp, which would add the compiler's own runtime beside the one named here.
        link = ["-shared", "-Wl,-z,defs", str(compiled), str(openmp), "-lm", "-o", str(linked)]
        _run([_compiler(), *link])
        with linked.open("ab") as file:
            file.write(_digest(linked.read_bytes()))
        os.replace(linked, library)
    log.info("native kernel built: %s", library)


def _is_intact(library: Path) -> bool:
    try:
        content = library.read_bytes()
    except FileNotFoundError:
        return False
    return len(content) > DIGEST_BYTES and _digest(content[:-DIGEST_BYTES]) == content[-DIGEST_BYTES:]


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def _run(command: list[str]) -> str:
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildFailed(f"{command[0]} could not be run: {error}") from error
    if ended.returncode != 0:
        said = " ".join(ended.stderr.split())[:500]
        raise BuildFailed(f"{command[0]} exited with {ended.returncode}: {said}")
    return ended.stdout
