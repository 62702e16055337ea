"""Templates fill in what a record says, with its type where they can, and run nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.bulk.rows import templates
from nightshift.bulk.rows.templates import STEPS_MAX, columns, render
from nightshift.errors import InvalidRequest

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("plain", "plain"),
        ("Summarise: {{text}}", "Summarise: a text"),
        ("{{ text }}!", "a text!"),
        ("{{text}}{{n}}", "a text7"),
        ("{{n}}", 7),
        (" {{n}}", " 7"),
        ("{{list}}", [1, "é"]),
        ("list: {{list}}", 'list: [1, "é"]'),
        ("{{nothing}}", None),
        ("<{{nothing}}>", "<>"),
        ("{{yes}} or not", "true or not"),
        ("{{two words}}", "fine"),
        ("{text} {{}} {{{{", "{text} {{}} {{{{"),
    ],
)
def test_a_placeholder_becomes_what_the_record_says(text: str, filled: Any) -> None:
    record = {"text": "a text", "n": 7, "list": [1, "é"], "nothing": None, "yes": True, "two words": "fine"}

    assert render({"v": text}, record) == {"v": filled}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user.name", "Ada"),
        ("user.langs[1]", "de"),
        ("turns[0].text", "hi"),
        ("turns[0]", {"text": "hi"}),
        ("grid[1][0]", 3),
        ("user.nick name", "A"),
        ("a.b", "of that very name"),
        ("turns[1]", "of that very name, too"),
        ("nothing.at.all", None),
        ("user.none[3].x", None),
    ],
)
def test_a_part_of_a_column_is_named_by_its_path(name: str, value: Any) -> None:
    record = {
        "user": {"name": "Ada", "langs": ["en", "de"], "nick name": "A", "none": None},
        "turns": [{"text": "hi"}, {"text": "hidden"}],
        "turns[1]": "of that very name, too",
        "grid": [[1, 2], [3]],
        "a": {"b": "hidden"},
        "a.b": "of that very name",
        "nothing": None,
    }

    assert render({"v": f"{{{{{name}}}}}"}, record) == {"v": value}


@pytest.mark.parametrize(
    "name",
    [
        *("a.c", "a.b.c", "a[0]", "a..b", "a.", ".a", "a]b", "[0]", "x.y"),
        *("l[2]", "l.x", "l[-1]", "l[x]", "l[0]y"),
    ],
)
def test_a_part_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render({"v": f"{{{{{name}}}}}"}, {"a": {"b": 1}, "l": [1, 2]})
    assert (caught.value.code, caught.value.param) == ("missing_column", name)


def test_a_path_has_an_end() -> None:
    record: dict[str, Any] = {"a": []}
    for _ in range(STEPS_MAX):
        record = {"a": [record["a"]]}

    assert render({"v": "{{a%s}}" % ("[0]" * STEPS_MAX)}, record) == {"v": []}
    with pytest.raises(InvalidRequest, match="a column 'a"):
        render({"v": "{{a%s}}" % ("[0]" * (STEPS_MAX + 1))}, record)


def test_placeholders_are_found_at_any_depth_but_not_in_names() -> None:
    template = {"{{a}}": 1, "messages": [{"role": "user", "content": "{{a}}"}], "n": 3}

    assert render(template, {"a": "x"}) == {
        "{{a}}": 1,
        "messages": [{"role": "user", "content": "x"}],
        "n": 3,
    }
    assert columns(template) == {"a"}


def test_a_column_the_row_does_not_have_is_named_with_those_it_has() -> None:
    with pytest.raises(InvalidRequest, match=r"'body'.*text, title") as caught:
        render({"input": "{{body}}"}, {"title": "t", "text": "x"})
    assert (caught.value.code, caught.value.param) == ("missing_column", "body")


def test_what_a_value_says_is_not_filled_in_again() -> None:
    assert render({"v": "<{{a}}>"}, {"a": "{{b}}", "b": "secret"}) == {"v": "<{{b}}>"}


@given(value=values)
def test_a_template_without_placeholders_is_its_own_result(value: Any) -> None:
    template = {"v": value}
    if not columns(template):
        assert render(template, {}) == template


@given(value=values)
def test_a_placeholder_alone_keeps_any_value_as_it_is(value: Any) -> None:
    assert render({"v": "{{a}}"}, {"a": value}) == {"v": value}


def test_a_body_does_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "FILLED_CHARS_MAX", 100)
    template = {"v": "{{a}} " * 20}

    assert len(render(template, {"a": "12345"})["v"]) == 120
    with pytest.raises(InvalidRequest, match="characters") as caught:
        render(template, {"a": "123456"})
    assert caught.value.code == "row_too_large"
