"""GET /v1/models and /v1/models/{id}."""

import openai

from conformance.expectations import expect, expect_equal, expect_id, expect_refusal
from conformance.registry import Area
from conformance.session import Session

AREA = Area("models", "GET", "/models")


@AREA.add("models are listed, and each is found by its id")
def listed_and_found(session: Session) -> None:
    page = session.client.models.list()
    expect_equal(page.object, "list", "GET /v1/models with the object")
    expect(bool(page.data), "lists no model", "lists the models it serves")
    listed = page.data[0]
    expect_equal(listed.object, "model", "a model with the object")
    model = session.client.models.retrieve(expect_id(listed.id, "a model with the id"))
    expect_equal(model.id, listed.id, "a model that is asked for by its id with the id")


@AREA.add("an unknown model is a 404")
def unknown(session: Session) -> None:
    expect_refusal(
        lambda: session.client.models.retrieve("no-such-model"), "an unknown model", openai.NotFoundError
    )
