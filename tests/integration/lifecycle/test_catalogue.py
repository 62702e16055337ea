"""The models are read from the database once in a while, and a new model is served at once all the same."""

from datetime import timedelta

import pytest

from nightshift.errors import InvalidRequest, UnknownModel
from nightshift.fleet.models import Model, ModelKind
from nightshift.fleet.workers import ExitCause, WorkerState
from nightshift.lifecycle.catalogue import CACHED_S, RESTARTED_WITHIN, CachedCatalogue
from nightshift.store import Store
from tests.helpers.fakes import a_worker


class Seconds:
    """A clock that a test moves."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def catalogue(seconds: Seconds) -> CachedCatalogue:
    return CachedCatalogue(["/models/announced"], clock_s=seconds)


def register(store: Store, id: str, kind: ModelKind) -> None:
    with store.transaction() as tx:
        tx.workers.register_model(Model(id=id, kind=kind, context_length=512, revision="1"), tx.now())
        tx.workers.register(a_worker(id=f"worker of {id}", models=(id,), heartbeat_at=tx.now()))


def forget_models(store: Store) -> None:
    """The service never does this; here it shows whether the database is read."""
    with store.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM model")


def check(
    store: Store, catalogue: CachedCatalogue, name: str, endpoint: str = "/v1/chat/completions"
) -> None:
    with store.snapshot() as tx:
        catalogue.check(tx, name, endpoint)


def test_a_model_is_served_as_soon_as_a_worker_has_registered_it(
    store: Store, catalogue: CachedCatalogue
) -> None:
    register(store, "first", ModelKind.DECODER)
    check(store, catalogue, "first")
    with pytest.raises(UnknownModel, match="Models that are served: first, announced"):
        check(store, catalogue, "second")

    register(store, "second", ModelKind.DECODER)

    check(store, catalogue, "second")


def test_a_model_that_is_registered_as_another_kind_serves_what_that_kind_does(
    store: Store, catalogue: CachedCatalogue
) -> None:
    register(store, "minilm", ModelKind.DECODER)
    check(store, catalogue, "minilm")
    with pytest.raises(
        InvalidRequest, match="does not serve /v1/embeddings: its kind is decoder, and that needs encoder"
    ):
        check(store, catalogue, "minilm", "/v1/embeddings")

    register(store, "minilm", ModelKind.ENCODER)

    check(store, catalogue, "minilm", "/v1/embeddings")


def test_a_served_model_is_not_read_again_for_some_seconds(
    store: Store, catalogue: CachedCatalogue, seconds: Seconds
) -> None:
    register(store, "demo", ModelKind.DECODER)
    check(store, catalogue, "demo")
    forget_models(store)

    seconds.now_s += CACHED_S - 0.1
    check(store, catalogue, "demo")

    seconds.now_s += 0.1
    with pytest.raises(UnknownModel):
        check(store, catalogue, "demo")


def test_an_announced_model_may_be_asked_for_anything_until_a_worker_says_what_it_is(
    store: Store, catalogue: CachedCatalogue, seconds: Seconds
) -> None:
    check(store, catalogue, "announced", "/v1/chat/completions")
    check(store, catalogue, "announced", "/v1/embeddings")

    register(store, "announced", ModelKind.DECODER)
    seconds.now_s += CACHED_S

    with pytest.raises(InvalidRequest):
        check(store, catalogue, "announced", "/v1/embeddings")


def listed(store: Store, catalogue: CachedCatalogue) -> list[str]:
    with store.snapshot() as tx:
        return [model.id for model in catalogue.read(tx).models]


def test_a_model_whose_workers_have_stopped_is_refused_with_what_is_served(
    store: Store, catalogue: CachedCatalogue
) -> None:
    register(store, "earlier", ModelKind.DECODER)
    register(store, "announced", ModelKind.DECODER)
    assert set(listed(store, catalogue)) == {"earlier", "announced"}
    with store.transaction() as tx:
        for id in ("earlier", "announced"):
            tx.workers.mark(f"worker of {id}", WorkerState.STOPPED, tx.now())

    assert listed(store, catalogue) == ["announced"]
    with pytest.raises(
        UnknownModel,
        match=r"^The model `earlier` does not exist or you .* it\. Models that are served: announced\.$",
    ):
        check(store, catalogue, "earlier")


def test_a_model_whose_worker_crashed_is_served_while_the_worker_is_expected_back(
    store: Store, catalogue: CachedCatalogue
) -> None:
    register(store, "crashing", ModelKind.DECODER)
    with store.transaction() as tx:
        tx.workers.ended("worker of crashing", ExitCause.KILLED, tx.now())
    check(store, catalogue, "crashing")

    with store.transaction() as tx:
        long_ago = tx.now() - RESTARTED_WITHIN - timedelta(seconds=1)
        tx.workers.mark("worker of crashing", WorkerState.STOPPED, long_ago)

    assert listed(store, catalogue) == ["announced"]


def test_where_no_model_is_announced_those_without_a_worker_stay_listed(store: Store) -> None:
    register(store, "pool", ModelKind.ENCODER)
    with store.transaction() as tx:
        tx.workers.mark("worker of pool", WorkerState.STOPPED, tx.now())

    assert listed(store, CachedCatalogue([])) == ["pool"]
