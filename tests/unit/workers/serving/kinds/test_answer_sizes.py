"""The estimate of an answer's size is above every answer that may come of the request, at every endpoint."""

import json
import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift import endpoints
from nightshift.endpoints import Endpoint
from nightshift.endpoints.encoders.embeddings import Embeddings
from nightshift.endpoints.encoders.scoring import Scored, ScoringEndpoint, ScoringRequest
from nightshift.endpoints.endpoint import check_sizes
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.results import Identity, Origin, Result
from nightshift.endpoints.texts.generation import Choice, GenerationRequest, TextEndpoint
from nightshift.endpoints.texts.logprobs import Chance, Chosen, Ranked, by_token_id, id_name
from nightshift.endpoints.texts.streams import AnswerHead
from nightshift.endpoints.tokenizers.endpoint import TokenizerEndpoint, TokenizerRequest
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model, ModelKind, OutputSizes
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.priorities import PriorityClass
from workers.serving.kinds.answer_sizes import label_sizes, token_sizes

CONTEXT: Final = 12  # tokens
IDENTITY: Final = Identity("job_a", 1_800_000_000)
PRIORITY: Final = PriorityClass.INTERACTIVE

TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
TOKENS: Final = st.one_of(st.binary(min_size=1, max_size=6), TEXTS.map(str.encode))
FLOATS: Final = st.floats(width=32, allow_nan=False, allow_infinity=False)


def a_model(kind: ModelKind, **facts: Any) -> Model:
    return Model(id="m", kind=kind, revision="r", context_length=CONTEXT, **facts)


def json_bytes(body: JsonObject) -> int:
    return len(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())


def bound(endpoint: Endpoint, request: ModelRequest, model: Model) -> int:
    size = endpoint.answer_size(request, model)
    assert size is not None, f"{endpoint} knows no bound"
    return size.total_bytes


TEXT_BODIES: Final[dict[str, JsonObject]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "é"}]},
    "/v1/completions": {"prompt": ["a", "b"]},
    "/v1/responses": {"input": "é", "instructions": "é\n", "metadata": {"é": '"'}},
}


def text_request(endpoint: Endpoint, n: int, alternatives: int | None) -> GenerationRequest:
    body = {"model": "m", **TEXT_BODIES[endpoint.route]}
    if endpoint.route != "/v1/responses":
        body["n"] = n
    if alternatives is not None:
        body |= {
            "/v1/chat/completions": {"logprobs": True, "top_logprobs": alternatives},
            "/v1/completions": {"logprobs": min(alternatives, 5)},
            "/v1/responses": {"include": ["message.output_text.logprobs"], "top_logprobs": alternatives},
        }[endpoint.route]
    request = endpoint.parse(body)
    assert isinstance(request, GenerationRequest)
    return request


@pytest.mark.parametrize("route", TEXT_BODIES)
@given(st.data())
def test_no_text_with_its_log_probabilities_is_larger(route: str, data: st.DataObject) -> None:
    endpoint = endpoints.get(route)
    assert isinstance(endpoint, TextEndpoint)
    vocabulary = data.draw(st.lists(TOKENS, min_size=1, max_size=8))
    request = text_request(
        endpoint, data.draw(st.integers(1, 3)), data.draw(st.sampled_from([None, 0, 1, 20]))
    )
    model = a_model(
        ModelKind.DECODER, output_sizes=token_sizes(range(len(vocabulary)), vocabulary.__getitem__)
    )
    answers = st.lists(st.sampled_from(vocabulary), min_size=CONTEXT, max_size=CONTEXT)
    name = data.draw(st.sampled_from([bytes, lambda token: id_name(vocabulary.index(token))]))
    choices = [_choice(endpoint, request, data.draw(answers), name) for _ in range(request.num_choices)]

    head = AnswerHead(IDENTITY.id(endpoint.id_prefix), IDENTITY.created_s, PRIORITY)
    usage = Usage(10**9, 10**9, 10**9)
    body = endpoint.answer(request, head, choices=choices, usage=usage)

    assert json_bytes(body) <= bound(endpoint, request, model)


