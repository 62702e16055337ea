"""The form of a model's thoughts, and what its chat template takes of them, read from the checkpoint. Pure.

A new family is an entry of `FAMILIES`. Sources: the chat templates of Qwen3, DeepSeek-R1, GLM-4.5, Magistral,
Command A Reasoning, Seed-OSS, EXAONE Deep, Kimi-VL, Gemma 4 and gpt-oss.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .thoughts import Marker, ThoughtFormat


@dataclass(frozen=True, slots=True)
class Family:
    begin: str
    end: str
    name_end: str | None = None
    answer_name: str | None = None
    closing: str = ""
    """Text that ends a thought and begins the answer, where `end` alone does not."""


FAMILIES: Final = (
    Family("<think>", "</think>"),
    Family("[THINK]", "[/THINK]"),
    Family("<|channel>", "<channel|>", name_end="\n"),
    Family(
        "<|channel|>",
        "<|end|>",
        name_end="<|message|>",
        answer_name="final",
        closing="<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    Family("<|START_THINKING|>", "<|END_THINKING|>"),
    Family("<seed:think>", "</seed:think>"),
    Family("<thought>", "</thought>"),
    Family("◁think▷", "◁/think▷"),
)

SWITCHES: Final = ("enable_thinking", "thinking")
"""Arguments of templates that switch thoughts on and off."""
EFFORT: Final = "reasoning_effort"
_IS_PART: Final = re.compile(r"""==\s*['"]thinking['"]""")
"""A template, such as Mistral's, that reads thoughts from parts of the content with this type."""
EARLIER: Final = ("reasoning_content", "reasoning", "thinking")
"""Fields of an earlier answer that templates read its thought from."""


def thought_format(
    template: str, added: Mapping[str, int], encode: Callable[[str], Sequence[int]]
) -> ThoughtFormat | None:
    """The form that a model with this chat template and these added tokens thinks in; None: it does not.

    The template names one marker of a family at least, and the other where it is no token. The first family
    counts: a template that names two writes the others for readers.
    """
    for family in FAMILIES:
        named = [mark in template for mark in (family.begin, family.end)]
        known = [mark in added for mark in (family.begin, family.end)]
        if any(named) and all(is_named or is_known for is_named, is_known in zip(named, known, strict=True)):
            return _format(family, added, encode)
    return None


def _format(
    family: Family, added: Mapping[str, int], encode: Callable[[str], Sequence[int]]
) -> ThoughtFormat:
    def marker(text: str) -> Marker:
        return Marker(text.encode(), added.get(text))

    return ThoughtFormat(
        marker(family.begin),
        marker(family.end),
        tuple(encode(family.closing or family.end)),
        None if family.name_end is None else marker(family.name_end),
        None if family.answer_name is None else family.answer_name.encode(),
    )


def effort_arguments(effort: str, variables: Collection[str]) -> dict[str, Any]:
    """Arguments that tell a template which reads these variables how much to think: the effort itself where
    it takes one, and its switch, which `none` turns off. Empty where it cannot be told.
    """
    arguments: dict[str, Any] = {name: effort != "none" for name in SWITCHES if name in variables}
    if EFFORT in variables:
        arguments[EFFORT] = effort
    return arguments


def with_thought(message: Mapping[str, Any], thought: str, template: str) -> dict[str, Any]:
    """An earlier answer with its thought, as this template reads it; without, where it reads none."""
    if _IS_PART.search(template):
        text = [{"type": "text", "text": message["content"]}] if message["content"] else []
        return {**message, "content": [{"type": "thinking", "thinking": thought}, *text]}
    fields = [name for name in EARLIER if re.search(rf"""[.'"]{name}\b""", template)]
    return {**message, **dict.fromkeys(fields, thought)}
