"""A model of images: serves classifications and embeddings of images.

    submit ──► pool: read, decode, prepare ──► engine's queue ──► step ──► answer
                    └──── what cannot be read ─────────────────► step ──► refusal

The thread that computes never waits for an image. Answers leave on that thread alone. Tenants take turns at
the pool's threads and at decoding, image by image: a request of many images holds up no other tenant's.
"""

import itertools
import os
import threading
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nightshift.endpoints import Endpoint
from nightshift.endpoints.encoders.encoding import EncoderEndpoint, EncoderRequest
from nightshift.endpoints.encoders.images import ImageInput, check_count
from nightshift.endpoints.encoders.scoring import ScoringEndpoint, ScoringRequest
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.results import Result
from nightshift.endpoints.texts.generation import Conversation
from nightshift.errors import InvalidRequest, StorageError
from nightshift.fleet.models import Model
from nightshift.outbound.safe_http import NoAnswer
from nightshift.tenants.quotas import may_take
from nightshift.tenants.turns import Rank, Turns, TurnThreads
from nightshift_engine import InvalidRequest as EngineRefusal
from nightshift_engine.encoders import EncodeOutput, EncoderConfig
from workers.serving.inference import Progress, breakdown, refusal, unread
from workers.serving.model_server import Busy, Files, Inference, OnFatal
from workers.serving.referenced_files import IMAGE_BYTES_MAX
from workers.serving.servers.encoder_server import EncoderServer
from workers.serving.servers.score_server import scores_of

if TYPE_CHECKING:  # needs torch
    from nightshift_engine.models import ImageClassifierModel, ImageEncoderModel, ImageModel, Pixels

# All that is in flight beside the thread that computes is bounded.
THREADS: Final = 16  # of one tenant; they wait for stores and the network, each holds one image's file
DECODES_MAX: Final = 4  # threads that decode; the others have read ahead and wait for them
PIXELS_DECODED_MAX: Final = 80_000_000  # at a time, in all threads: about 8 bytes each while one is decoded
PREPARED_BYTES_MAX: Final = 256 * 1024 * 1024  # of images that wait, or are about to be read
_RANKS: Final = {"interactive": 0, "standard": 1, "background": 2}


@dataclass(frozen=True, slots=True)
class _NamedImage:
    """The images of a request, and the fields that name them."""

    image: ImageInput
    place: str


class _NotFetched(InvalidRequest):
    """The host of an image's URL gave no answer. A row is tried again."""

    default_code = "image_not_fetched"


class ImageServer(EncoderServer):
    """Reads what requests name, and runs it on an encoder engine."""

    def __init__(
        self, model: Model, images: "ImageModel", on_fatal: OnFatal, config: EncoderConfig | None = None
    ) -> None:
        super().__init__(model, images, on_fatal, config)
        self._images = images
        self._images_max = max(1, PREPARED_BYTES_MAX // images.image_bytes)
        self._threads = TurnThreads(f"images-{model.id}", THREADS + 1)
        # A tenant alone decodes on all cores: no image takes more than a second or two.
        self._decoding = Turns(PIXELS_DECODED_MAX, per_tenant=PIXELS_DECODED_MAX)
        self._pixels_min = PIXELS_DECODED_MAX // decodes_at_once()  # so many are decoded at once at most
        self._numbers = itertools.count()
        self._files: Files | None = None
        self._ended: deque[tuple[str, Progress]] = deque()  # without an answer
        self._held: dict[str, tuple[str, int]] = {}  # tenant and images of each request
        self._held_by: Counter[str] = Counter()  # images of each tenant
        self._lock = threading.Lock()  # of what is held

    def use_files(self, files: Files) -> None:
        self._files = files

    def stop(self) -> None:
        self._threads.stop()
        super().stop()

    @abstractmethod
    def images(self, request: ModelRequest) -> Sequence[_NamedImage]:
        """The images of a request. Raises InvalidRequest for what is none."""

    def submit(self, inference: Inference) -> None:
        self.check(inference.endpoint, inference.request)
        images = self.images(inference.request)
        self._hold(inference, len(images))
        self._running[inference.id] = inference
        self._read_next(inference, deque(images), [], (_RANKS[inference.priority.value], next(self._numbers)))

    def cancel(self, inference_id: str) -> None:
        super().cancel(inference_id)
        self._release(inference_id)

    def left(self, inference_id: str) -> None:
        self._release(inference_id)

    def is_repeatable(self, request: ModelRequest) -> bool:
        """Requests that hold their images are: what lies at a place may be another image tomorrow."""
        return all(named.image.reference.startswith("data:") for named in self.images(request))

    def input_place(self, endpoint: Endpoint, request: ModelRequest, index: int | None) -> str:
        return self.images(request)[index or 0].place

    @property
    def _has_work(self) -> bool:
        return self._engine.has_work or bool(self._ended)

    def _step(self) -> None:
        while self._ended:
            id, progress = self._ended.popleft()
            running = self._running.pop(id, None)
            self._release(id)
            if running is not None:
                running.listener(progress)
        if self._engine.has_work:
            super()._step()

    # -- the pool's threads

    def _read_next(
        self, inference: Inference, left: deque[_NamedImage], read: "list[Pixels]", rank: Rank
    ) -> None:
        """Reads the first image that is left, in its tenant's turn."""
        self._threads.run(inference.tenant_id, lambda: self._read(inference, left, read, rank), rank=rank)

    def _read(self, inference: Inference, left: deque[_NamedImage], read: "list[Pixels]", rank: Rank) -> None:
        try:
            if inference.id not in self._running:
                return  # cancelled
            read.append(self._prepared(left.popleft(), inference))
            if left:
                self._read_next(inference, left, read, rank)
            elif inference.id in self._running:
                self.enqueue(inference, read)
        except _NotFetched as error:
            self._end(inference.id, Progress(result=refusal(error), failed=error.message))
        except InvalidRequest as error:
            self._end(inference.id, Progress(result=refusal(error)))
        except Busy:
            self._end(inference.id, Progress(failed="the queue is full"))
        except StorageError as error:
            self._end(inference.id, Progress(result=unread(error), fault=error))
        except Exception as error:  # noqa: BLE001 a thread's edge: the row has a result all the same
            self._end(inference.id, Progress(result=breakdown(f"its image failed: {type(error).__name__}")))

    def _prepared(self, named: _NamedImage, inference: Inference) -> "Pixels":
        from nightshift_engine.models import pixels_of

        assert self._files is not None, "the worker's composition root gives them"
        try:
            planned, reference = inference.row_object, named.image.reference
            etag = planned.etag if planned is not None and planned.uri == reference else None
            data = self._files.read(reference, inference.tenant_id, IMAGE_BYTES_MAX, etag=etag)
            amount = max(self._pixels_min, pixels_of(data))
            with self._decoding.hold(inference.tenant_id, amount=amount):
                return self._images.prepare(data)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param=named.place, code=error.code) from error
        except NoAnswer as error:
            message = f"{named.image.shown} was not fetched: {error.message.rstrip('.')}."
            raise _NotFetched(message, param=named.place) from error
        except EngineRefusal as error:
            message = f"The image in {named.image.shown} {error}."
            raise InvalidRequest(message, param=named.place, code="invalid_image") from error

    def _end(self, id: str, progress: Progress) -> None:
        self._ended.append((id, progress))
        self._wake()

    # -- what is held

    def _hold(self, inference: Inference, count: int) -> None:
        """Raises Busy. A tenant leaves room for others; where nothing is held, any request is taken."""
        tenant = inference.tenant_id
        with self._lock:
            free, held = self._images_max - self._held_by.total(), self._held_by[tenant]
            has_room = may_take(count, held=held, free=free) if held else count <= free
            if self._held and not has_room:
                raise Busy
            self._held[inference.id] = (tenant, count)
            self._held_by[tenant] += count

    @property
    def num_images_held(self) -> int:
        return self._held_by.total()

    def _release(self, id: str) -> None:
        with self._lock:
            tenant, count = self._held.pop(id, ("", 0))
            self._held_by[tenant] -= count
            if not self._held_by[tenant]:
                del self._held_by[tenant]


