"""Text that a tenant writes is parsed in linear time: longest inputs made to make a parser try again."""

import pytest

from api.openai.ranges import parse_range
from nightshift.bulk.rows.templates import columns, render
from nightshift.objectstore import Locations, ObjectUri
from nightshift.tenants.keys import DEFAULT_TENANT
from tests.helpers import fakes as testing
from tests.security.costly.children import in_child


@pytest.mark.parametrize(
    "text",
    [
        "{{" + " " * 1_000_000,
        "{{" * 500_000,
        "{{ a" * 250_000,
        "{{" + " a" * 500_000 + "}",
        "{{ " * 300_000 + "}}",
    ],
    ids=["blanks", "openings", "names", "half closed", "closed once"],
)
def test_a_template(text: str) -> None:
    in_child(render, {"messages": text}, {"a": 1, "": 2})
    in_child(columns, text)


@pytest.mark.parametrize(
    "header",
    ["bytes=" + " " * 65_000, "bytes" + " " * 65_000, "bytes=" + " " * 30_000 + "-" + " " * 30_000 + "x"],
)
def test_a_range(header: str) -> None:
    assert in_child(parse_range, header, 100) is None


def expanded(root: str, pattern: str) -> int:
    return len(
        testing.expanded(
            Locations(file_roots=(root,)), ObjectUri.parse(f"file://{root}/{pattern}"), DEFAULT_TENANT
        )
    )


@pytest.mark.parametrize("stars", [11, 120])
def test_a_glob(tmp_path, stars: int) -> None:
    (tmp_path / ("a" * 250)).touch()
    (tmp_path / ("a" * 249 + "b")).touch()

    assert in_child(expanded, str(tmp_path), "*a" * stars + "*b") == 1