def _choice(
    endpoint: TextEndpoint,
    request: GenerationRequest,
    tokens: Sequence[bytes],
    name: Callable[[bytes], bytes],
) -> Choice:
    alternatives = request.logprobs_asked
    text = b"".join(tokens).decode(errors="replace")
    if alternatives is None:
        return Choice(text, "length", None)
    chances = [Chance(name(token), -9876.123456789012) for token in tokens]
    top = [chances[n % len(chances)] for n in range(alternatives)]
    return Choice(text, "length", endpoint.logprobs([Chosen(chance, top, 10**6) for chance in chances]))


@given(st.lists(st.lists(FLOATS, min_size=5, max_size=5), min_size=1, max_size=4), st.booleans())
def test_no_list_of_vectors_is_larger(vectors: list[list[float]], is_float: bool) -> None:
    endpoint = Embeddings()
    encoding = "float" if is_float else "base64"
    request = endpoint.parse({"model": "m", "input": ["é"] * len(vectors), "encoding_format": encoding})
    body = endpoint.answer(request, [array("f", vector).tobytes() for vector in vectors], 10**9, 10**9)

    assert json_bytes(body) <= bound(endpoint, request, a_model(ModelKind.ENCODER, dimensions=5))


LISTS: Final[dict[str, tuple[str, JsonObject]]] = {
    "/v1/classifications": ("input", {"top_k": 2}),
    "/v1/classify": ("input", {}),
    "/v1/moderations": ("input", {}),
    "/v1/rerank": ("documents", {"query": "q", "return_documents": True}),
    "/v1/score": ("text_2", {"text_1": "a"}),
}


@pytest.mark.parametrize("route", LISTS)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=4),
    names=st.lists(TEXTS, min_size=1, max_size=5),
    data=st.data(),
)
def test_no_list_of_scores_is_larger(
    route: str, texts: list[str], names: list[str], data: st.DataObject
) -> None:
    endpoint, (field, more) = endpoints.get(route), LISTS[route]
    assert isinstance(endpoint, ScoringEndpoint)
    request = endpoint.parse(
        {"model": "m", field: texts, **(more if data.draw(st.booleans()) else _needed(more))}
    )
    assert isinstance(request, ScoringRequest)
    labels = names if LISTS[route][0] == "input" else names[:1]
    scores = st.lists(FLOATS, min_size=len(labels), max_size=len(labels)).map(
        lambda scores: array("f", scores).tobytes()
    )
    scored = Scored(IDENTITY, labels, [data.draw(scores) for _ in texts], 10**9)
    result: Result = endpoint.result(request, scored)

    body = endpoint.body_of(Origin(IDENTITY, "m", PRIORITY), result)

    model = a_model(ModelKind.CLASSIFIER, output_sizes=label_sizes(labels))
    assert json_bytes(body) <= bound(endpoint, request, model)


def _needed(fields: JsonObject) -> JsonObject:
    return {name: value for name, value in fields.items() if name not in ("top_k", "return_documents")}


