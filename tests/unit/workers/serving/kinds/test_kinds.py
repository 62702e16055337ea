"""Every endpoint, every kind of the engine and every kind of a worker fit together, and none is left over."""

from nightshift import endpoints
from nightshift.fleet.models import ModelKind
from nightshift_engine.models import KINDS
from workers.serving.kinds import SERVED_KINDS, serving


def test_every_kind_of_the_engine_is_registered_and_served_under_its_name() -> None:
    assert [kind.name for kind in KINDS] == [kind.value for kind in ModelKind]
    assert [serving(kind).model_kind.value for kind in KINDS] == [kind.name for kind in KINDS]
    assert [served.kind for served in SERVED_KINDS] == [*KINDS]


def test_every_kind_is_complete() -> None:
    for kind in KINDS:
        facts = (kind.name, kind.does, kind.serves, kind.needed, *kind.needs)
        assert all(isinstance(fact, str) and fact for fact in facts), kind.name
        assert kind.needs, kind.name
    for model_kind in ModelKind:
        assert model_kind.does, model_kind


def test_every_endpoint_names_kinds_that_exist_and_every_kind_serves_an_endpoint() -> None:
    served = {kind.model_kind for kind in SERVED_KINDS}
    for endpoint in endpoints.every():
        assert endpoint.model_kinds, endpoint.route
        assert served.issuperset(endpoint.model_kinds), endpoint.route
    assert {kind for endpoint in endpoints.every() for kind in endpoint.model_kinds} == served


def test_every_endpoint_says_what_a_row_asks_and_which_columns_come_of_it() -> None:
    for endpoint in endpoints.every():
        template = endpoint.row_template("a-model", "a text")
        request = endpoint.parse(template | ({"tokens": [5]} if endpoint.name == "detokenize" else {}))
        assert (request.model, endpoint.columns.keys() > set()) == ("a-model", True), endpoint.route
        assert endpoints.named(endpoint.name) is endpoint is endpoints.named(endpoint.route)
        assert endpoint.operation, endpoint.route
        assert endpoint.summary, endpoint.route
