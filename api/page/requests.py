"""Properties of a browser's request that decide its answer: its cookie, its origin, what it can show."""

import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from api.page.sessions import SignedIn
from api.responses.errors import route_path
from nightshift.errors import InvalidRequest, PermissionDenied

COOKIE: Final = "nightshift_session"
CSRF_FIELD: Final = "csrf"
FORM_FIELDS_MAX: Final = 50
SAME_ORIGIN: Final = ("same-origin", "none")  # none: typed, or a bookmark


def token_of(request: Request) -> str | None:
    return request.cookies.get(COOKIE)


def is_update(request: Request) -> bool:
    """Whether htmx asks, which puts the answer into a page that is open."""
    return request.headers.get("hx-request") == "true"


def is_click(request: Request) -> bool:
    """Whether a person asks, rather than an open page that shows what has changed."""
    return "page-live" not in request.headers


def wants_json(request: Request) -> bool:
    """Whether this is a client of the API at the wrong path, rather than a browser."""
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def is_from_elsewhere(request: Request) -> bool:
    """Whether a link on another site led here: the browser then keeps the cookie back."""
    return request.headers.get("sec-fetch-site") == "cross-site"


def check_origin(request: Request, base_url: str) -> None:
    """Raises PermissionDenied for a form on another site's page."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin") or request.headers.get("referer")
    if site is not None and site not in SAME_ORIGIN:
        raise _from_elsewhere()
    if origin is not None:
        ours = {request.headers.get("host", ""), urlsplit(base_url).netloc}
        if _netloc(origin) not in ours:
            raise _from_elsewhere()


def _netloc(url: str) -> str | None:
    """The network location of a URL; None for a text that is no URL."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return None


def check_csrf(form: Mapping[str, str], signed_in: SignedIn) -> None:
    """Raises PermissionDenied for a form that was not shown to this session."""
    sent = form.get(CSRF_FIELD, "")
    if not hmac.compare_digest(sent.encode(), signed_in.csrf_token.encode()):
        raise PermissionDenied(
            "This form is of another session. Load the page again.", code="wrong_csrf_token"
        )


def _from_elsewhere() -> PermissionDenied:
    return PermissionDenied("This form was sent by a page of another site.", code="wrong_origin")


def path_and_query(request: Request) -> str:
    query = request.url.query
    return route_path(request.scope) + (f"?{query}" if query else "")


def check_url(request: Request) -> None:
    """Raises InvalidRequest."""
    if "\0" in request.url.path or b"%00" in request.scope["query_string"]:
        raise InvalidRequest("A URL may not contain NUL characters.")


async def form_of(request: Request) -> Mapping[str, str]:
    """The fields of a form. Raises InvalidRequest for NUL characters."""
    async with request.form(max_files=0, max_fields=FORM_FIELDS_MAX) as form:
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
    if any("\0" in text for text in (*fields, *fields.values())):
        raise InvalidRequest("A form may not contain NUL characters.")
    return fields
