"""The prompts of a checkpoint: texts that it wants before its inputs, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoint.files import read_object
from ..errors import ModelLoadFailed, UnknownPrompt

FILE = "config_sentence_transformers.json"

_INPUT_TYPES = {
    "search_query": ("query",),
    "query": ("search_query",),
    "search_document": ("document", "passage", "corpus"),
    "document": ("passage", "corpus", "search_document"),
    "passage": ("document", "corpus", "search_document"),
}
"""Other names of the prompt for a type of input. Types are Cohere's, names those of sentence-transformers."""


@dataclass(frozen=True, slots=True)
class Prompts:
    by_name: Mapping[str, str] = field(default_factory=dict)
    default: str = ""
    """The prompt before inputs of requests that name none."""

    @classmethod
    def read(cls, directory: Path) -> Prompts:
        """Raises ModelLoadFailed for what is no text."""
        path = directory / FILE
        config = read_object(path, str(directory)) if path.exists() else {}
        declared = config.get("prompts") or {}
        default: Any = config.get("default_prompt_name")
        if not isinstance(declared, dict) or not all(
            isinstance(text, str | None) for text in declared.values()
        ):
            raise ModelLoadFailed(f"cannot load model {str(directory)!r}: prompts in {FILE} are no texts")
        prompts = {name: text or "" for name, text in declared.items()}
        if default is not None and default not in prompts:
            raise ModelLoadFailed(
                f"cannot load model {str(directory)!r}: {FILE} has no prompt {default!r}, its default"
            )
        return cls(prompts, prompts[default] if default is not None else "")

    def named(self, name: str) -> str:
        """Raises UnknownPrompt."""
        try:
            return self.by_name[name]
        except KeyError:
            raise UnknownPrompt(name, self.by_name) from None

    def for_input_type(self, type: str) -> str:
        """The prompt of that name, or of another name for the same. Raises UnknownPrompt."""
        names = (type, *_INPUT_TYPES.get(type, ()))
        matching = next((name for name in names if name in self.by_name), type)
        return self.named(matching)
