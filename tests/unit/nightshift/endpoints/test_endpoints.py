"""The table of endpoints: what each must have, and what is found by its name."""

import inspect

import pytest

from nightshift import endpoints
from nightshift.bulk.rows.templates import columns
from nightshift.endpoints import Endpoint
from nightshift.endpoints.encoders.classifications import Classifications
from nightshift.endpoints.encoders.embeddings import Embeddings
from nightshift.endpoints.encoders.encoding import EncoderEndpoint
from nightshift.endpoints.encoders.scoring import ScoringEndpoint
from nightshift.endpoints.texts.chat import Chat
from nightshift.endpoints.texts.choices import ChoicesEndpoint


@pytest.mark.parametrize(
    ("endpoint", "names"),
    [
        ("/v1/chat/completions", ["v1/chat/completions", "chat/completions", "chat"]),
        ("/v1/completions", ["completions"]),
        ("/v1/embeddings", ["embeddings"]),
    ],
)
def test_an_endpoint_is_named_by_its_route_or_in_short(endpoint, names):
    assert {endpoints.named(name).route for name in (endpoint, *names)} == {endpoint}


@pytest.mark.parametrize("name", ["", "/", "chats", "/v1/images", "/v2/embeddings", "v1"])
def test_an_unknown_endpoint_is_answered_with_the_known_ones(name):
    with pytest.raises(ValueError, match=r"unknown endpoint .*/v1/chat/completions.*/v1/embeddings"):
        endpoints.named(name)


def parts(kind: type[Endpoint]) -> list[str]:
    """Abstract methods, and attributes without a value."""
    names = {name for base in kind.__mro__ for name in inspect.get_annotations(base)}
    return sorted({*kind.__abstractmethods__, *(name for name in names if not hasattr(kind, name))})


@pytest.mark.parametrize(
    ("base", "complete", "part"),
    [
        (base, complete, part)
        for base, complete in (
            (Endpoint, Chat),
            (ChoicesEndpoint, Chat),
            (EncoderEndpoint, Embeddings),
            (ScoringEndpoint, Classifications),
        )
        for part in parts(base)
    ],
)
def test_an_endpoint_cannot_be_made_without_any_of_its_parts(base, complete, part):
    have = {name: getattr(complete, name) for name in parts(base) if name != part}
    incomplete = type("Incomplete", (base,), have)

    with pytest.raises(TypeError, match=rf"(abstract method|has no attribute) '?{part}'?"):
        incomplete()


@pytest.mark.parametrize("endpoint", endpoints.every(), ids=lambda endpoint: endpoint.name)
def test_a_row_made_of_a_column_is_a_request_of_the_endpoint(endpoint):
    text = [5, 6, 7] if endpoint.name == "detokenize" else "some text"
    body = endpoint.row_template("m", text)

    other_columns = sum(len(f"{{{{{name}}}}}") for name in columns(body))
    assert endpoint.parse(body).text_chars == len(text) + other_columns
    endpoint.check_line(body)
    assert endpoint.values({}) == dict.fromkeys(endpoint.columns), "there was no answer"


def test_no_two_endpoints_share_a_route_a_name_an_operation_or_a_module():
    identities = [
        (endpoint.route, endpoint.name, endpoint.operation, inspect.getmodule(type(endpoint)))
        for endpoint in endpoints.every()
    ]
    for values in zip(*identities, strict=True):
        assert len(set(values)) == len(values), values


@pytest.mark.parametrize(
    ("template", "size"),
    [
        ({"input": "{{text}}"}, 384),
        ({"input": "{{text}}", "dimensions": 64}, 64),
        ({"input": "{{text}}", "dimensions": None}, 384),
        ({"input": "{{text}}", "dimensions": "{{size}}"}, None),
        (None, None),  # rows are requests
    ],
)
def test_rows_have_vectors_of_one_size_if_no_row_can_ask_for_another(template, size):
    assert Embeddings().vector_size(template, 384) == size
