"""A worker without a model: it receives real rings, takes real leases and records real answers.

`behave` decides its answers; by default it repeats the last message word by word, and embeds every text as
its length.
"""

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from queue import Empty
from typing import Any

import redis
from kombu.exceptions import OperationalError

from nightshift import endpoints
from nightshift.broker.queue import ONLINE_QUEUE, Queue, celery_app
from nightshift.broker.token_streams import Delta, End, StreamWriter
from nightshift.endpoints.answers import error_body
from nightshift.endpoints.encoders.embeddings import EmbeddingRequest, Embeddings
from nightshift.endpoints.structured.calls import CallPart
from nightshift.endpoints.texts.generation import Choice, Conversation, GenerationRequest, TextEndpoint
from nightshift.endpoints.texts.logprobs import Chance, Chosen
from nightshift.endpoints.texts.streams import AnswerHead
from nightshift.errors import QueueUnavailable
from nightshift.fleet.models import Model, ModelKind, OutputSizes
from nightshift.jobs import Answer, JobKind, JsonObject, OnlineClaim, StopReason, Usage
from nightshift.jobs.shard import Ring
from nightshift.lifecycle import transitions
from nightshift.process.settings import QueueSettings
from nightshift.store import Store
from tests.helpers.fakes import a_worker
from workers.online.publisher import CallText, Text, ThoughtText

CHAT_MODEL = "org/parrot"
EMBEDDING_MODEL = "ruler"
WORKER_ID = "worker_fake"

POLL_S = 0.05  # between checks whether the test is over
LEASE_S = 60.0

Behaviour = Callable[["FakeWorker", OnlineClaim], None]


class FakeWorker:
    """Answers online requests one after the other, in a thread."""

    def __init__(self, store: Store, settings: QueueSettings) -> None:
        self._store = store
        self._settings = settings
        self._streams = StreamWriter(settings)
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake-worker")
        self.behave: Behaviour = FakeWorker.echo
        self.claims: list[OnlineClaim] = []
        self.receives_rings = True  # until Redis goes away: then it polls the database

    @contextmanager
    def at_work(self) -> Iterator["FakeWorker"]:
        self._register()
        self._thread.start()
        try:
            yield self
        finally:
            self._stops.set()
            self._wake()
            self._thread.join()
            self._streams.close()

    # -- what a behaviour is made of -------------------------------------------------------------------

    def stream(self, claim: OnlineClaim, text: str, offset: int | None = None, *, index: int = 0) -> None:
        """Sends a piece of the answer, with its log-probability if that is asked for."""
        data: JsonObject = {"index": index, "text": text}
        if offset is not None:
            data |= {"offset": offset}
            logprobs = logprobs_of(claim, [(offset, text)])
            if logprobs is not None:
                token_offset = [start for start, _ in _words(repeated(claim)[index])].index(offset)
                data |= {"logprobs": logprobs, "token_offset": token_offset}
        self._streams.write([Delta(claim.lease.shard_id, data)])

    def stream_call(self, claim: OnlineClaim, part: CallPart) -> None:
        """Sends a piece of a call's arguments."""
        self._streams.write([CallText(claim.lease.shard_id, 0, part).delta])

    def think(
        self, claim: OnlineClaim, thought: Sequence[str], text: str, *, loses: Sequence[int] = ()
    ) -> None:
        """Streams a thought in pieces but for those that get lost, then a text, and records the answer."""
        shard_id, at = claim.lease.shard_id, 0
        for number, piece in enumerate(thought):
            if number not in loses:
                self._streams.write([ThoughtText(shard_id, 0, at, piece).delta])
            at += len(piece)
        self._streams.write([Text(shard_id, 0, 0, text, 0, None, thought_chars=at).delta])
        choice, usage = Choice(text, "stop", reasoning="".join(thought)), Usage(3, 9, 0, 5)
        body = text_endpoint(claim).answer(request_of(claim), head_of(claim), choices=[choice], usage=usage)
        self.record(claim, Answer(200, body, usage))

    def record(self, claim: OnlineClaim, answer: Answer) -> None:
        """Commits the answer, then announce it."""
        with self._store.transaction() as tx:
            transitions.record_answer(tx, claim, answer, tx.now())
        self._streams.write([End(claim.lease.shard_id)])

    def refuse(self, claim: OnlineClaim, status_code: int, code: str) -> None:
        error = error_body("This cannot be answered.", "invalid_request_error", code=code)
        self.record(claim, Answer(status_code, error, Usage()))

    def stream_until_told_to_stop(self, claim: OnlineClaim) -> StopReason:
        """The heartbeat tells it; the job then ends without an answer."""
        while not self._stops.wait(POLL_S):
            self.stream(claim, " and")
            with self._store.transaction() as tx:
                (held,) = tx.leases.renew([claim.lease], tx.now(), LEASE_S)
                if held.stop_reason is not None:
                    tx.shards.stop_held(claim.lease)
                    transitions.end_stopped_online(tx, tx.jobs.fetch(claim.job.id), tx.now())
                    return held.stop_reason
        raise AssertionError("the test ended before the job was told to stop")

    def echo(self, claim: OnlineClaim) -> None:
        """Repeat the prompt, word by word; embed what is to be embedded."""
        if claim.job.spec.endpoint == "/v1/embeddings":
            self.record(claim, vectors(claim))
            return
        texts = repeated(claim)
        for words in zip_longest(*map(_words, texts)):
            for index, word in enumerate(words):
                if word is not None:
                    self.stream(claim, word[1], word[0], index=index)
        self.record(claim, answer_saying(claim, texts))

    # -- the loop --------------------------------------------------------------------------------------

    def _run(self) -> None:
        app = celery_app(self._settings)
        without_retries = {**app.conf.broker_transport_options, "max_retries": 0}
        app.conf.update(broker_transport_options=without_retries)
        try:
            while not self._stops.is_set():
                shard_ids = self._rung(app) if self.receives_rings else self._looked_up()
                for claim in self._claim(shard_ids):
                    self.claims.append(claim)
                    self.behave(self, claim)
        finally:
            app.close()

    def _rung(self, app: Any) -> list[str]:
        try:
            with app.connection_for_read() as connection, connection.SimpleQueue(ONLINE_QUEUE) as ring_queue:
                message = ring_queue.get(timeout=POLL_S)
                message.ack()
                return list(message.payload[0])
        except Empty:
            return []
        except (OperationalError, redis.ConnectionError):
            self.receives_rings = False
            return []

    def _wake(self) -> None:
        """Sends a ring for no shard, so that the loop stops waiting for one."""
        queue = Queue(self._settings)
        with suppress(QueueUnavailable):
            queue.ring([Ring(0, JobKind.ONLINE, "shard_none", 0)])
        queue.close()

    def _looked_up(self) -> list[str]:
        self._stops.wait(POLL_S)
        with self._store.snapshot() as tx:
            return list(tx.claims.next_online([CHAT_MODEL, EMBEDDING_MODEL], tx.now(), 10))

    def _claim(self, shard_ids: list[str]) -> list[OnlineClaim]:
        if not shard_ids:
            return []
        with self._store.transaction() as tx:
            models = [CHAT_MODEL, EMBEDDING_MODEL]
            return list(tx.claims.online(shard_ids, WORKER_ID, models, tx.now(), LEASE_S))

    def _register(self) -> None:
        with self._store.transaction() as tx:
            now = tx.now()
            models = (CHAT_MODEL, EMBEDDING_MODEL)
            tx.workers.register(a_worker(id=WORKER_ID, models=models, started_at=now, heartbeat_at=now))
            for position, (id, kind) in enumerate(zip(models, ModelKind, strict=False)):
                model = Model(
                    id=id,
                    kind=kind,
                    context_length=512,
                    revision="1",
                    position=position,
                    output_sizes=OutputSizes(token=20, logprob=200),
                )
                tx.workers.register_model(model, now)


