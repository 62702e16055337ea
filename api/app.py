"""The composition root: `uvicorn api.app:create_app --factory`.

Only this module reads settings and opens connections for the package.
"""

import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from api.access import Authenticator
from api.jobs import controls, dead_letters, events, results
from api.jobs import routes as jobs
from api.middleware.boundary import FASTAPI_TELEMETRY, Boundary, HeadRequests, HttpMetrics, RequestHeads
from api.middleware.request_bodies import BodyLimit
from api.middleware.turns import BeginTurns
from api.openai import batches, files, inference, models, responses, uploads
from api.openapi import document
from api.operation import health, overview
from api.operation.metrics import DatabaseMetrics, Surroundings
from api.operation.processes import Processes
from api.page.page import Page, page_or_envelope
from api.page.routes import make_router
from api.responses.errors import install_error_handlers
from api.schedules import routes as schedules
from api.services.services import AppSettings, open_services, try_settings
from api.tenants import audit, keys, limits, tenants, usage
from api.webhooks import deliveries
from api.webhooks import endpoints as webhook_endpoints
from nightshift.errors import DatabaseUnavailable, DatabaseUnusable, SchemaBehind
from nightshift.process import memory
from nightshift.process.logs import set_up_logging
from nightshift.process.private_files import keep_files_private
from nightshift.process.starting import starting
from nightshift.process.tracing.opening import open_traces
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import check_schema

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""The longest that the event loop waits for each thread that runs Python before it."""

ROUTERS = (  # a request tries their routes in this order
    inference.router,
    responses.router,
    jobs.router,
    files.router,
    uploads.router,
    batches.router,
    models.router,
    controls.router,
    results.router,
    events.router,
    deliveries.router,
    dead_letters.router,
    webhook_endpoints.router,
    schedules.router,
    overview.router,
    tenants.router,
    keys.router,
    usage.router,
    limits.router,
    audit.router,
    health.router,
    make_router(),
)


def create_app(settings: AppSettings | None = None) -> FastAPI:
    """The application. Without `settings`, reads them from the environment and sets up logging."""
    is_own_process = settings is None
    if settings is None:
        settings = _own_settings()
    close_traces = open_traces("api")
    app = FastAPI(
        title="Nightshift",
        summary="Queue-based batch inference: one job model behind /v1/jobs and the OpenAI routes.",
        redirect_slashes=False,  # a redirected POST loses its body
        openapi_url=None,  # FastAPI's route encodes the document for each request; `document` adds ours
        docs_url=None,  # its page would load scripts from elsewhere; ours is in `api/page/`
        redoc_url=None,
        servers=_servers(settings),
        lifespan=_lifespan(settings, close_traces, is_own_process=is_own_process),
        telemetry=FASTAPI_TELEMETRY,
    )
    app.state.metrics = HttpMetrics()
    app.add_middleware(HeadRequests)
    app.add_middleware(BodyLimit, settings=settings.api)
    app.add_middleware(RequestHeads)
    app.add_middleware(BeginTurns, tenant_of=lambda given: app.state.authenticator.tenant_of(given))
    app.add_middleware(Boundary, metrics=app.state.metrics)  # the last added is the outermost
    install_error_handlers(app)
    app.add_exception_handler(HTTPException, page_or_envelope)
    for router in ROUTERS:
        # `include_router` would have each request look through the routers, and through the found one twice.
        app.router.routes.extend(router.routes)
    document(app)
    return app


def _own_settings() -> AppSettings:
    """Reads and checks the settings. Invalid ones end the process with one line, before the server can log a
    traceback.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with starting():
        set_up_logging("api")
        settings = AppSettings()
        keep_files_private(settings.data)
        try_settings(settings)
    return settings


def _servers(settings: AppSettings) -> list[dict[str, Any]] | None:
    """The servers of the OpenAPI document: one, where a proxy has the service under a path."""
    prefix = urlsplit(settings.api.base_url).path.rstrip("/")
    return [{"url": prefix}] if prefix else None


def _lifespan(
    settings: AppSettings, close_traces: Callable[[], None], *, is_own_process: bool
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_services(settings) as services:
            collectors = (
                DatabaseMetrics(services.store),
                Surroundings(services.queue.ping, settings.data.data_dir),
            )
            app.state.services = services
            app.state.authenticator = Authenticator(services.store, settings.quotas.defaults)
            app.state.page = Page.from_services(services, app.state.authenticator)
            for collector in collectors:
                app.state.metrics.registry.register(collector)
            app.state.processes = processes = Processes(settings.api.metrics_sockets)
            await run_in_threadpool(_report_schema, services.store.database)
            if is_own_process:
                memory.collect_less_often()  # a large body is many objects
            log.info(
                "api started", extra={"action": "api_started", "database": services.store.database.dialect}
            )
            yield
            processes.close()
            for collector in collectors:
                app.state.metrics.registry.unregister(collector)
        await run_in_threadpool(close_traces)

    return lifespan


def _report_schema(database: Database) -> None:
    """The process goes on: /readyz says it too, until the schema is mended or the migrations have run."""
    try:
        check_schema(database)
    except (DatabaseUnusable, SchemaBehind) as error:
        log.error("not ready: %s", error, extra={"action": error.code})
    except DatabaseUnavailable:
        log.warning("the database is away", extra={"action": "database_unavailable"})
