"""A digest is that of what decides an answer, and of nothing else."""

from dataclasses import replace

import pytest

from nightshift.bulk.results.row_digests import DIGEST_BYTES, RowDigests
from nightshift.fleet.models import Model, ModelKind

MODEL = Model(id="demo", kind=ModelKind.DECODER, context_length=128, revision="1", dtype="float32")
BODY = {"model": "demo", "prompt": "hi", "temperature": 0, "stop": ["a", "b"]}


def digest(body=BODY, *, tenant="acme", route="/v1/completions", model=MODEL) -> bytes:
    return RowDigests(tenant, route, model).digest_of(body)


def test_the_order_of_fields_does_not_matter() -> None:
    assert digest() == digest(dict(reversed(BODY.items())))
    assert len(digest()) == DIGEST_BYTES


@pytest.mark.parametrize(
    "other",
    [
        {"body": BODY | {"prompt": "ho"}},
        {"body": BODY | {"temperature": 0.5}},
        {"body": BODY | {"stop": ["b", "a"]}},
        {"body": {"prompt": "hi"}},
        {"tenant": "other"},
        {"route": "/v1/embeddings"},
        {"model": replace(MODEL, revision="2")},
        {"model": replace(MODEL, dtype="bfloat16")},
        {"model": replace(MODEL, context_length=64)},
    ],
)
def test_what_an_answer_depends_on_changes_the_digest(other) -> None:
    assert digest(**other) != digest()


def test_half_of_a_surrogate_pair_has_a_digest_too() -> None:
    assert digest({"prompt": "\ud83d"}) != digest({"prompt": "\ud83c"})
