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


def many(count: int) -> dict[str, Any]:
    """A schema of which llguidance would compile 40 for hours, in gigabytes."""
    return {"allOf": [{"properties": {"p": {"pattern": f".*{n}.*1"}}} for n in range(count)]}


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
        ({"allOf": [{"$ref": "#/%24defs/twice"}, {"$ref": "#/allOf/2"}, TEXT], "$defs": DEFINITIONS}, 4),
        ({"allOf": [True, 7], "items": [TEXT]}, 1),
        ({"properties": 3, "allOf": None, "anyOf": "x"}, 0),
        (True, 0),
    ],
)
def test_parts_of_an_allof_are_added_and_of_other_parts_the_most_counts(schema: Any, count: int) -> None:
    assert patterns_combined(schema) == count


@pytest.mark.parametrize("reference", ["#/$defs/none", "#name", "elsewhere", "", "#/allOf/7"])
def test_a_reference_that_points_to_no_place_in_the_schema_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match="does not point to a place"):
        patterns_combined({"allOf": [{"$ref": reference}], "$defs": {"name": {"$anchor": "name"}}})


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    directory = tmp_path_factory.mktemp("model")
    save_model(directory)
    tokenizer = load_tokenizer(str(directory))
    return GrammarCompiler(tokenizer, tokenizer.num_tokens, set())


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", json.dumps(many(40))),
        Grammar("grammar", f"start: %json {json.dumps(many(40))}"),
        Grammar("grammar", f"start :%json{json.dumps(many(40))}"),
        Grammar("grammar", f'start: "a" %json\n{json.dumps(many(40), indent=1)}'),
    ],
    ids=["a schema", "in a grammar", "without a space", "over lines"],
)
def test_a_schema_that_combines_too_many_is_refused_at_once(
    compiler: GrammarCompiler, grammar: Grammar
) -> None:

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
