"""What is served is asked of the database once in a while, and a new model is served at once all the same."""

import pytest

from api.jobs.catalogue import REMEMBERED_S, Catalogue
from nightshift.errors import InvalidRequest, UnknownModel
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import Endpoint
from nightshift.store import Store


class Seconds:
    """A clock that a test moves."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def catalogue(seconds: Seconds) -> Catalogue:
    return Catalogue(["/models/announced"], clock_s=seconds)


def register(store: Store, id: str, kind: ModelKind) -> None:
    with store.transaction() as tx:
        tx.workers.register_model(Model(id=id, kind=kind, context_length=512, revision="1"), tx.now())


def forget_models(store: Store) -> None:
    """Nobody does; here it tells whether the database is asked."""
    with store.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM model")


def check(store: Store, catalogue: Catalogue, name: str, endpoint: Endpoint = Endpoint.CHAT) -> None:
    with store.snapshot() as tx:
        catalogue.check(tx, name, endpoint)


def test_a_model_is_served_as_soon_as_a_worker_has_registered_it(store: Store, catalogue: Catalogue) -> None:
    register(store, "first", ModelKind.DECODER)
    check(store, catalogue, "first")
    with pytest.raises(UnknownModel, match="served are: first, announced"):
        check(store, catalogue, "second")

    register(store, "second", ModelKind.DECODER)

    check(store, catalogue, "second")


def test_what_a_model_does_is_not_held_against_it_once_a_worker_says_otherwise(
    store: Store, catalogue: Catalogue
) -> None:
    register(store, "minilm", ModelKind.DECODER)
    check(store, catalogue, "minilm")
    with pytest.raises(InvalidRequest, match="does not serve /v1/embeddings"):
        check(store, catalogue, "minilm", Endpoint.EMBEDDINGS)

    register(store, "minilm", ModelKind.ENCODER)

    check(store, catalogue, "minilm", Endpoint.EMBEDDINGS)


def test_a_model_that_was_seen_is_remembered_for_moments(
    store: Store, catalogue: Catalogue, seconds: Seconds
) -> None:
    register(store, "demo", ModelKind.DECODER)
    check(store, catalogue, "demo")
    forget_models(store)

    seconds.now_s += REMEMBERED_S - 0.1
    check(store, catalogue, "demo")

    seconds.now_s += 0.1
    with pytest.raises(UnknownModel):
        check(store, catalogue, "demo")


def test_an_announced_model_may_be_asked_for_anything_until_a_worker_says_what_it_is(
    store: Store, catalogue: Catalogue, seconds: Seconds
) -> None:
    check(store, catalogue, "announced", Endpoint.CHAT)
    check(store, catalogue, "announced", Endpoint.EMBEDDINGS)

    register(store, "announced", ModelKind.DECODER)
    seconds.now_s += REMEMBERED_S

    with pytest.raises(InvalidRequest):
        check(store, catalogue, "announced", Endpoint.EMBEDDINGS)