def prompt_of(claim: OnlineClaim) -> str:
    """The text that a request's first choice repeats."""
    return repeated(claim)[0]


def repeated(claim: OnlineClaim) -> list[str]:
    """The text that each choice of a request repeats: its prompt's."""
    request = request_of(claim)
    texts = [
        prompt.messages[-1]["content"] if isinstance(prompt, Conversation) else str(prompt)
        for prompt in request.prompts_given
    ]
    return [text for text in texts for _ in range(request.num_choices // len(texts))]


def request_of(claim: OnlineClaim) -> GenerationRequest:
    request = text_endpoint(claim).parse(claim.body)
    assert isinstance(request, GenerationRequest)
    return request


def text_endpoint(claim: OnlineClaim) -> TextEndpoint:
    endpoint = endpoints.get(claim.job.spec.endpoint)
    assert isinstance(endpoint, TextEndpoint)
    return endpoint


def logprobs_of(claim: OnlineClaim, words: Sequence[tuple[int, str]]) -> JsonObject | None:
    """The log-probabilities of words, each a token: the word itself and, less likely, its capitals."""
    request = request_of(claim)
    if request.logprobs_asked is None:
        return None
    chosen = []
    for start, word in words:
        chances = [Chance(word.encode(), -0.25), Chance(word.upper().encode(), -1.5)]
        chosen.append(Chosen(chances[0], chances[: request.logprobs_asked], start))
    return text_endpoint(claim).logprobs(chosen)


def text_answer(claim: OnlineClaim, text: str, finish_reason: str = "stop") -> Answer:
    """Every choice has this text."""
    return answer_saying(claim, [text] * request_of(claim).num_choices, finish_reason)


def answer_saying(claim: OnlineClaim, texts: Sequence[str], finish_reason: str = "stop") -> Answer:
    choices = [Choice(text, finish_reason, logprobs_of(claim, [*_words(text)])) for text in texts]
    usage = Usage(prompt_tokens=3, completion_tokens=sum(len(text.split()) for text in texts))
    body = text_endpoint(claim).answer(
        request_of(claim),
        head_of(claim),
        choices=choices,
        usage=usage,
    )
    return Answer(200, body, usage)


def head_of(claim: OnlineClaim) -> AnswerHead:
    id = text_endpoint(claim).answer_id(claim.job.id)
    return AnswerHead(id, int(claim.job.created_at.timestamp()), claim.job.priority)


def vectors(claim: OnlineClaim) -> Answer:
    """A vector of two numbers for every input: its length, and one."""
    endpoint = Embeddings()
    request = endpoint.parse(claim.body)
    assert isinstance(request, EmbeddingRequest)
    embeddings = [struct.pack("<2f", len(text), 1) for text in request.inputs]
    body = endpoint.answer(request, embeddings, prompt_tokens=len(embeddings))
    return Answer(200, body, Usage(prompt_tokens=len(embeddings)))


def _words(text: str) -> Iterator[tuple[int, str]]:
    """The words of a text with the blanks before them, and where each starts."""
    start = 0
    while start < len(text):
        end = text.find(" ", start + 1)
        end = len(text) if end < 0 else end
        yield start, text[start:end]
        start = end
