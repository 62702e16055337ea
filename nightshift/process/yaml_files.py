"""YAML files that people write, as nodes, with the file, the line and the field of what is wrong in them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from yaml.constructor import ConstructorError

from nightshift.errors import ConfigurationError

_QUOTES: Final = "; a text that begins with a sign such as *, {, @ or % needs quotes"
_FOR_WANT_OF_QUOTES: Final = (
    "alphabetic or numeric character",
    "aliases",
    "unhashable key",
    "start any token",
)

N = TypeVar("N", bound=yaml.Node)


class YamlProblem(Exception):
    """A place in a file, and what is wrong there."""

    def __init__(self, line: int, field: str, says: str) -> None:
        super().__init__(f"line {line}: {field}: {says}" if field else f"line {line}: {says}")


class TextLoader(yaml.BaseLoader):
    """Reads every value as its text: YAML 1.1 reads 010 as 8.

    Refuses what would change a value silently, a field that is there twice, tags, and aliases, which would
    make a small file a large configuration.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise ConstructorError(None, None, "aliases are not read", event.start_mark)
        if event.tag is not None:
            raise ConstructorError(None, None, f"tags such as {event.tag} are not read", event.start_mark)
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


def parsed(path: Path, bytes_max: int, param: str | None = None, first: str = "name") -> yaml.MappingNode:
    """A file's fields; an empty file has none. For errors, `param`: the setting that names the file, and
    `first`: one of its fields.

    Raises ConfigurationError or, inside `naming`, YamlProblem.
    """
    loader = TextLoader(_text(path, bytes_max, param))
    root = loader.get_single_node() or yaml.MappingNode("", [], yaml.Mark("", 0, 0, 0, "", 0))
    loader.construct_document(root)
    if not isinstance(root, yaml.MappingNode):
        raise YamlProblem(line_of(root), "", f"there should be fields: the first line may be `{first}:`")
    return root


def only_field(root: yaml.MappingNode, name: str, kind: type[N], holds: str) -> N:
    """The value of a file's only field. Raises YamlProblem for another field, or another kind of value."""
    for key, value in root.value:
        if key.value != name:
            raise YamlProblem(line_of(key), key.value, f"there is no such field; there is {name}")
        if isinstance(value, kind):
            return value
    raise YamlProblem(line_of(root), name, f"it should hold {holds}")


def line_of(node: yaml.Node, names: Sequence[str] = ()) -> int:
    """The line of the field at this path, as far as it exists; of a list's element, its place is its name."""
    if not names:
        return int(node.start_mark.line) + 1
    if isinstance(node, yaml.SequenceNode) and names[0].isdecimal() and int(names[0]) < len(node.value):
        return line_of(node.value[int(names[0])], names[1:])
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == names[0]:
            return line_of(value, names[1:]) if names[1:] else line_of(key)
    return line_of(node)


@contextmanager
def naming(path: Path, param: str | None = None) -> Iterator[None]:
    """Raises ConfigurationError with the file and the line of what is wrong in it."""
    try:
        yield
    except YamlProblem as problem:
        raise error_in(path, problem, param) from problem
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise error_in(path, YamlProblem(mark.line + 1 if mark else 1, "", _no_yaml(error)), param) from error
    except RecursionError as error:
        says = "its fields and lists are nested too deeply"
        raise error_in(path, YamlProblem(1, "", says), param) from error
    except (ValueError, OverflowError) as error:  # PyYAML's, which says no place
        says = "this is no YAML: a number in an escape or a directive is too large"
        raise error_in(path, YamlProblem(1, "", says), param) from error


def _no_yaml(error: yaml.YAMLError) -> str:
    says = getattr(error, "problem", None) or "it holds a character that YAML does not allow"
    advice = _QUOTES if any(words in says for words in _FOR_WANT_OF_QUOTES) else ""
    return f"this is no YAML: {says}{advice}"


def error_in(path: Path, problem: YamlProblem, param: str | None = None) -> ConfigurationError:
    return ConfigurationError(f"{path}, {problem}", param=param)


def _text(path: Path, bytes_max: int, param: str | None) -> str:
    """Raises ConfigurationError or YamlProblem."""
    if not path.is_file():
        raise ConfigurationError(f"{path} is no file.", param=param)
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.", param=param) from error
    if len(data) > bytes_max:
        raise YamlProblem(data.count(b"\n") + 1, "", f"the file goes on beyond {bytes_max} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise YamlProblem(data.count(b"\n", 0, error.start) + 1, "", "this is no UTF-8") from error
