"""Plans from YAML files, in which every value is what it looks like.

    schedules:
      - name: nightly-docs
        cron: "0 1 * * *"
        …

The server checks the plans. What it refuses is named here by file and line.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final

import yaml

from nightshift.errors import ConfigurationError
from nightshift.jobs import JsonObject
from nightshift.process.yaml_files import YamlProblem, error_in, line_of, naming, only_field, parsed

FILE_BYTES_MAX: Final = 4 * 1024 * 1024  # thousands of plans
SCHEDULES: Final = "schedules"

_TEXT_TAG: Final = yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG
_NULL_TAG: Final = "tag:yaml.org,2002:null"
_READER: Final = yaml.SafeLoader("")
_KINDS: Final = {"timestamp": "a date", "bool": "true or false"}


@dataclass(frozen=True)
class Plan:
    """A plan's body for the server, and the place where it was read."""

    body: JsonObject
    path: Path
    node: yaml.MappingNode

    @property
    def name(self) -> str:
        return str(self.body["name"])

    @property
    def after(self) -> str | None:
        """The name of the plan whose runs start this one's."""
        after = self.body.get("after")
        return after if isinstance(after, str) else None

    def error(self, says: str, field: str | None = None) -> ConfigurationError:
        """An error about a field, such as `job.template`, or the whole plan."""
        line = line_of(self.node, re.findall(r"[^.\[\]]+", field or ""))
        return error_in(self.path, YamlProblem(line, self.name, says))


def read_plans(paths: Sequence[Path]) -> list[Plan]:
    """The files' plans. Raises ConfigurationError naming the file, the line and the field."""
    plans: dict[str, Plan] = {}
    for plan in (plan for path in paths for plan in _read(path)):
        if (earlier := plans.get(plan.name)) is not None:
            raise plan.error(f"it is there twice, also in {earlier.path}, line {line_of(earlier.node)}")
        plans[plan.name] = plan
    return list(plans.values())


def in_order(plans: Sequence[Plan], others: Mapping[str, str | None]) -> list[Plan]:
    """The plans, each behind the one that it names in `after`.

    `others`: what the schedules follow that are in no file, by their names. Raises ConfigurationError where
    plans follow one another in a circle.
    """
    by_name = {plan.name: plan for plan in plans}
    after = {**others, **{plan.name: plan.after for plan in plans}}
    order = TopologicalSorter({name: after.keys() & {followed} for name, followed in after.items()})
    try:
        return [by_name[name] for name in order.static_order() if name in by_name]
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        blamed = next(by_name[name] for name in circle if name in by_name)
        raise blamed.error(f"`after` goes in a circle: {' after '.join(circle)}", "after") from error


def _read(path: Path) -> Iterator[Plan]:
    with naming(path):
        root = parsed(path, FILE_BYTES_MAX, first=SCHEDULES)
        plans = only_field(root, SCHEDULES, yaml.SequenceNode, "a list of plans, each with a `name`")
        for place, node in enumerate(plans.value):
            yield _plan(path, node, f"{SCHEDULES}[{place}]")


def _plan(path: Path, node: yaml.Node, place: str) -> Plan:
    """Raises YamlProblem."""
    body = _value(node, place)
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        raise YamlProblem(
            line_of(node, ["name"]), place, "it should be a plan with a `name`, which is a text"
        )
    assert isinstance(node, yaml.MappingNode)
    return Plan(body, path, node)


def _value(node: yaml.Node, field: str) -> Any:
    """A value as JSON has it. Raises YamlProblem."""
    if isinstance(node, yaml.MappingNode):
        return {key.value: _value(value, f"{field}.{key.value}") for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_value(element, f"{field}[{place}]") for place, element in enumerate(node.value)]
    assert isinstance(node, yaml.ScalarNode)
    return node.value if node.style else _plain(node, field)


def _plain(node: yaml.ScalarNode, field: str) -> Any:
    """A value without quotes: a text, or one that JSON writes likewise. What YAML would take for something
    else, such as `no` for false, is refused.
    """
    text = node.value
    tag: str = _READER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag in (_TEXT_TAG, _NULL_TAG):
        return text if tag == _TEXT_TAG else None
    try:
        return json.loads(text)
    except ValueError as error:
        kind = _KINDS.get(tag.rpartition(":")[2], "a number")  # 1:00 for 60: times are in base 60
        says = f'YAML takes {text} for {kind}: put it in quotes, "{text}", or write it as JSON does'
        raise YamlProblem(line_of(node), field, says) from error
