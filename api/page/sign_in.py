"""Signing in with an API key, and out again."""

from typing import Final
from urllib.parse import urlsplit

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from api.page import rendering
from api.page.page import Page, page_of
from api.page.requests import COOKIE, check_csrf, check_origin, check_url, form_of, token_of
from api.responses.errors import message_of, status_of
from nightshift.errors import NightshiftError, NotAuthenticated, TenantDisabled

router = APIRouter(include_in_schema=False)

PATH: Final = "/ui/sign_in"


@router.get(PATH, response_model=None)
async def show_form(request: Request) -> Response:
    return page_of(request).sign_in_form(request)


@router.post(PATH, response_model=None)
async def sign_in(request: Request) -> Response:
    page, next_path = page_of(request), "/"
    try:
        check_url(request)
        check_origin(request, page.services.settings.api.base_url)
        form = await form_of(request)
        next_path = _local(form.get("next", ""))
        token = await _token(page, request, form.get("key", "").strip())
    except NightshiftError as error:
        return page.sign_in_form(request, status_of(error), message_of(error), next_path)
    answer = RedirectResponse(page.prefix + next_path, 303, rendering.HEADERS)
    _set_cookie(answer, request, page, token)
    return answer


@router.post("/ui/sign_out", response_model=None)
async def sign_out(request: Request) -> Response:
    page = page_of(request)
    try:
        check_origin(request, page.services.settings.api.base_url)
        token, signed_in = token_of(request), await page.signed_in(request)
        if token is not None and signed_in is not None:
            check_csrf(await form_of(request), signed_in)
            await run_in_threadpool(page.sessions.end, token)
    except NightshiftError as error:
        return page.error(request, None, error)
    answer = RedirectResponse(f"{page.prefix}/", 303, rendering.HEADERS)
    answer.delete_cookie(COOKIE, path=f"{page.prefix}/")
    return answer


async def _token(page: Page, request: Request, key: str) -> str:
    """Raises NotAuthenticated, TenantDisabled, TooManyRequests."""
    address = request.client.host if request.client else ""
    await page.attempts.check(address)
    try:
        return await run_in_threadpool(page.sessions.begin, key)
    except (NotAuthenticated, TenantDisabled):
        await page.attempts.failed(address)
        raise


def _set_cookie(answer: Response, request: Request, page: Page, token: str) -> None:
    api = page.services.settings.api
    answer.set_cookie(
        COOKIE,
        token,
        max_age=int(api.page_session_s),
        path=f"{page.prefix}/",
        secure="https" in (request.url.scheme, urlsplit(api.base_url).scheme),
        httponly=True,
        samesite="strict",
    )


def _local(path: str) -> str:
    """A path of the page, whatever the form says."""
    try:
        parts = urlsplit(path)
    except ValueError:  # such as of half an IPv6 address
        return "/"
    is_ours = parts.path == "/" or parts.path.startswith("/ui/")
    if parts.scheme or parts.netloc or not is_ours or "\\" in path or not path.isprintable():
        return "/"
    return f"{parts.path}?{parts.query}" if parts.query else parts.path
