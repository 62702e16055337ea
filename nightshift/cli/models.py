"""`nightshift models`: adapters that this installation's workers serve beside those of NIGHTSHIFT_MODELS.

They are lines of a file in the data directory, in the form of that setting. `nightshift up` and `nightshift
worker` read it as they start.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from nightshift.cli.session import DataDir, Json, data_settings
from nightshift.cli.terminal import print_list, say
from nightshift.errors import ConfigurationError
from nightshift.fleet.checkpoints import Adapter, find, model_id, split_adapters

app = typer.Typer(
    help="Add LoRA adapters to the models that are served, list and remove them.", no_args_is_help=True
)

FILE: Final = "adapters"


@app.command("add-adapter")
def add_adapter(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name that requests give as `model`.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The directory in which PEFT saved it.")],
    base: Annotated[str, typer.Option("--base", metavar="MODEL", help="The model that it was trained on.")],
    data_dir: DataDir = None,
) -> None:
    """Serve a LoRA adapter of a model, from the next start of `nightshift up` or `nightshift worker` on.

    Where that model is served, that is; whether they go together is found out as it is loaded.
    """
    from nightshift.cli.demo import demo_model_path
    from nightshift.process.settings import WorkerSettings

    if Adapter.read(f"{name}={base}+{path}") is None:
        raise ConfigurationError(f"{name!r} cannot be a name; take letters, digits, '.', '_', ':' and '-'")
    reference = find(f"{name}={base}+{path}").reference
    places = data_settings(data_dir)
    others = [line for line in read_added(places.data_dir) if model_id(line) != name]
    _write(places.data_dir, [*others, reference])
    say(f"{name} will be served where {model_id(base)} is, from the next start on")
    named = split_adapters(WorkerSettings().models or (str(demo_model_path()),))[0]
    if model_id(base) not in map(model_id, named):
        say(f"NIGHTSHIFT_MODELS names no {model_id(base)}: name it there, or start with --model {base}")


@app.command("remove-adapter")
def remove_adapter(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")], data_dir: DataDir = None
) -> None:
    """Serve an adapter no more, from the next start on. Its files stay."""
    places = data_settings(data_dir)
    added = read_added(places.data_dir)
    left = [line for line in added if model_id(line) != name]
    if left == added:
        raise ConfigurationError(f"there is no adapter {name!r} in {places.data_dir / FILE}")
    _write(places.data_dir, left)
    say(f"{name} will not be served from the next start on")


@app.command("list-adapters")
def list_adapters(data_dir: DataDir = None, json: Json = False) -> None:
    """List the adapters that have been added. GET /v1/models lists what is served now."""
    _, adapters = split_adapters(read_added(data_settings(data_dir).data_dir))
    shown = [
        {"id": adapter.name, "parent": model_id(adapter.base), "path": adapter.path} for adapter in adapters
    ]
    print_list(shown, ("NAME", "MODEL", "PATH"), lambda adapter: [*adapter.values()], json=json)


def with_added(models: Sequence[str], data_dir: Path) -> tuple[str, ...]:
    """Models, and the adapters of them that have been added, but for those that are named already."""
    ids = {*map(model_id, models)}
    adapters = [(line, Adapter.read(line)) for line in read_added(data_dir)]
    added = [line for line, adapter in adapters if adapter is not None and model_id(adapter.base) in ids]
    return (*models, *(line for line in added if model_id(line) not in ids))


def read_added(data_dir: Path) -> list[str]:
    """The adapters that have been added, as NIGHTSHIFT_MODELS would name them."""
    path = data_dir / FILE
    return path.read_text().splitlines() if path.is_file() else []


def _write(data_dir: Path, lines: Sequence[str]) -> None:
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = data_dir / f"{FILE}.partial"
    partial.touch(mode=0o600)
    partial.write_text("".join(f"{line}\n" for line in lines))
    partial.replace(data_dir / FILE)
