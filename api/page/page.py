"""The page's parts, opened once per process, and what all of its routes do: sign-in, errors, headers."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from api.access import Authenticator
from api.page import rendering, views
from api.page.requests import is_click, is_from_elsewhere, is_update, path_and_query, token_of
from api.page.sessions import Attempts, Sessions, SignedIn
from api.page.updates import Updates
from api.responses.errors import UNKNOWN_URL, headers_of, message_of, on_http_exception, status_of, wants_page
from api.services.services import Services
from nightshift.errors import NightshiftError
from nightshift.tenants.keys import Scope


@dataclass(frozen=True)
class Page:
    """`prefix`: the path at which a proxy has the service, as `NIGHTSHIFT_BASE_URL` says; empty for none."""

    services: Services
    sessions: Sessions
    attempts: Attempts
    updates: Updates
    prefix: str

    @classmethod
    def from_services(cls, services: Services, authenticator: Authenticator) -> "Page":
        settings = services.settings.api
        return cls(
            services,
            Sessions(services.store, authenticator, settings),
            Attempts(),
            Updates(services.store),
            urlsplit(settings.base_url).path.rstrip("/"),
        )

    async def signed_in(self, request: Request) -> SignedIn | None:
        """Raises DatabaseUnavailable."""
        click = is_click(request)
        return await run_in_threadpool(self.sessions.find, token_of(request), is_click=click)

    def sign_in_form(
        self,
        request: Request,
        status: int = 200,
        problem: str | None = None,
        next_path: str | None = None,
    ) -> Response:
        """The form to sign in, which then leads to what was asked for, or to `next_path`."""
        if request.method == "POST" and problem is None:
            status, problem = 401, "Your session has ended. Nothing was changed."
        if is_update(request):  # the whole page is loaded anew, and is then this form
            return Response(status_code=401, headers={"hx-refresh": "true", **rendering.HEADERS})
        if request.method == "GET" and is_from_elsewhere(request) and token_of(request) is None:
            # The browser sends the cookie when the page itself asks again.
            return rendering.page(rendering.render("arrived.html", self.prefix, {}))
        if next_path is None:
            next_path = path_and_query(request)
        shown = {
            "title": "Sign in",
            "signed_in": None,
            "is_refusal": False,
            "problem": problem,
            "next": next_path,
        }
        return rendering.page(rendering.render("sign_in.html", self.prefix, shown), status)

    def frame(self, signed_in: SignedIn, title: str, section: str) -> Mapping[str, Any]:
        """Variables of the layout, which surrounds every view."""
        allowed = signed_in.caller.scopes
        return {
            "title": title,
            "section": section,
            "signed_in": signed_in,
            "navigation": [view for view in views.VIEWS if view.is_in_navigation and view.scope in allowed],
            "may_submit": Scope.SUBMIT in allowed,
            "is_admin": Scope.ADMIN in allowed,
            "is_refusal": False,
        }

    def error(self, request: Request, signed_in: SignedIn | None, error: NightshiftError) -> Response:
        """A page, or the live part of one, that says what is wrong."""
        status = status_of(error)
        return self.refusal(
            request,
            signed_in,
            status,
            message_of(error),
            headers_of(error),
            is_gone=status == 404 and error.code != UNKNOWN_URL,
        )

    def refusal(
        self,
        request: Request,
        signed_in: SignedIn | None,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
        *,
        is_gone: bool = False,
    ) -> Response:
        """`is_gone`: what is asked for may have been there."""
        is_get = request.method == "GET"
        shown = {
            **(
                {"signed_in": None, "title": "Error"}
                if signed_in is None
                else self.frame(signed_in, "Error", "")
            ),
            "status": status,
            "message": message,
            "again": path_and_query(request) if is_get else None,
            "is_gone": is_gone,
            "is_refusal": not (is_get and status == 503),  # else the same again: there is nothing to update
        }
        html = rendering.render("error.html", self.prefix, shown, is_part=is_update(request))
        return rendering.page(html, status, headers)


def page_of(request: Request) -> Page:
    page: Page = request.app.state.page
    return page


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
