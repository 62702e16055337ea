"""The files that configure models, read and checked before any model is loaded.

`NIGHTSHIFT_MODEL_CONFIG_FILES` lists YAML files of several models. A model that they do not name may have
`nightshift.yaml`, of its own fields alone, beside its checkpoint.
"""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from nightshift.errors import ConfigurationError
from nightshift.fleet.checkpoints import model_id
from nightshift.process.yaml_files import (
    TextLoader,
    YamlProblem,
    error_in,
    line_of,
    naming,
    only_field,
    parsed,
)
from nightshift_engine.encoders import DynamicBatching, EncoderConfig, Matryoshka
from nightshift_engine.errors import InvalidBatching, InvalidConfig

log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 256 * 1024  # about a thousand models
BESIDE_CHECKPOINT: Final = "nightshift.yaml"
PROTOBUF: Final = "config.pbtxt"
MODELS: Final = "models"
MODEL_CONFIG: Final = "MODEL_CONFIG_FILES"
"""The setting that errors name."""

_NO_PROTOBUF: Final = (
    "protobuf text is not read. Write the model's max_batch_size and dynamic_batching as YAML, "
    f"under {MODELS} in a file that NIGHTSHIFT_{MODEL_CONFIG} lists or in {BESIDE_CHECKPOINT} beside the "
    "checkpoint (docs/batching.md)"
)
_CLASSES: Final = "requests wait by their class: interactive, standard or background. Delete the field"
_NO_POLICY: Final = "no request is rejected or delayed for the time it waits. Delete the field"
_REMOVED: Final[Mapping[str, str]] = {
    "name": "a file beside a checkpoint is that model's. Delete the field",
    "priority_levels": _CLASSES,
    "default_priority_level": _CLASSES,
    "default_queue_policy": _NO_POLICY,
    "priority_queue_policy": _NO_POLICY,
    "preserve_ordering": "answers leave when they are ready. Delete the field",
}
"""Fields of Triton's that earlier versions read, and what to do about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelFields(EncoderConfig):
    """The fields of a model in a file."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    is_matryoshka: bool | None = None
    matryoshka_dimensions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        EncoderConfig.__post_init__(self)
        if self.matryoshka_dimensions and self.is_matryoshka is False:
            raise InvalidBatching("matryoshka_dimensions", "is_matryoshka says that there are none")
        try:
            self.matryoshka()
        except InvalidConfig as error:
            problem = str(error).removeprefix("matryoshka_dimensions ")
            raise InvalidBatching("matryoshka_dimensions", problem) from error

    def matryoshka(self) -> Matryoshka | None:
        """The sizes to which vectors may be cut; sizes alone say that there are some."""
        if self.is_matryoshka is None and self.matryoshka_dimensions is None:
            return None
        sizes = self.matryoshka_dimensions or ()
        return Matryoshka(bool(sizes) if self.is_matryoshka is None else self.is_matryoshka, sizes)


_FIELDS: Final = TypeAdapter(_ModelFields)


@dataclass(frozen=True)
class ModelConfig:
    """A model's configuration and where it was read."""

    name: str
    path: Path
    line: int
    batching: EncoderConfig
    matryoshka: Matryoshka | None = None  # None: what the checkpoint says

    def error(self, says: str, field: str = "") -> ConfigurationError:
        """An error about the whole of it, or a field."""
        return error_in(self.path, YamlProblem(self.line, field, says), MODEL_CONFIG)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Names the file where it does not go with the model."""
        try:
            yield
        except InvalidBatching as error:
            raise self.error(error.problem, error.field) from error


def read_model_configs(paths: Sequence[str], models: Sequence[str]) -> dict[str, ModelConfig]:
    """The configurations by model id, for the models (paths or hub ids) that have one.

    Raises ConfigurationError naming the file, the line and the field.
    """
    configs: dict[str, ModelConfig] = {}
    for path in map(Path, paths):
        for config in _read(path):
            if (earlier := configs.get(config.name)) is not None:
                says = f"it is configured twice, also in {earlier.path} line {earlier.line}"
                raise config.error(says, f"{MODELS}.{config.name}")
            configs[config.name] = config
    ids = {model_id(path_or_id): path_or_id for path_or_id in models}
    if unused := sorted(configs.keys() - ids.keys()):
        log.warning("no such models here", extra={"action": "model_config_unused", "models": unused})
    beside = {id: _beside_checkpoint(path) for id, path in ids.items() if id not in configs}
    return {id: config for id, config in (configs | beside).items() if config is not None and id in ids}


def _beside_checkpoint(path_or_id: str) -> ModelConfig | None:
    """A checkpoint's own file, in its directory. What is downloaded from the hub configures nothing here."""
    path = Path(path_or_id) / BESIDE_CHECKPOINT
    if path.is_file():
        with naming(path, MODEL_CONFIG):
            root = parsed(path, FILE_BYTES_MAX, MODEL_CONFIG)
            return _model(model_id(path_or_id), path, root, "", line=1)
    if (protobuf := path.with_name(PROTOBUF)).is_file():
        raise ConfigurationError(f"{protobuf}: {_NO_PROTOBUF}.", param=MODEL_CONFIG)
    return None


def _read(path: Path) -> Iterator[ModelConfig]:
    if path.suffix == Path(PROTOBUF).suffix:
        raise ConfigurationError(f"{path}: {_NO_PROTOBUF}.", param=MODEL_CONFIG)
    with naming(path, MODEL_CONFIG):
        root = parsed(path, FILE_BYTES_MAX, MODEL_CONFIG, MODELS)
        models = only_field(root, MODELS, yaml.MappingNode, "models by name")
        for key, value in models.value:
            yield _model(key.value, path, value, f"{MODELS}.{key.value}.", line=line_of(key))


def _model(name: str, path: Path, node: yaml.Node, prefix: str, line: int) -> ModelConfig:
    """`prefix`: of its fields' names in errors. Raises YamlProblem."""
    try:
        fields = _FIELDS.validate_python(TextLoader("").construct_document(node))
    except ValidationError as error:
        raise _problem(error.errors(include_url=False)[0], node, prefix, line) from error
    return ModelConfig(name, path, line, fields, fields.matryoshka())


def _problem(error: Any, node: yaml.Node, prefix: str, line: int) -> YamlProblem:
    """A pydantic error, with its field's path and line."""
    path, says = list(error["loc"]), error["msg"].replace("Input", "it").replace("tuple", "list")
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, InvalidBatching):
        path, says = [*path, *cause.field.split(".")], cause.problem
    elif error["type"] == "unexpected_keyword_argument":
        says = _unknown(*path)
    elif error["type"] == "dataclass_type":
        says = "it should hold fields, such as `{ max_batch_size: 64 }`"
    else:
        says = f"{says}, got {str(error['input'])[:40]!r}"
    names = [name for name in path if isinstance(name, str)]
    place = (prefix + ".".join(names)).removesuffix(".")
    return YamlProblem(line_of(node, names) if names else line, place, says)


def _unknown(*path: str) -> str:
    if (removed := _REMOVED.get(path[-1])) is not None:
        return f"it is no longer read: {removed}"
    known = dataclasses.fields(_ModelFields if len(path) == 1 else DynamicBatching)
    return f"there is no such field; there are {', '.join(field.name for field in known)}"
