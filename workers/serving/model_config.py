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
from yaml.constructor import ConstructorError

from nightshift.errors import ConfigurationError
from nightshift.fleet.checkpoints import model_id
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


class _Problem(Exception):
    """A place in a file, and what is wrong there."""

    def __init__(self, line: int, field: str, says: str) -> None:
        super().__init__(f"line {line}: {field}: {says}" if field else f"line {line}: {says}")


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
        return _error(self.path, _Problem(self.line, field, says))

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
        with _naming(path):
            root = _parsed(path)
            return _model(model_id(path_or_id), path, root, "", line=1)
    if (protobuf := path.with_name(PROTOBUF)).is_file():
        raise ConfigurationError(f"{protobuf}: {_NO_PROTOBUF}.", param=MODEL_CONFIG)
    return None


def _read(path: Path) -> Iterator[ModelConfig]:
    if path.suffix == Path(PROTOBUF).suffix:
        raise ConfigurationError(f"{path}: {_NO_PROTOBUF}.", param=MODEL_CONFIG)
    with _naming(path):
        root = _parsed(path)
        for key, _ in root.value:
            if key.value != MODELS:
                raise _Problem(_line(key), key.value, f"there is no such field; there is {MODELS}, by name")
        models = next((value for _, value in root.value), None)
        if models is None:
            raise _Problem(1, MODELS, "it is missing")
        if not isinstance(models, yaml.MappingNode):
            raise _Problem(_line(models), MODELS, "it should hold models by name")
        for key, value in models.value:
            yield _model(key.value, path, value, f"{MODELS}.{key.value}.", line=_line(key))


def _model(name: str, path: Path, node: yaml.Node, prefix: str, line: int) -> ModelConfig:
    """`prefix`: of its fields' names in errors. Raises _Problem."""
    try:
        fields = _FIELDS.validate_python(_Loader("").construct_document(node))
    except ValidationError as error:
        raise _problem(error.errors(include_url=False)[0], node, prefix, line) from error
    return ModelConfig(name, path, line, fields, fields.matryoshka())


def _problem(error: Any, node: yaml.Node, prefix: str, line: int) -> _Problem:
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
    return _Problem(_line_of(node, names) if names else line, place, says)


def _unknown(*path: str) -> str:
    if (removed := _REMOVED.get(path[-1])) is not None:
        return f"it is no longer read: {removed}"
    known = dataclasses.fields(_ModelFields if len(path) == 1 else DynamicBatching)
    return f"there is no such field; there are {', '.join(field.name for field in known)}"


class _Loader(yaml.BaseLoader):
    """Reads every value as its text, which pydantic reads as its field's type: YAML 1.1 reads 010 as 8.

    Refuses what would change a value silently, a field that is there twice, and aliases, which would make a
    small file a large configuration.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise ConstructorError(None, None, "aliases are not read", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        fields = super().construct_mapping(node, deep)
        if len(fields) < len(node.value):
            seen: set[str] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
                seen.add(key.value)
        return fields


def _parsed(path: Path) -> yaml.MappingNode:
    """The file's fields; an empty file has none. Raises ConfigurationError or _Problem."""
    loader = _Loader(_text(path))
    root = loader.get_single_node() or yaml.MappingNode("", [], yaml.Mark("", 0, 0, 0, "", 0))
    loader.construct_document(root)
    if not isinstance(root, yaml.MappingNode):
        raise _Problem(_line(root), "", "there should be fields, such as `max_batch_size: 64`")
    return root


def _text(path: Path) -> str:
    """Raises ConfigurationError or _Problem."""
    if not path.is_file():
        raise ConfigurationError(f"{path} is no file.", param=MODEL_CONFIG)
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.", param=MODEL_CONFIG) from error
    if len(data) > FILE_BYTES_MAX:
        raise _Problem(data.count(b"\n") + 1, "", f"the file goes on beyond {FILE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _Problem(data.count(b"\n", 0, error.start) + 1, "", "this is no UTF-8") from error


def _line_of(node: yaml.Node, names: Sequence[str]) -> int:
    """The line of the field at this path, as far as it exists."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) and names else ():
        if key.value == names[0]:
            return _line_of(value, names[1:]) if names[1:] else _line(key)
    return _line(node)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raises ConfigurationError with the file and the line of what is wrong in it."""
    try:
        yield
    except _Problem as problem:
        raise _error(path, problem) from problem
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        says = getattr(error, "problem", None) or "it holds a character that YAML does not allow"
        raise _error(path, _Problem(mark.line + 1 if mark else 1, "", f"this is no YAML: {says}")) from error
    except RecursionError as error:
        raise _error(path, _Problem(1, "", "its fields and lists are nested too deeply")) from error
    except (ValueError, OverflowError) as error:  # PyYAML's, which says no place
        says = "this is no YAML: a number in an escape or a directive is too large"
        raise _error(path, _Problem(1, "", says)) from error


def _error(path: Path, problem: _Problem) -> ConfigurationError:
    return ConfigurationError(f"{path}, {problem}", param=MODEL_CONFIG)
