"""Models of images behind their servers: what requests may name, and what is refused."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightshift import endpoints
from nightshift.errors import CredentialsRefused, InvalidRequest, StorageError, StorageUnavailable
from nightshift.jobs import Answer, ShardObject
from nightshift.jobs.files import file_key
from nightshift.objectstore import Locations, open_store
from nightshift.objectstore.sources import Sources
from nightshift.outbound.safe_http import Egress, EgressConfig, NoAnswer
from tests.unit.engine.encoders.images.test_decoding import BAD
from tests.unit.engine.tiny.classifiers import save_classifier
from tests.unit.engine.tiny.images import as_bytes, picture, reference, save_image_model
from tests.unit.workers.serving.conftest import folders, started, submit
from workers.serving.model_server import Busy
from workers.serving.models import Models
from workers.serving.referenced_files import IMAGE_BYTES_MAX, ReferencedFiles
from workers.serving.servers.image_server import THREADS, ImageServer

TOLERANCE = 2e-5
PICTURES = [picture(number, 40 + 3 * number, 50) for number in range(5)]


def data_uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


class Count:
    """Calls that have begun since the last wait."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def add(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait_for(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._count >= count, 60)


class Files:
    """Reads data URIs, and whatever a test puts here."""

    def __init__(self, files: ReferencedFiles) -> None:
        self._files = files
        self.failing: dict[str, StorageError | NoAnswer] = {}
        self.reached = Count()
        self.may_read = threading.Event()
        self.may_read.set()
        self.may_answer: set[str] = set()  # tenants that do not wait for that

    @contextmanager
    def held(self, but: str = "") -> Iterator[None]:
        """No image is read meanwhile, but those of one tenant."""
        self.may_answer = {but}
        self.may_read.clear()
        try:
            yield
        finally:
            self.may_answer = set()
            self.may_read.set()

    def read(self, reference: str, tenant_id: str, size_bytes_max: int, *, etag: str | None = None) -> bytes:
        self.reached.add()
        assert tenant_id in self.may_answer or self.may_read.wait(60)
        if reference in self.failing:
            raise self.failing[reference]
        return self._files.read(reference, tenant_id, size_bytes_max, etag=etag)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_image_model(folder / "labels", "ViT", id2label={0: "cat", 1: "dog", 2: "owl"}, label2id=None)
    save_image_model(folder / "tags", "ResNet", num_labels=3, problem_type="multi_label_classification")
    save_image_model(folder / "vectors", "CLIPVision", "ModelWithProjection")
    save_classifier(folder / "texts", "bert", num_labels=2)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("place")
    for number, image in enumerate(PICTURES):
        (place / f"{number}.png").write_bytes(as_bytes(image))
    (place / "page.jpg").write_bytes(BAD["a web page"][0])
    return place


