"""Which requests are answered with a page."""

import pytest

from api.responses.browsers import wants_page

BROWSER = b"text/html,application/xhtml+xml"


@pytest.mark.parametrize(
    ("path", "accept", "root_path", "is_wanted"),
    [
        ("/ui/jobs", BROWSER, "", True),
        ("/ui/jobs", b"*/*", "", False),
        ("/v1/jobs", BROWSER, "", False),
        ("/night/v1/jobs", BROWSER, "/night", False),
        ("/night/ui/jobs", BROWSER, "/night", True),
        ("/v1", BROWSER, "", True),
    ],
)
def test_browsers_get_pages_but_at_the_apis_routes_also_behind_a_path(
    path: str, accept: bytes, root_path: str, is_wanted: bool
) -> None:
    scope = {"type": "http", "path": path, "root_path": root_path, "headers": [(b"accept", accept)]}

    assert wants_page(scope) == is_wanted