class Letters:
    """A tokenizer with a token for each byte, as the endpoints that show tokens need it."""

    context_length = 10**6

    def token_ids(self, prompt: Any, **options: bool) -> list[int]:
        text = prompt if isinstance(prompt, str) else f"{prompt.messages}{prompt.tools}"
        return [*text.encode()]

    def name(self, token_id: int) -> str:
        return bytes([token_id]).decode(errors="replace")

    def text(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")


TOKENIZED: Final[dict[str, JsonObject]] = {
    "/v1/tokenize": {"return_token_strs": True},
    "/v1/detokenize": {},
}


@pytest.mark.parametrize("route", TOKENIZED)
@given(text=TEXTS, in_chat=st.booleans())
def test_no_list_of_tokens_is_larger(route: str, text: str, in_chat: bool) -> None:
    endpoint = endpoints.get(route)
    assert isinstance(endpoint, TokenizerEndpoint)
    asks: JsonObject = {"tokens": [*text.encode()]}
    if route == "/v1/tokenize":
        asks = {"messages": [{"role": "user", "content": text}]} if in_chat else {"prompt": text}
    request = endpoint.parse({"model": "m", **asks, **TOKENIZED[route]})
    assert isinstance(request, TokenizerRequest)
    body = endpoint.result(request, Letters()).body
    assert body is not None

    model = a_model(ModelKind.DECODER, output_sizes=token_sizes(range(256), lambda id: bytes([id])))
    assert json_bytes(body) <= bound(endpoint, request, model)


SCORED: Final[dict[str, JsonObject]] = {
    "/v1/chat/completions": {"prompt_logprobs": 1, "return_token_ids": True},
    "/v1/completions": {
        "prompt_logprobs": 1,
        "echo": True,
        "logprobs": 1,
        "max_tokens": 0,
        "return_token_ids": True,
    },
}


@pytest.mark.parametrize("route", SCORED)
@given(text=TEXTS, n=st.integers(1, 3))
def test_no_scored_prompt_is_larger(route: str, text: str, n: int) -> None:
    endpoint = endpoints.get(route)
    assert isinstance(endpoint, TextEndpoint)
    is_chat = route == "/v1/chat/completions"
    asks = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
    request = endpoint.parse({"model": "m", "n": n, **asks, **SCORED[route]})
    assert isinstance(request, GenerationRequest)
    tokens = [bytes([byte]) for byte in text.encode()][:CONTEXT]
    chances = [Chance(token, -9876.123456789012) for token in tokens]
    places = [
        by_token_id([Ranked(150_000 + at, chance, 150_000) for at in range(2)])
        for at, chance in enumerate(chances)
    ]
    logprobs = None if is_chat else endpoint.logprobs([Chosen(c, [c], 10**6) for c in chances])
    ids = [9_999_999] * len(tokens)
    choice = Choice("" if is_chat else text, "length", logprobs, (), "", [None, *places], ids, ids)
    body = endpoint.answer(
        request,
        AnswerHead(IDENTITY.id(endpoint.id_prefix), IDENTITY.created_s, PRIORITY),
        choices=[choice] * n,
        usage=Usage(10**9, 10**9, 10**9),
    )

    model = a_model(ModelKind.DECODER, output_sizes=token_sizes(range(256), lambda id: bytes([id])))
    assert json_bytes(body) <= bound(endpoint, request, model)


def test_every_endpoint_is_tried_here() -> None:
    tried = {*TEXT_BODIES, *LISTS, *TOKENIZED, "/v1/embeddings"}
    assert {endpoint.route for endpoint in endpoints.every()} == tried


BYTES_MAX: Final = 200_000
SIZES: Final = OutputSizes(token=10, logprob=100, label=50, labels=500)


@pytest.mark.parametrize(
    ("route", "fields", "named"),
    [
        (
            "/v1/chat/completions",
            {"n": 128, "logprobs": True, "top_logprobs": 20, "max_tokens": 9},
            ["'n' 128", "'max_tokens' 9", "'top_logprobs' 20"],
        ),
        ("/v1/completions", {"n": 64, "logprobs": 5}, ["'n' 64", "'prompt' 2", "'logprobs' 5"]),
        ("/v1/embeddings", {"input": ["a"] * 900}, ["'input' 900", "'dimensions' 100", "float"]),
        ("/v1/classifications", {"input": ["a"] * 900}, ["'input' 900"]),
    ],
)
def test_a_refusal_names_what_makes_the_answer_large_and_what_fits(
    route: str, fields: JsonObject, named: list[str]
) -> None:
    endpoint = endpoints.get(route)
    body = {"model": "m", **TEXT_BODIES.get(route, {}), **fields}
    [kind, *_] = endpoint.model_kinds
    model = a_model(kind, dimensions=100, output_sizes=SIZES)

    with pytest.raises(InvalidRequest) as refused:
        check_sizes(endpoint, endpoint.parse(body), model, BYTES_MAX)

    assert refused.value.code == "answer_too_large"
    said, advice = refused.value.message.split("Beside the others, ")
    assert all(text in said for text in [*named, f"at most {BYTES_MAX} are accepted"])
    fitting = re.findall(r"'(\w+)' ([0-9]+)", advice)
    assert fitting
    for name, count in fitting:
        value = body[name][: int(count)] if isinstance(body.get(name), list) else int(count)
        check_sizes(endpoint, endpoint.parse(body | {name: value}), model, BYTES_MAX)


def test_an_ordinary_answer_of_a_long_context_is_not_refused() -> None:
    chat = endpoints.get("/v1/chat/completions")
    request = chat.parse({"model": "m", **TEXT_BODIES["/v1/chat/completions"]})
    spaces = OutputSizes(token=131, logprob=800)  # tokenizers have tokens of 128 spaces
    model = Model(id="m", kind=ModelKind.DECODER, revision="r", context_length=131_072, output_sizes=spaces)

    check_sizes(chat, request, model, 64 * 1024 * 1024)
