"""Parts that tests of planning and assembly share: a place with inputs, and a worker without a model.

The worker does what a real one does to the database and the object store, and answers every prompt at once.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from nightshift import endpoints
from nightshift.bulk.results.part_writer import PartDependencies
from nightshift.bulk.results.row_results import RowResult, ShardHead
from nightshift.bulk.results.segments import encode_segment
from nightshift.bulk.rows.requests import RowRequest, rows_of, to_request
from nightshift.bulk.rows.validation import FileLimits
from nightshift.endpoints.results import Result
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import BulkClaim, Face, Job, JsonObject, Segment, Shard, Usage, segment_key
from nightshift.jobs.files import File, FilePurpose
from nightshift.jobs.ids import new_id
from nightshift.lifecycle import transitions
from nightshift.lifecycle.transitions import Submitted
from nightshift.objectstore import DirectoryStore, Locations, ObjectStore, ObjectUri
from nightshift.objectstore.sources import Sources
from nightshift.store import Store
from scheduler.duties.assembly import Assembly, AssemblyConfig
from scheduler.duties.planning import Planning, PlanningConfig
from scheduler.duties.running_output import OutputParts, OutputPartsConfig
from scheduler.input.retry_inputs import RetryInputs
from scheduler.input.sharding import ShardLimits
from scheduler.input.surveying import SurveyConfig
from scheduler.runtime.duty import MayContinue
from scheduler.runtime.leadership import Elector
from tests.helpers.fakes import (
    MODEL,
    InMemoryQueue,
    a_spec,
    an_answer,
    claimed,
    claimed_online,
    submit,
    submit_online,
)

IDLE_S = 60.0
TEMPLATE = {"model": MODEL, "messages": [{"role": "user", "content": "{{text}}"}]}
LINE_BYTES_MAX = 100_000

Answer = Callable[[RowRequest], tuple[int, JsonObject]]  # status and body


def echoed(request: RowRequest) -> tuple[int, JsonObject]:
    """The prompt repeated. One that says `bad` is refused."""
    text = request.body["messages"][0]["content"]
    if text == "bad":
        return 400, {"error": {"code": "context_length_exceeded", "message": "too long"}}
    return 200, {"choices": [{"message": {"content": text}}]}


class FailingStore:
    """An object store of which one operation fails, from the n-th call on, until it is mended."""

    def __init__(
        self, inner: ObjectStore, operation: str, error: Exception, *, calls_before: int = 0
    ) -> None:
        self._inner = inner
        self._operation = operation
        self._error = error
        self._calls_left = calls_before
        self.is_broken = True

    def __getattr__(self, name: str) -> Any:
        if name == self._operation and self.is_broken:
            if self._calls_left == 0:
                raise self._error
            self._calls_left -= 1
        return getattr(self._inner, name)


class BusyStore:
    """An object store that something else happens beside: just before the first call of one operation."""

    def __init__(self, inner: ObjectStore, operation: str, happens: Callable[[], object]) -> None:
        self._inner = inner
        self._operation = operation
        self._happens: list[Callable[[], object]] = [happens]

    def __getattr__(self, name: str) -> Any:
        if name == self._operation and self._happens:
            self._happens.pop()()
        return getattr(self._inner, name)


@dataclass
class Place:
    """A store, the service's objects, and a directory that jobs may name."""

    store: Store
    objects: DirectoryStore
    bucket: Path
    s3_buckets: tuple[str, ...] = ()
    queue: InMemoryQueue = field(default_factory=InMemoryQueue)

    def __post_init__(self) -> None:
        self.locations = Locations(self.s3_buckets, (self.bucket,))
        self.sources = Sources(self.objects, self.locations)
        self.elector = Elector(self.store, "only", clock=lambda: 0.0)

    @classmethod
    def at(cls, store: Store, folder: Path, s3_buckets: tuple[str, ...] = ()) -> "Place":
        (folder / "bucket").mkdir()
        return cls(store, DirectoryStore(folder / "objects"), folder / "bucket", s3_buckets)

    # -- duties ----------------------------------------------------------------------------------------

    def planning(
        self,
        objects: Any = None,
        *,
        shard_bytes: int = 200,
        shard_rows: int = 1000,
        rows_max: int = 1000,
        turn_s: float = PlanningConfig.turn_s,
        may_continue: MayContinue = lambda: True,
        clock: Callable[[], float] = lambda: 0.0,
        **pages: int,
    ) -> Planning:
        """`pages`: limits of a page of shards. `clock`: by default, nothing takes any time."""
        file = FileLimits(
            rows_max=rows_max, embedding_inputs_max=100, shard_bytes=shard_bytes, shard_rows=shard_rows
        )
        survey = SurveyConfig(limits=ShardLimits(shard_bytes, 100, **pages), line_bytes_max=LINE_BYTES_MAX)
        config = PlanningConfig(file=file, survey=survey, turn_s=turn_s)
        sources = Sources(objects, self.locations) if objects else self.sources
        assert self.elector.attempt()
        return Planning(
            self.store,
            self.queue,
            sources,
            self.locations,
            config,
            lambda: self.elector.lead,
            RetryInputs(self.store, self.objects, sources, LINE_BYTES_MAX),
            may_continue,
            clock,
        )

    def assembly(
        self, objects: Any = None, *, may_continue: MayContinue = lambda: True, **config: Any
    ) -> Assembly:
        assert self.elector.attempt()
        dependencies = self.part_dependencies(objects)
        return Assembly(dependencies, lambda: self.elector.lead, AssemblyConfig(**config), may_continue)

    def output_parts(
        self, objects: Any = None, *, may_continue: MayContinue = lambda: True, **config: Any
    ) -> OutputParts:
        assert self.elector.attempt()
        return OutputParts(
            self.part_dependencies(objects),
            "scheduler_1",
            lambda: self.elector.lead,
            OutputPartsConfig(**config),
            may_continue,
        )

    def part_dependencies(self, objects: Any = None) -> PartDependencies:
        objects = objects or self.objects
        return PartDependencies(self.store, objects, self.sources, self.locations, LINE_BYTES_MAX)

    def run(self, duty: Any) -> Any:
        """One pass of a duty, and what it started is over. Returns the pass."""
        made = duty.run_once(self.store.now())
        assert duty.wait_until_idle(IDLE_S)
        return made

    def plan(self, job: Job, duty: Planning | None = None) -> Job:
        """One pass of planning. Returns the job as it is then."""
        self.run(duty or self.planning())
        return self.job(job)

    def write_parts(self, duty: OutputParts | None = None) -> None:
        """One pass, and every part that can be written is."""
        self.run(duty or self.output_parts())

    def part_names(self, kind: str = "part") -> list[str]:
        """Names of the output's files of this kind, in order."""
        return sorted(path.name for path in (self.bucket / "out").glob(f"{kind}-*"))

    def part_lines(self, kind: str = "part") -> list[JsonObject]:
        return [line for name in self.part_names(kind) for line in lines_of(self.out(name))]

    # -- inputs ----------------------------------------------------------------------------------------

    def serve_model(self, model_id: str = MODEL, kind: ModelKind = ModelKind.DECODER) -> None:
        with self.store.transaction() as tx:
            tx.workers.register_model(
                Model(id=model_id, kind=kind, context_length=512, revision="1"), tx.now()
            )

    def upload(
        self, data: bytes, filename: str = "requests.jsonl", *, expires_at: datetime | None = None
    ) -> File:
        with self.store.transaction() as tx:
            file = File(
                id=new_id("file", "-"),
                tenant_id="default",
                purpose=FilePurpose.BATCH,
                filename=filename,
                size_bytes=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
                created_at=tx.now(),
                expires_at=expires_at,
            )
            tx.files.insert(file)
        self.objects.put(file.key, data)
        return file

    def batch(self, data: bytes, *, expires_at: datetime | None = None, **wishes: Any) -> Job:
        """An OpenAI batch over these lines is accepted."""
        spec = a_spec(input=self.upload(data, expires_at=expires_at).id, output=None, **wishes)
        return submit(self.store, face=Face.OPENAI, model=None, spec=spec)

    def native(self, *, name: str = "in.jsonl", model: str | None = None, **wishes: Any) -> Job:
        """A native job over an object in the bucket is accepted."""
        defaults = {"input": self.uri(name), "output": self.uri("out/"), "template": None}
        return submit(self.store, model=model, spec=a_spec(**{**defaults, **wishes}))

    def uri(self, name: str) -> str:
        return f"{self.bucket.as_uri()}/{name}"

    @property
    def outputs(self) -> ObjectStore:
        """The store in which jobs write their outputs."""
        return self.locations.open(ObjectUri.parse(self.uri("out/")), "default")

    def open_as(self, store: Any) -> None:
        """Opens this store from now on, whatever place a job names."""
        self.locations.open = lambda *which: store  # type: ignore[method-assign]

    # -- what became of it -----------------------------------------------------------------------------

    def job(self, job: Job) -> Job:
        with self.store.snapshot() as tx:
            return tx.jobs.fetch(job.id)

    def shards(self, job: Job) -> Sequence[Shard]:
        with self.store.snapshot() as tx:
            return tx.shards.of_job(job.id, limit=1000)

    def file_lines(self, job: Job, file_id: str | None) -> list[JsonObject]:
        """The lines of a job's output or error file."""
        assert file_id is not None, "the job has no such file"
        with self.store.snapshot() as tx:
            file = tx.files.get(job.tenant_id, file_id, tx.now())
        assert file is not None, "the file is not on record"
        data = self.objects.read(file.key)
        assert (file.size_bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        return lines_of(data)

    def out(self, name: str) -> bytes:
        return (self.bucket / "out" / name).read_bytes()

    # -- a worker --------------------------------------------------------------------------------------

    def work_off(self, answer: Answer = echoed, *, shards: int = 1000) -> int:
        """Runs this many of the shards there are. Returns how many there were."""
        for count in range(shards):
            with self.store.snapshot() as tx:
                if not tx.shards.queued():
                    return count
            self.run_shard(claimed(self.store), answer)
        return shards

    def run_shard(self, claim: BulkClaim, answer: Answer = echoed) -> None:
        results = self.results(claim, answer)
        middle = len(results) // 2  # two segments, and not in input order
        for seq, segment in enumerate((results[middle:], results[:middle])):
            self.commit(claim, seq, segment)
        with self.store.transaction() as tx:
            assert tx.shards.complete(claim.lease, rows_total=len(results))

    def results(self, claim: BulkClaim, answer: Answer = echoed) -> list[RowResult]:
        source = self.sources.open(claim.shard.uri, claim.lease.tenant_id)
        spec, limit = claim.job.spec, LINE_BYTES_MAX
        rows = rows_of(source.store, source.key, claim.shard, spec, line_bytes_max=limit)
        return [
            result_of(claim, row.index, to_request(row, claim.job.spec, claim.shard), answer) for row in rows
        ]

    def commit(self, claim: BulkClaim, seq: int, results: Sequence[RowResult]) -> None:
        if not results:
            return
        head = ShardHead.of_shard(claim.job, claim.shard.shard_no)
        encoded = encode_segment(head, results, is_measured=claim.job.face is Face.OPENAI)
        key = segment_key(claim.lease, claim.shard.shard_no, seq)
        self.objects.put(key, encoded.data)
        segment = Segment(
            key=key,
            term=claim.lease.term,
            seq=seq,
            succeeded=sum(result.succeeded for result in results),
            failed=sum(not result.succeeded for result in results),
            usage=sum((result.usage for result in results), Usage()),
            size_bytes=len(encoded.data),
            sha256=hashlib.sha256(encoded.data).hexdigest(),
            output_bytes=encoded.output_bytes,
        )
        with self.store.transaction() as tx:
            assert transitions.commit_segment(tx, claim.lease, segment, tx.now(), rows_total=None)


def result_of(claim: BulkClaim, row: int, request: Any, answer: Answer) -> RowResult:
    if isinstance(request, RowRequest):
        status, body = answer(request)
    else:
        status, body = 400, {"error": {"code": request.code, "message": request.message}}
    head = ShardHead.of_shard(claim.job, claim.shard.shard_no)
    usage = Usage(prompt_tokens=3, completion_tokens=2)
    values = endpoints.get(claim.job.spec.endpoint).values(body) if status < 400 else {}
    return RowResult.from_result(
        head, row, request.custom_id, Result(status, usage, values, body), request.kept
    )


def a_line(custom_id: str, text: str = "hello", *, model: str = MODEL, **overrides: Any) -> JsonObject:
    """One line of a batch file."""
    line = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": model, "messages": [{"role": "user", "content": text}]},
    }
    return {**line, **overrides}


def jsonl(values: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def lines_of(data: bytes) -> list[JsonObject]:
    return [json.loads(line) for line in data.splitlines()]


def answered(store: Store, status_code: int = 200, **overrides: Any) -> Submitted:
    """An online request that has its answer."""
    submitted = submit_online(store, **overrides)
    claim = claimed_online(store, submitted.shard_id)
    with store.transaction() as tx:
        assert transitions.record_answer(tx, claim, an_answer(status_code), tx.now())
    return submitted
