"""Fakes with state at the worker's seams: a model that answers on demand, a clock, a recording stream."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from nightshift.broker.token_streams import Delta, End
from nightshift.endpoints.results import Result
from nightshift.endpoints.texts.chat import Chat, ChatRequest
from nightshift.endpoints.texts.generation import Choice
from nightshift.errors import InvalidRequest, StorageError
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import (
    BulkClaim,
    Job,
    JobKind,
    NewJob,
    NewShard,
    OnlineClaim,
    Usage,
)
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.store import Store
from tests.helpers.fakes import a_new_job, a_spec
from workers.serving.inference import Progress, unread
from workers.serving.model_server import Busy, Inference
from workers.serving.stepping_server import SteppingServer

TENANT = "default"
LEASE_TTL_S = 30.0


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class RecordingStreams:
    """Stands for `StreamWriter`."""

    def __init__(self) -> None:
        self.entries: list[Delta | End] = []
        self.ended = threading.Semaphore(0)

    def write(self, entries: Sequence[Delta | End]) -> bool:
        for entry in entries:
            self.entries.append(entry)
            if isinstance(entry, End):
                self.ended.release()
        return True

    def text(self, shard_id: str) -> str:
        return "".join(
            e.data["text"] for e in self.entries if isinstance(e, Delta) and e.shard_id == shard_id
        )


class ScriptedServer(SteppingServer):
    """A model without an engine: a request waits in `running` until the test answers it, or at once with
    `echo`.
    """

    def __init__(self, id: str, *, echo: bool = False) -> None:
        model = Model(id=id, kind=ModelKind.DECODER, context_length=128, revision="r1")
        super().__init__(model, on_fatal=lambda error: None)
        self.echo = echo
        self.is_busy = False
        self.refuses: str | None = None  # a prompt that can never run
        self.running: dict[str, Inference] = {}
        self.cancelled: list[str] = []
        self.submitted: list[Inference] = []
        self.arrived = threading.Condition()
        self.is_stuck = False  # in a step: what is cancelled stays in the engine
        self.cancel_callbacks: list[Callable[[], None]] = []
        self.untold: dict[str, list[Progress]] = {}  # of requests that are not streamed

    def submit(self, inference: Inference) -> None:
        if self.is_busy:
            raise Busy
        if self.refuses is not None and prompt_of(inference) == self.refuses:
            raise InvalidRequest("The prompt is too long.", param="messages", code="context_length_exceeded")
        with self.arrived:
            self.running[inference.id] = inference
            self.submitted.append(inference)
            self.arrived.notify_all()
        if self.echo:
            self.answer(inference.id)

    def cancel(self, inference_id: str) -> None:
        if self.running.pop(inference_id, None) is not None:
            self.cancelled.append(inference_id)

    def after_cancelled(self, callback: Callable[[], None]) -> None:
        if self.is_stuck:
            self.cancel_callbacks.append(callback)
        else:
            callback()

    def step_ends(self) -> None:
        """The step it was stuck in."""
        self.is_stuck = False
        while self.cancel_callbacks:
            self.cancel_callbacks.pop()()

    def wait_for(self, count: int) -> list[Inference]:
        """Waits until so many requests are in the engine."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.running) >= count, timeout=10), (
                f"{len(self.running)} of {count} requests arrived"
            )
            return list(self.running.values())

    def generate(self, inference_id: str, token_ids: Sequence[int]) -> None:
        """Tokens that the listener does not hear of."""
        self.untold.setdefault(inference_id, []).append(Progress(token_ids=token_ids))

    def generated(self, inference_id: str) -> list[Progress]:
        return self.untold.pop(inference_id, [])

    def emit(self, inference_id: str, text: str, token_ids: Sequence[int] = ()) -> None:
        self.running[inference_id].listener(Progress(text, token_ids))

    def answer(self, inference_id: str, text: str | None = None) -> None:
        inference = self.running.pop(inference_id)
        text = prompt_of(inference).upper() if text is None else text
        inference.listener(Progress(result=result_with(text)))

    def fail(self, inference_id: str, reason: str, result: Result | None = None) -> None:
        self.running.pop(inference_id).listener(Progress(failed=reason, result=result))

    def miss_file(self, inference_id: str, error: StorageError) -> None:
        """The store of a file that it names fails for now."""
        self.running.pop(inference_id).listener(Progress(result=unread(error), fault=error))

    @property
    def _has_work(self) -> bool:
        return False

    def _step(self) -> None:
        raise AssertionError("a scripted model has no engine")


def prompt_of(inference: Inference) -> str:
    assert isinstance(inference.request, ChatRequest)
    return inference.request.prompts_given[0].messages[-1]["content"]


def result_with(text: str) -> Result:
    return Result(200, Usage(3, 2), Chat().values_of(Choice(text, "stop")))


def chat_body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], **fields}


def a_job(kind: JobKind, *, model: str | None = "demo", **spec: Any) -> NewJob:
    wishes = {"completion_window_s": 3600, "input": None, "output": None, **spec}
    return a_new_job(kind=kind, tenant_id=TENANT, model=model, spec=a_spec(**wishes))


def submit_online(
    store: Store,
    text: str,
    *,
    tenant_id: str = TENANT,
    priority: PriorityClass = PriorityClass.STANDARD,
    **fields: Any,
) -> str:
    """An online request that waits to be claimed. Returns its shard's id."""
    new = replace(a_job(JobKind.ONLINE), tenant_id=tenant_id, priority=priority)
    with store.transaction() as tx:
        submitted = transitions.submit_online(tx, new, chat_body(text, **fields), tx.now())
    assert submitted.shard_id is not None
    return submitted.shard_id


def claim_online(store: Store, text: str, **fields: Any) -> OnlineClaim:
    return _claim_online(store, submit_online(store, text, **fields))


def claim_again(store: Store, claim: OnlineClaim) -> OnlineClaim:
    """The request that went back to the queue, under its next term."""
    return _claim_online(store, claim.lease.shard_id)


def _claim_online(store: Store, shard_id: str) -> OnlineClaim:
    with store.transaction() as tx:
        (claim,) = tx.claims.online([shard_id], "worker-1", ["demo"], tx.now(), LEASE_TTL_S)
    return claim


def plan_bulk(
    store: Store,
    uri: str,
    *,
    shards: int = 1,
    model: str = "demo",
    packed: str = "jsonl",
    etag: str | None = None,
    rows: int | None = None,
    **spec: Any,
) -> Job:
    """A planned bulk job: every shard is the whole object at `uri`, in this format. `rows`, if known."""
    with store.transaction() as tx:
        now = tx.now()
        job = transitions.submit_bulk(tx, a_job(JobKind.BULK, model=model, input=uri, **spec), now).job
        planned = [
            NewShard(shard_no=number, uri=uri, format=packed, start=0, end=None, source_etag=etag)
            for number in range(shards)
        ]
        transitions.plan(tx, job, model, planned, now, rows_total=rows)
    return job


def claim_bulk(store: Store, worker_id: str = "worker-1", *, models: Sequence[str] = ("demo",)) -> BulkClaim:
    with store.transaction() as tx:
        claim = tx.claims.bulk(worker_id, models, tx.now(), LEASE_TTL_S)
    assert claim is not None, "nothing to claim"
    return claim