class ImageScoreServer(ImageServer):
    """A classifier of images."""

    makes = "scores"

    def __init__(
        self,
        model: Model,
        images: "ImageClassifierModel",
        on_fatal: OnFatal,
        config: EncoderConfig | None = None,
    ) -> None:
        super().__init__(model, images, on_fatal, config)
        self._labels = images.labels

    def images(self, request: ModelRequest) -> Sequence[_NamedImage]:
        assert isinstance(request, ScoringRequest), "its requests are for scores"
        images = []
        for text in request.texts:
            if text.pair is not None:
                raise InvalidRequest(f"'{self.model.id}' takes images, not pairs of texts.", param=text.place)
            images.append(_NamedImage(ImageInput(text.text), text.place))
        return _counted(images)

    def result(self, inference: Inference, output: EncodeOutput) -> Result:
        assert isinstance(inference.endpoint, ScoringEndpoint), "the model's kind was checked"
        assert isinstance(inference.request, ScoringRequest), "its requests are for scores"
        activation = self._labels.activation if inference.request.use_activation else "identity"
        return scores_of(inference, output, self._labels, activation)


class ImageEmbeddingServer(ImageServer):
    """An encoder of images."""

    def __init__(
        self,
        model: Model,
        images: "ImageEncoderModel",
        on_fatal: OnFatal,
        config: EncoderConfig | None = None,
    ) -> None:
        super().__init__(model, images, on_fatal, config)
        self._dimensions = images.dimensions

    def check(self, endpoint: Endpoint, request: ModelRequest) -> None:
        assert isinstance(request, EncoderRequest), "its requests are for vectors"
        if request.dimensions not in (None, self._dimensions):
            message = f"'{self.model.id}' has {self._dimensions} dimensions and cannot be shortened."
            raise InvalidRequest(message, param="dimensions")

    def images(self, request: ModelRequest) -> Sequence[_NamedImage]:
        assert isinstance(request, EncoderRequest), "its requests are for vectors"
        images = []
        for index, given in enumerate(request.inputs):
            place = "messages" if isinstance(given, Conversation) else f"input[{index}]"
            if not isinstance(given, str | ImageInput):
                raise InvalidRequest(f"'{self.model.id}' takes images, not tokens or messages.", param=place)
            images.append(_NamedImage(given if isinstance(given, ImageInput) else ImageInput(given), place))
        return _counted(images)

    def result(self, inference: Inference, output: EncodeOutput) -> Result:
        assert isinstance(inference.endpoint, EncoderEndpoint), "the model's kind was checked"
        vectors = [vector.astype("<f4", copy=False).tobytes() for vector in output.embeddings]
        return inference.endpoint.result(inference.request, vectors, output.num_prompt_tokens)


def decodes_at_once() -> int:
    """The number of images decoded at once: one for each core. More would take cores from the thread that
    computes.
    """
    return min(DECODES_MAX, len(os.sched_getaffinity(0)))


def _counted(images: Sequence[_NamedImage]) -> Sequence[_NamedImage]:
    try:
        check_count(images)
    except ValueError as error:
        raise InvalidRequest(f"Invalid 'input': {error}.", param="input") from error
    return images
