"""The page's routes: a GET for each view, a POST for each of its actions, and what they share."""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fastapi import APIRouter
from sse_starlette import ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from api.page import assets, rendering, sign_in, views
from api.page.page import Page, page_of
from api.page.requests import check_csrf, check_origin, check_url, form_of, is_update, token_of, wants_json
from api.page.sessions import SignedIn
from api.page.view import Action, Context, LoadData, Outcome, PageRequest, View
from api.responses.errors import UNKNOWN_URL, error_response
from api.responses.streams import event, event_source
from nightshift.errors import MissingScope, NightshiftError, NotAuthenticated, NotFound
from nightshift.jobs import JsonObject
from nightshift.tenants.keys import Scope

Handler = Callable[[Request], Awaitable[Response]]

CHANGED: Final = "changed"  # the stream's events
SIGNED_OUT: Final = "signed_out"
UNTIL_CHECKED: Final = 10  # events of a stream between looks at its session


@dataclass(frozen=True)
class _Visit:
    """A request by someone who is signed in."""

    request: Request
    page: Page
    signed_in: SignedIn

    def page_request(self, form: Mapping[str, str] | None = None) -> PageRequest:
        return PageRequest(
            caller=self.signed_in.caller,
            services=self.page.services,
            path=self.request.path_params,
            query=dict(self.request.query_params),
            form=form or {},
        )

    def check_scope(self, needed: Scope) -> None:
        """Raises MissingScope."""
        if needed not in self.signed_in.caller.scopes:
            raise MissingScope(
                f"Your API key does not have the scope '{needed}' that {self.request.method} "
                f"{self.request.url.path} needs. It has: {', '.join(sorted(self.signed_in.caller.scopes))}."
            )

    async def shown(self, view: View, page_request: PageRequest, outcome: Outcome | None = None) -> Response:
        """The view as it is now, after an action if there was one. Raises NightshiftError."""
        now, loaded = await run_in_threadpool(self._loaded, view, page_request)
        if view.read_objects is not None:
            read = view.read_objects
            storage = self.page.services.storage_threads.for_tenant(self.signed_in.caller.tenant_id)
            more = await storage.run(lambda: read(page_request, loaded))
            loaded = {**loaded, **more}
        return await run_in_threadpool(self._rendered, view, page_request, now, loaded, outcome)

    def data(self, load: LoadData) -> JsonObject:
        with self.page.services.store.snapshot() as tx:
            return load(tx, self.page_request(), tx.now())

    def _loaded(self, view: View, page_request: PageRequest) -> tuple[datetime, Context]:
        with self.page.services.store.snapshot() as tx:
            now = tx.now()
            return now, view.load(tx, page_request, now)

    def _rendered(
        self, view: View, page_request: PageRequest, now: datetime, loaded: Context, outcome: Outcome | None
    ) -> Response:
        variables = {
            **self.page.frame(self.signed_in, view.title, view.section or view.path),
            "request": page_request,
            "now": now,
            "here": view.path.format(**page_request.path),
            "said": None if outcome is None else outcome.message,
            **loaded,
            **({} if outcome is None else outcome.context),
        }
        is_part = is_update(self.request)
        html = rendering.render(view.template, self.page.prefix, variables, is_part=is_part)
        headers = rendering.said(outcome.message) if outcome is not None and is_part else None
        return rendering.page(html, headers=headers)


def make_router() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    router.routes.extend(sign_in.router.routes)
    router.add_api_route("/docs", _reference, methods=["GET"])
    router.add_api_route("/favicon.ico", _favicon, methods=["GET"])
    router.add_api_route("/ui/static/{version}/{name:path}", _static, methods=["GET"])
    router.add_api_route("/ui/updates", _updates, methods=["GET"])
    for view in views.VIEWS:
        router.add_api_route(view.path, _view_handler(view), methods=["GET"])
        for path, load in view.data.items():
            router.add_api_route(path, _data_handler(view, load), methods=["GET"])
        for action in view.actions:
            path = view.path.rstrip("/") + action.path
            router.add_api_route(path, _action_handler(view, action), methods=["POST"])
    router.add_api_route("/ui", _to_overview, methods=["GET"])
    router.add_api_route("/ui/{rest:path}", _unknown, methods=["GET"])
    return router


def _view_handler(view: View) -> Handler:
    async def show(request: Request) -> Response:
        async def answer(visit: _Visit) -> Response:
            visit.check_scope(view.scope)
            return await visit.shown(view, visit.page_request())

        return await _visited(request, answer)

    return show


