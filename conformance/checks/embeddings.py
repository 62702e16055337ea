"""POST /v1/embeddings."""

import base64
import math
from typing import Any, Final

from conformance.expectations import expect, expect_count, expect_equal, expect_list, expect_refusal, shown
from conformance.registry import Area
from conformance.session import Session

AREA = Area("embeddings", "POST", "/embeddings")
TEXTS: Final = ["one", "two two", "three three three"]
TOLERANCE: Final = 1e-3  # relative, per number, between two answers to one text


@AREA.add("the client's default encoding (base64) becomes floats")
def default_encoding(session: Session) -> None:
    answer = session.client.embeddings.create(model=session.embedding_model, input=TEXTS)
    expect_equal(answer.object, "list", "embeddings with the object")
    _expect_vectors(answer.data, len(TEXTS))
    expect_count(answer.usage.prompt_tokens, "usage.prompt_tokens")
    expect_count(answer.usage.total_tokens, "usage.total_tokens")


@AREA.add("float and base64 are the same vectors")
def encodings_agree(session: Session) -> None:
    ask = session.client.embeddings.create
    floats = ask(model=session.embedding_model, input=TEXTS[0], encoding_format="float").data[0].embedding
    default = ask(model=session.embedding_model, input=TEXTS[0]).data[0].embedding
    expect(isinstance(floats, list), f"answers floats with {shown(floats)}", "answers a list of numbers")
    expect(
        len(floats) == len(default)
        and all(
            math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
            for one, other in zip(floats, default, strict=True)
        ),
        "answers one text with two vectors, as floats and as base64",
        "answers the same vector in either encoding",
    )


@AREA.add("base64 is little-endian float32 when it is asked for")
def base64_asked_for(session: Session) -> None:
    answer = session.client.embeddings.create(
        model=session.embedding_model, input=TEXTS[0], encoding_format="base64"
    )
    text = answer.data[0].embedding
    expect(isinstance(text, str), f"answers base64 with {shown(text)}", "answers a text in base64")
    size = len(base64.b64decode(text, validate=True))
    expect(size > 0 and size % 4 == 0, f"answers {size} bytes", "answers 4 bytes for every number")


@AREA.add("vectors come in the order of the inputs")
def order(session: Session) -> None:
    ask = session.client.embeddings.create
    together = ask(model=session.embedding_model, input=TEXTS, encoding_format="float").data
    alone = ask(model=session.embedding_model, input=TEXTS[2], encoding_format="float").data[0].embedding
    places = [item.index for item in together]
    expect(places == [0, 1, 2], f"answers the indexes {shown(places)}", "answers [0, 1, 2]")
    distances = [math.dist(item.embedding, alone) for item in together]
    expect(distances[2] == min(distances), "answers vectors in another order", "keeps the inputs' order")


@AREA.add("token ids can be embedded")
def token_ids(session: Session) -> None:
    ask = session.client.embeddings.create
    _expect_vectors(ask(model=session.embedding_model, input=[1, 2, 3]).data, 1)
    _expect_vectors(ask(model=session.embedding_model, input=[[1, 2], [3]]).data, 2)


@AREA.add("an empty list of inputs is refused")
def empty(session: Session) -> None:
    expect_refusal(
        lambda: session.client.embeddings.create(model=session.embedding_model, input=[]), "an empty input"
    )


def _expect_vectors(data: Any, count: int) -> None:
    items = expect_list(data, "embeddings with the data")
    expect(len(items) == count, f"answers {len(items)} vectors for {count} inputs", "answers one for each")
    for item in items:
        vector = item.embedding
        is_vector = isinstance(vector, list) and vector and all(isinstance(x, float | int) for x in vector)
        expect(bool(is_vector), f"answers the vector {shown(vector)}", "answers a vector of numbers")