@pytest.fixture(scope="module")
def files(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    objects = open_store(f"file://{tmp_path_factory.mktemp('own')}")
    objects.put(file_key("t", "file-mine"), [as_bytes(PICTURES[0])])
    sources = Sources(objects, Locations(file_roots=[f"t={place}"]))
    return Files(ReferencedFiles(sources, Egress(EgressConfig(ports=(range(443, 444),)))))


@pytest.fixture(scope="module")
def models(folder: Path, files: Files) -> Iterator[Models]:
    with started(*folders(folder), files=files) as models:
        yield models


def answered(models: Models, route: str, model: str, **body: Any) -> Answer:
    return submit(models, route, {"model": model, **body}, tenant_id="t").wait()


IMAGES = [{"image": data_uri(as_bytes(picture))} for picture in PICTURES]


def test_classifications_are_softmax_or_sigmoid_of_the_logits_of_transformers(
    models: Models, folder: Path
) -> None:
    for model in ("labels", "tags"):
        logits = reference(folder / model, PICTURES)
        powers = np.exp(logits)
        wanted = powers / powers.sum(1, keepdims=True) if model == "labels" else powers / (1 + powers)
        together = answered(models, "/v1/classifications", model, input=IMAGES).body["data"]
        alone = [
            answered(models, "/v1/classifications", model, input=image).body["data"][0] for image in IMAGES
        ]
        for data in (together, alone):
            scores = [[label["score"] for label in one["scores"]] for one in data]
            np.testing.assert_allclose(scores, wanted, atol=TOLERANCE)
    assert {label["label"] for label in data[0]["scores"]} == {"LABEL_0", "LABEL_1", "LABEL_2"}


def test_embeddings_are_the_projected_vectors_of_transformers(models: Models, folder: Path) -> None:
    body = answered(models, "/v1/embeddings", "vectors", input=IMAGES).body
    vectors = [entry["embedding"] for entry in body["data"]]
    np.testing.assert_allclose(vectors, reference(folder / "vectors", PICTURES), atol=TOLERANCE)
    assert body["usage"]["prompt_tokens"] == 4 * len(PICTURES), "32 x 32 pixels are 4 tokens"


def test_an_image_is_read_from_an_allowed_place_and_of_an_uploaded_file(models: Models, place: Path) -> None:
    """A plain text is the reference itself, as a column of a table has it."""
    expected = answered(models, "/v1/embeddings", "vectors", input=IMAGES[0]).body["data"]
    for given in (f"file://{place}/0.png", {"image": f"file://{place}/0.png"}, {"image": "file-mine"}):
        assert answered(models, "/v1/embeddings", "vectors", input=given).body["data"] == expected


REFUSED = {
    "another tenant's place": ("file:///etc/passwd", "may not name"),
    "a bucket": ("s3://bucket/photo.jpg", "may not name"),
    "another's file": ("file-theirs", "does not exist"),
    "a private address": ("https://127.0.0.1/photo.jpg", "may not be fetched"),
    "metadata": ("https://169.254.169.254/latest", "may not be fetched"),
    "plain http": ("http://example.org/photo.jpg", "no reference to an image"),
    "another scheme": ("ftp://example.org/photo.jpg", "no reference to an image"),
    "no base64": ("data:image/png;base64,@@@@", "not base64"),
    "a malformed data URI": ("data:image/png", "malformed"),
    "too much": ("data:image/png," + "a" * (IMAGE_BYTES_MAX + 1), "more than"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not_be_read_is_refused_naming_the_field(models: Models, name: str) -> None:
    named, problem = REFUSED[name]
    answer = answered(models, "/v1/classifications", "labels", input=[IMAGES[0], {"image": named}])
    assert answer.status_code == 400
    assert problem in answer.body["error"]["message"]
    assert answer.body["error"]["param"] == "input[1].image"


def test_an_object_that_is_no_image_is_named(models: Models, place: Path) -> None:
    answer = answered(models, "/v1/embeddings", "vectors", input=f"file://{place}/page.jpg")
    error = answer.body["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_image")
    assert "page.jpg" in error["message"]
    assert "is a web page" in error["message"]


@pytest.mark.parametrize(
    ("route", "model", "given"),
    [
        ("/v1/classifications", "texts", IMAGES[0]),
        ("/v1/classifications", "labels", {"text": "a", "text_pair": "b"}),
        ("/v1/embeddings", "vectors", [1, 2]),
        ("/v1/embeddings", "vectors", [IMAGES[0]] * 65),
        ("/v1/embeddings", "vectors", {"image": ""}),
        ("/v1/embeddings", "vectors", {"image": "file-mine", "text": "a cat"}),
        ("/v1/embeddings", "labels", IMAGES[0]),
    ],
)
def test_a_request_for_something_else_is_refused(models: Models, route: str, model: str, given: Any) -> None:
    try:
        answer = answered(models, route, model, input=given)
    except InvalidRequest:
        return
    assert answer.status_code == 400


def test_an_encoder_of_images_takes_no_messages(models: Models) -> None:
    with pytest.raises(InvalidRequest, match="takes images, not tokens or messages") as refused:
        answered(models, "/v1/embeddings", "vectors", messages=[{"role": "user", "content": "a"}])
    assert refused.value.param == "messages"


def test_a_row_reads_the_object_that_was_planned_and_no_later_one(models: Models, place: Path) -> None:
    """Other images that its request names are read as they are."""
    at = f"file://{place}/replaced.png"
    (place / "replaced.png").write_bytes(as_bytes(PICTURES[0]))
    body = {"model": "vectors", "input": at}
    wrong, other = ShardObject(at, "of-another"), ShardObject(f"{at}.png", "of-another")

    refused = submit(models, "/v1/embeddings", body, tenant_id="t", row_object=wrong).wait()
    answered = submit(models, "/v1/embeddings", body, tenant_id="t", row_object=other).wait()
    assert (refused.status_code, refused.body["error"]["code"]) == (400, "input_changed")
    assert "replaced.png' was replaced" in refused.body["error"]["message"]
    assert answered.status_code == 200


def test_as_many_images_are_read_ahead_as_there_are_threads(models: Models, files: Files) -> None:
    """They wait for their stores side by side."""
    files.reached = Count()
    with files.held():
        listeners = [
            submit(models, "/v1/embeddings", {"model": "vectors", "input": image}, id=f"{number}")
            for number, image in enumerate(IMAGES * 4)
        ]
        assert files.reached.wait_for(THREADS), "so many are read at a time"
    assert all(listener.wait().status_code == 200 for listener in listeners)


@pytest.mark.parametrize("flood", [[IMAGES[0]] * 64, IMAGES[0]], ids=["of one request", "of many requests"])
def test_a_request_of_many_images_holds_up_no_other_tenants(models: Models, files: Files, flood: Any) -> None:
    """All threads that a tenant may have are in their stores; another tenant's image is read beside them."""
    files.reached = Count()
    number = THREADS if flood == IMAGES[0] else 3
    with files.held(but="t"):
        listeners = [
            submit(models, "/v1/embeddings", {"model": "vectors", "input": flood}, id=f"{at}", tenant_id="a")
            for at in range(number)
        ]
        assert files.reached.wait_for(number)
        assert answered(models, "/v1/embeddings", "vectors", input=IMAGES[1]).status_code == 200
        assert not any(listener.ended.is_set() for listener in listeners)
    assert all(listener.wait().status_code == 200 for listener in listeners)


def test_a_tenant_that_sends_more_images_than_are_held_leaves_room_for_another(
    models: Models, files: Files
) -> None:
    server = models.get("vectors")
    assert isinstance(server, ImageServer)
    body = {"model": "vectors", "input": [IMAGES[0]] * 64}
    listeners: list[object] = []

    def flood() -> None:
        while True:
            listeners.append(submit(models, "/v1/embeddings", body, id=f"{len(listeners)}", tenant_id="a"))

    with files.held(but="t"):
        with pytest.raises(Busy):
            flood()
        assert answered(models, "/v1/embeddings", "vectors", input=IMAGES[1]).status_code == 200
        for at in range(len(listeners) + 1):
            server.cancel(f"{at}")
    answered(models, "/v1/embeddings", "vectors", input=IMAGES[1])
    assert server.num_images_held == 0


@pytest.mark.parametrize("error", [StorageUnavailable("it is away"), CredentialsRefused("ExpiredToken")])
def test_an_image_whose_store_may_give_it_later_is_no_error_of_its_request(
    models: Models, files: Files, error: StorageError
) -> None:
    """An online request is answered at once; a row of a job waits for what `fault` says."""
    files.failing["file-away"] = error
    listener = submit(models, "/v1/embeddings", {"model": "vectors", "input": "file-away"}, tenant_id="t")
    answer = listener.wait()
    assert (answer.status_code, answer.body["error"]["code"]) == (503, error.code)
    assert answer.body["error"]["message"] == f"An image cannot be read at present: {error.message}."
    assert listener.fault is error


def test_a_url_whose_host_gives_no_answer_is_named_and_a_row_is_tried_again(
    models: Models, files: Files
) -> None:
    url = "https://no.such.host.example/a.png"
    body = {"model": "vectors", "input": [{"image": f"{url}?signature=secret"}]}
    files.failing[f"{url}?signature=secret"] = NoAnswer("no.such.host.example cannot be looked up: unknown")
    listener = submit(models, "/v1/embeddings", body, tenant_id="t")

    error = listener.wait().body["error"]
    assert listener.wait().status_code == 400
    assert (error["code"], error["param"]) == ("image_not_fetched", "input[0]")
    assert error["message"] == (
        f"'{url}' was not fetched: no.such.host.example cannot be looked up: unknown."
    )
    assert listener.failed is not None, "what another try may help"


def test_reading_an_image_holds_up_no_other_request_and_a_cancelled_one_is_forgotten(
    models: Models, files: Files
) -> None:
    """The step thread runs on while the pool waits."""
    server = models.get("vectors")
    assert isinstance(server, ImageServer)
    with files.held():
        slow = submit(models, "/v1/embeddings", {"model": "vectors", "input": IMAGES[0]}, id="slow")
        assert server.stepping_since_s is None
        server.cancel("slow")
    answered(models, "/v1/embeddings", "vectors", input=IMAGES[1])
    assert not slow.ended.is_set()
    assert server.num_images_held == 0


def test_only_a_data_uri_always_means_the_same_image(models: Models) -> None:
    endpoint, server = endpoints.get("/v1/embeddings"), models.get("vectors")
    for given, wanted in ((IMAGES[0], True), ({"image": "file-mine"}, False)):
        assert server.is_repeatable(endpoint.parse({"model": "vectors", "input": given})) is wanted
