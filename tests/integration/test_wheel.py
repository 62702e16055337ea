"""The wheel has the packages and their data, and nothing else, and works anywhere."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("api", "nightshift", "nightshift_engine", "scheduler", "workers")
TIMEOUT_S = 120
NEEDED = (
    "nightshift/_migrations/env.py",
    "nightshift/_migrations/versions/2026-11-27-1400_create_the_schema_of_0_1_0.py",
    "nightshift/_migrations/versions/2026-11-28-0445_say_which_model_an_adapter_changes.py",
    "nightshift/_migrations/versions/2026-11-28-0700_add_schedules.py",
    "nightshift/_migrations/versions/2026-11-28-0715_pause_jobs_between_two_nights.py",
    "nightshift/cli/demo/demo_model/config.json",
    "nightshift/cli/demo/demo_model/model.safetensors",
    "nightshift/cli/demo/demo_model/tokenizer.json",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(build, cwd=CHECKOUT, check=True, capture_output=True, timeout=TIMEOUT_S)
    [path] = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel and everything the development environment has, except the checkout."""
    directory = tmp_path_factory.mktemp("installed")
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--python",
        str(python),
    ]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, timeout=TIMEOUT_S)
    # A path in a .pth file is searched, but .pth files in it (the editable install's) are not read.
    [site_packages] = directory.glob("lib/python*/site-packages")
    (site_packages / "development.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python: Path, program: str, **environment: str) -> str:
    ended = subprocess.run(
        [str(python), "-c", program],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_wheel_holds_the_packages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        top_level = {name.partition("/")[0] for name in archive.namelist()}
    assert {name for name in top_level if not name.endswith(".dist-info")} == set(PACKAGES)


def test_the_conformance_checks_are_a_distribution_of_their_own(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=CHECKOUT / "conformance", check=True, capture_output=True, timeout=TIMEOUT_S)
    [path] = tmp_path.glob("nightshift_conformance-*.whl")
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if ".dist-info" not in name}
    folder = CHECKOUT / "conformance"
    tracked = [*folder.glob("*.py"), *folder.glob("checks/*.py"), folder / "node.mjs"]
    assert names == {path.relative_to(CHECKOUT).as_posix() for path in tracked}


def test_the_wheel_holds_all_that_is_needed_without_a_checkout(wheel):
    """The schema and the demo, the kernels that are built at first use, and the page."""
    kernels = (CHECKOUT / "nightshift_engine" / "kernels" / "native").iterdir()
    of_page = [path for part in ("templates", "static") for path in (CHECKOUT / "api/page" / part).rglob("*")]
    needed = [path for path in kernels if path.suffix in (".cpp", ".h")]
    assert min(len(needed), len(of_page)) > 10
    needed += [path for path in of_page if path.is_file()]

    with zipfile.ZipFile(wheel) as archive:
        assert {str(path.relative_to(CHECKOUT)) for path in needed} | set(NEEDED) <= set(archive.namelist())


def test_every_package_is_imported_from_the_wheel_wherever_one_stands(installed):
    program = "import {0}; print(*[package.__file__ for package in ({0},)])".format(", ".join(PACKAGES))
    for where in run(installed, program).split():
        assert Path(where).is_relative_to(installed.parent.parent)


@pytest.mark.parametrize("module", ["api.app", "scheduler.__main__", "nightshift.cli.main"])
def test_only_the_worker_needs_torch(installed, module):
    blocked = (
        "import sys; sys.modules.update(torch=None, transformers=None, safetensors=None, tokenizers=None)"
    )
    run(installed, f"{blocked}; import importlib; importlib.import_module({module!r})")


def test_the_schema_is_made_from_the_wheel(installed, tmp_path):
    program = "import runpy; runpy.run_module('nightshift.store.databases.migrate', run_name='__main__')"
    run(installed, program, NIGHTSHIFT_DATA_DIR=str(tmp_path))
    assert (tmp_path / "nightshift.db").stat().st_size > 0


def test_the_command_is_installed(installed):
    ended = subprocess.run(
        [str(installed.parent / "nightshift"), "--version"],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert ended.stdout.startswith("nightshift 0.")
