"""Templates to answers: the environment, and the headers that every page has."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from api.page import assets, formats

# Nothing comes from another origin, and nothing is run that is written in the page itself.
POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
# Swagger UI has its icons in its stylesheet.
REFERENCE_POLICY: Final = f"{POLICY}; img-src 'self' data:"
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "vary": "HX-Request, Cookie",
}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("api.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(formats.FILTERS)
    return environment


def render(template: str, prefix: str, variables: Mapping[str, Any], *, is_part: bool = False) -> str:
    """A template's HTML: all of it, or the live part alone. `prefix`: the path of the service."""

    def link(path: str) -> str:
        return f"{prefix}{path}"

    def asset(name: str) -> str:
        assert name in assets.assets(), f"no such asset: {name}"
        return link(f"/ui/static/{assets.version()}/{name}")

    layout = "part.html" if is_part else "layout.html"
    return (
        _environment()
        .get_template(template)
        .render({"layout": layout, "link": link, "asset": asset, **variables})
    )


def page(html: str, status: int = 200, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    return HTMLResponse(html, status, {**HEADERS, **(headers or {})})


def said(message: str) -> Mapping[str, str]:
    """The header that has the browser show, and read out, an action's message."""
    return {"page-said": json.dumps(message)}
