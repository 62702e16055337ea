"""Which query parameters a route takes is what its document says."""

from fastapi.routing import APIRoute

from api.app import create_app
from api.dependencies import _query_parameters
from api.jobs.routes import router
from api.services.services import AppSettings


def test_every_route_takes_the_parameters_that_its_document_names() -> None:
    app = create_app(AppSettings())
    paths = app.openapi()["paths"]

    taken, documented = {}, {}
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            [method] = route.methods
            parameters = paths[route.path_format][method.lower()].get("parameters", ())
            place = f"{method} {route.path_format}"
            taken[place] = set(_query_parameters(route.dependant))
            documented[place] = {each["name"] for each in parameters if each["in"] == "query"}

    assert taken == documented
    assert any(taken.values())


def test_only_a_parameter_of_several_values_may_be_repeated() -> None:
    [jobs] = (route for route in router.routes if isinstance(route, APIRoute) and route.name == "list_jobs")

    known = _query_parameters(jobs.dependant)

    assert [name for name, may_be_repeated in known.items() if may_be_repeated] == ["status"]
