"""A page of a list is at most 1 MB, and a client that asks for the next one misses nothing."""

import json
from itertools import count

from api.dependencies import list_json
from nightshift.jobs import JsonObject


def pages_of(elements: list[JsonObject], limit: int) -> list[JsonObject]:
    """What a client gets that goes on while there is more."""
    pages: list[JsonObject] = []
    begin = 0
    for _ in count():
        pages.append(list_json(elements[begin : begin + limit + 1], limit))
        begin += len(pages[-1]["data"])
        if not pages[-1]["has_more"]:
            return pages
    raise AssertionError


def test_pages_of_large_elements_are_shorter_and_have_all_of_them() -> None:
    elements = [{"id": str(number), "text": "\u00e9" * 100_000} for number in range(20)]
    pages = pages_of(elements, limit=10)

    assert [element for page in pages for element in page["data"]] == elements
    assert max(len(json.dumps(page, ensure_ascii=False).encode()) for page in pages) <= 1_000_000
    assert [len(page["data"]) for page in pages] == [4] * 5
    assert pages[0]["last_id"] == "3"


def test_an_element_larger_than_a_page_is_a_page() -> None:
    elements = [{"id": str(number), "text": "x" * 2_000_000} for number in range(2)]
    assert [len(page["data"]) for page in pages_of(elements, limit=10)] == [1, 1]


def test_pages_of_small_elements_are_as_long_as_asked() -> None:
    elements = [{"id": str(number)} for number in range(7)]
    assert [len(page["data"]) for page in pages_of(elements, limit=3)] == [3, 3, 1]
