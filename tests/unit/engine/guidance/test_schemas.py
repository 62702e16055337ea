"""Patterns that a schema combines for one text are counted: llguidance takes twice the time for each more."""

import json
from typing import Any

import pytest

from nightshift_engine.errors import GrammarFailed
from nightshift_engine.guidance.compiler import GrammarCompiler
from nightshift_engine.guidance.grammar import Grammar
from nightshift_engine.guidance.schemas import PATTERNS_COMBINED_MAX, patterns_combined
from tests.unit.engine.tiny.decoders import load_tokenizer, save_model

TEXT = {"type": "string", "pattern": "a.*b"}
DEFINITIONS = {"text": TEXT, "twice": {"allOf": [TEXT, {"$ref": "#/$defs/text"}]}}


@pytest.mark.parametrize(
    ("schema", "count"),
    [
        ({"type": "object", "properties": {"a": TEXT, "b": {"items": TEXT}}}, 1),
        ({"anyOf": [TEXT] * 40}, 1),
        ({"allOf": [TEXT] * 3, "pattern": "c"}, 4),
        ({"allOf": [{"properties": {"a": TEXT, "b": TEXT}}] * 5}, 5),
        ({"allOf": [{"allOf": [TEXT] * 3}] * 4}, 12),
        ({"$ref": "#/$defs/twice", "format": "date", "$defs": DEFINITIONS}, 3),
        ({"allOf": [{"$ref": "#/$defs/twice"}] * 3, "$defs": DEFINITIONS}, 6),
        ({"$ref": "#", "pattern": "a"}, 2),
        ({"allOf": [{"$ref": "#/$defs/none"}, {"$ref": "elsewhere"}, True, 7], "items": [TEXT]}, 1),
        ({"properties": 3, "allOf": None, "anyOf": "x"}, 0),
        (True, 0),
    ],
)
def test_parts_of_an_allof_are_added_and_of_other_parts_the_most_counts(schema: Any, count: int) -> None:
    assert patterns_combined(schema) == count


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    directory = tmp_path_factory.mktemp("model")
    save_model(directory)
    tokenizer = load_tokenizer(str(directory))
    return GrammarCompiler(tokenizer, tokenizer.num_tokens, set())


def many(count: int) -> dict[str, Any]:
    """A schema of which llguidance would compile 40 for hours, in gigabytes."""
    return {"allOf": [{"properties": {"p": {"pattern": f".*{n}.*1"}}} for n in range(count)]}


@pytest.mark.parametrize("in_grammar", [False, True])
def test_a_schema_that_combines_too_many_is_refused_at_once(
    compiler: GrammarCompiler, in_grammar: bool
) -> None:
    schema = json.dumps(many(40))
    grammar = Grammar("grammar", f"start: %json {schema}") if in_grammar else Grammar("json_schema", schema)

    with pytest.raises(
        GrammarFailed, match=f"combines up to 40 patterns .* at most {PATTERNS_COMBINED_MAX} are"
    ):
        compiler.compile(grammar).matcher.result()


def test_a_schema_of_as_many_as_are_accepted_ends(compiler: GrammarCompiler) -> None:
    schema = Grammar("json_schema", json.dumps(many(PATTERNS_COMBINED_MAX)))

    assert compiler.compile(schema).matcher.exception() is not None, "llguidance refuses it by its own limit"


def test_a_lenient_schema_that_combines_too_many_is_any_object(compiler: GrammarCompiler) -> None:
    schema = json.dumps(many(40) | {"x-guidance": {"lenient": True}})

    assert compiler.compile(Grammar("grammar", f"start: %json {schema}")).matcher.exception() is None
