"""What the framework refuses before a handler is asked, such as a wrong method: to a browser, a page."""

from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from api.page.page import page_of
from api.responses.browsers import wants_page
from api.responses.errors import on_http_exception
from nightshift.errors import NightshiftError


async def page_or_envelope(request: Request, error: Exception) -> Response:
    """A page to a browser that is not at one of the API's routes."""
    assert isinstance(error, HTTPException)
    if not wants_page(request.scope):
        return on_http_exception(request, error)
    page, signed_in = page_of(request), None
    with suppress(NightshiftError):  # the database is away: without navigation
        signed_in = await page.signed_in(request)
    return page.refusal(request, signed_in, error.status_code, _message(request, error), error.headers)


def _message(request: Request, error: HTTPException) -> str:
    if error.status_code == 404:
        return "There is no such page."
    if error.status_code == 405:
        return f"This address does not take {request.method} requests."
    return str(error.detail)
