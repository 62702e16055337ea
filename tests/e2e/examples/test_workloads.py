"""Each workload of `examples/` finds its own answers right, in one service; a command says by its exit code
whether it did.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from examples.all import EXAMPLES
from examples.harness.example import Example, NotHere, checked
from examples.harness.service import Service
from tests.e2e.service import forked

ROOT = Path(__file__).resolve().parents[3]
QUICK = ("search",)  # the others train a model, or are like it
EACH_EXAMPLE = [
    pytest.param(example, marks=() if example.name in QUICK else pytest.mark.exhaustive)
    for example in EXAMPLES
]
TIMEOUT_S = 280.0  # training and starting take long on a machine that is busy with other tests


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def models(request: pytest.FixtureRequest, folder: Path) -> dict[str, list[Path] | NotHere]:
    """Models of the selected examples, trained here and not taken from an earlier run."""
    models: dict[str, list[Path] | NotHere] = {}
    for example in selected(request):
        try:
            models[example.name] = example.models(folder / "models")
        except NotHere as error:
            models[example.name] = error
    return models


def selected(request: pytest.FixtureRequest) -> list[Example]:
    specs = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    return [spec.params["example"] for spec in specs if spec is not None]


@pytest.fixture(scope="module")
def service(folder: Path, models: dict[str, list[Path] | NotHere]) -> Iterator[Service]:
    """Forked, which saves 10 s of CPU; `test_an_example_with_wrong_answers_…` starts it as examples do."""
    served = [model for paths in models.values() if not isinstance(paths, NotHere) for model in paths]
    arguments = [word for model in served for word in ("--model", str(model))]
    with forked(folder / "data", *arguments, FILE_ROOTS=str(folder / "work")) as started:
        yield Service(started.process, started.base_url, started.api_key)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("example", EACH_EXAMPLE, ids=lambda example: example.name)
def test_an_example_finds_its_own_answers_right(
    example: Example, models: dict[str, list[Path] | NotHere], service: Service, folder: Path
) -> None:
    if isinstance(missing := models[example.name], NotHere):
        pytest.skip(str(missing))
    assert checked(example, service, folder / "work" / example.name) == []


@pytest.mark.exhaustive
def test_a_model_that_was_trained_earlier_is_not_trained_again(
    models: dict[str, list[Path] | NotHere], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fraud = next(example for example in EXAMPLES if example.name == "fraud")
    assert fraud.models(folder / "models") == models["fraud"]
    assert "trained earlier" in capsys.readouterr().out


WRONG = """
from examples.harness.example import Example, main
main(Example("wrong", "a workload", lambda cache: [], lambda service, folder: ["it is wrong"]))
"""


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_an_example_with_wrong_answers_says_so_and_ends_with_1(tmp_path: Path) -> None:
    """The service is stopped before."""
    ended = subprocess.run(
        [sys.executable, "-c", WRONG],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 1
    assert "PROBLEM: wrong: it is wrong" in ended.stderr
    assert ended.stdout.splitlines()[-1] == "wrong FAILED"
    base_url = next(line.split()[-1] for line in ended.stdout.splitlines() if line.startswith("ready after"))
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{base_url}/models")