def _data_handler(view: View, load: LoadData) -> Handler:
    async def answer(request: Request) -> Response:
        page = page_of(request)
        try:
            check_url(request)
            signed_in = await page.signed_in(request)
            if signed_in is None:
                raise NotAuthenticated("You are not signed in to the page.")
            visit = _Visit(request, page, signed_in)
            visit.check_scope(view.scope)
            return JSONResponse(await run_in_threadpool(visit.data, load), headers=rendering.HEADERS)
        except NightshiftError as error:
            return error_response(error)

    return answer


def _action_handler(view: View, action: Action) -> Handler:
    async def act(request: Request) -> Response:
        async def answer(visit: _Visit) -> Response:
            check_origin(request, visit.page.services.settings.api.base_url)
            form = await form_of(request)
            check_csrf(form, visit.signed_in)
            visit.check_scope(action.scope)
            page_request = visit.page_request(form)
            outcome = await _done(action, page_request)
            return await _after(visit, view, page_request, outcome)

        return await _visited(request, answer, view.path.format(**request.path_params))

    return act


async def _visited(
    request: Request, answer: Callable[[_Visit], Awaitable[Response]], afterwards: str | None = None
) -> Response:
    """Answers someone who is signed in with `answer`, and others with the form to do so. Errors are pages.

    `afterwards`: the path to show after the sign-in, where it is not the request's own.
    """
    if wants_json(request):
        raise HTTPException(404)
    page, signed_in = page_of(request), None
    try:
        check_url(request)
        signed_in = await page.signed_in(request)
        if signed_in is None:
            return page.sign_in_form(request, next_path=afterwards)
        return await answer(_Visit(request, page, signed_in))
    except NightshiftError as error:
        return page.error(request, signed_in, error)


async def _done(action: Action, page_request: PageRequest) -> Outcome:
    if inspect.iscoroutinefunction(action.act):
        outcome: Outcome = await action.act(page_request)
        return outcome
    done = await run_in_threadpool(action.act, page_request)
    assert isinstance(done, Outcome)
    return done


async def _after(visit: _Visit, view: View, page_request: PageRequest, outcome: Outcome) -> Response:
    """Answers an action with the view and the action's message, or leads to another page."""
    if outcome.location is None and (outcome.context or is_update(visit.request)):
        return await visit.shown(view, page_request, outcome)
    target = visit.page.prefix + (
        outcome.location or view.path.format(**page_request.path) + page_request.query_with()
    )
    if is_update(visit.request):
        return Response(status_code=204, headers={"hx-redirect": target, **rendering.HEADERS})
    return RedirectResponse(target, 303, rendering.HEADERS)


async def _updates(request: Request) -> Response:
    """Events without content whenever something may have changed, until the session ends."""
    page = page_of(request)
    try:
        signed_in = await page.signed_in(request)
        if signed_in is None:
            return Response(status_code=401)
        page.updates.check_room(signed_in.token_sha256, signed_in.caller.tenant_id)
    except NightshiftError as error:
        return error_response(error)
    return event_source(_told(page, token_of(request), signed_in))


async def _told(page: Page, token: str | None, signed_in: SignedIn) -> AsyncGenerator[ServerSentEvent, None]:
    told = 0
    async for _ in page.updates.follow(signed_in.token_sha256, signed_in.caller.tenant_id):
        told += 1
        if told % UNTIL_CHECKED == 0 and not await _is_signed_in(page, token):
            yield event("", type=SIGNED_OUT)
            return
        yield event("", type=CHANGED)


async def _is_signed_in(page: Page, token: str | None) -> bool:
    try:
        return await run_in_threadpool(page.sessions.find, token, is_click=False) is not None
    except NightshiftError:  # the database is away; the page itself will see
        return True


async def _static(request: Request) -> Response:
    asset = assets.assets().get(request.path_params["name"])
    if asset is None:
        raise HTTPException(404)
    if request.path_params["version"] != assets.version():  # a page of another release is still open
        return asset.answer(request, "no-cache")
    return asset.answer(request)


async def _reference(request: Request) -> Response:
    """The OpenAPI document, to read and to try. A key that is typed there is forgotten with the page."""
    if wants_json(request):
        raise HTTPException(404)
    html = rendering.render("reference.html", page_of(request).prefix, {})
    return rendering.page(html, headers={"content-security-policy": rendering.REFERENCE_POLICY})


async def _favicon(request: Request) -> Response:
    return assets.assets()["favicon.ico"].answer(request, "public, max-age=86400")


async def _to_overview(request: Request) -> Response:
    return RedirectResponse(f"{page_of(request).prefix}/", 308)


async def _unknown(request: Request) -> Response:
    async def answer(visit: _Visit) -> Response:
        raise NotFound("There is no such page.", code=UNKNOWN_URL)

    return await _visited(request, answer)
