"""A grammar that a request's output must follow, before it is compiled."""

import hashlib
from dataclasses import dataclass
from typing import Literal

GrammarKind = Literal["json_schema", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language that the whole output has to be in."""

    kind: GrammarKind
    text: str
    """json_schema: the schema, as JSON. choice: a list of strings, as JSON. regex: of the Rust crate `regex`,
    without look-around. grammar: Lark, or GBNF, which is told from it by `::=`."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.kind} {self.text}".encode()).hexdigest()
