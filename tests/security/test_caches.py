"""Content that one tenant has put into a cache changes nothing that another one sees.

`PARTED` are the caches that hold what tenants send, each with a way to put the same in and to see whether it
was found. Idempotency keys, files, uploads and results of earlier runs have tests of their own, over HTTP and
on real databases. Every module with a cache is named here.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from nightshift.bulk.results.row_digests import RowDigests
from nightshift.errors import InvalidSetting
from nightshift.fleet.models import Model, ModelKind
from nightshift.process.settings import WorkerSettings
from nightshift.tenants.cache_groups import NO_GROUPS, CacheGroups
from nightshift_engine import Engine, Grammar, Request
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.core.speculation.speculator import Speculator
from nightshift_engine.guidance.compiler import GrammarCompiler
from scheduler.webhooks.circuits import CircuitConfig, Circuits
from scheduler.webhooks.in_flight import webhook_destination
from tests.helpers.fakes import STARTS_AT, a_delivery, a_job
from tests.unit.engine.tiny.decoders import greedy, make_engine, run_to_end, save_model
from tests.unit.workers.serving.conftest import submit
from workers.serving.inference import SamplingDefaults
from workers.serving.models import Models
from workers.serving.servers.text_server import TextServer

ROOT: Final = Path(__file__).resolve().parents[2]
PROMPT: Final = list(range(1, 42))
TEXT: Final = "the words of a secret that nobody else may try out one by one"
LLAMA: Final = Model(id="tiny", kind=ModelKind.DECODER, context_length=128, revision="r", position=0)

Ask = Callable[[str], object]
"""Does the same for a tenant; returns what the tenant may see of it, which shows whether it was known."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"))


def request_of(id: str, tenant: str) -> Request:
    return Request(id, PROMPT, greedy(2), flow=tenant, cache_salt=tenant)


def prefixes(llama: Path) -> Ask:
    """KV blocks of prompts that have been computed."""
    engine = make_engine(llama)

    def ask(tenant: str) -> object:
        engine.add(request_of(f"{tenant}-{engine.stats().steps}", tenant))
        (done,) = run_to_end(engine).values()
        return done.num_cached_tokens

    return ask


def prefixes_in_flight(llama: Path) -> Ask:
    """Blocks that are being computed, for which another sequence would wait."""
    earlier: list[str] = []

    def ask(tenant: str) -> object:
        engine = make_engine(llama)
        earlier.append(tenant)
        for number, other in enumerate(earlier):  # all in one step
            engine.add(request_of(f"{number}", other))
        engine.step()
        return engine.stats().deferrals

    return ask


def drafts(llama: Path) -> Ask:
    """Tokens that followed the same ones in an earlier output of a job of the same name."""
    speculator = Speculator()

    def ask(tenant: str) -> object:
        request = Request("r", PROMPT, greedy(99), group="job", cache_salt=tenant)
        sequence = Sequence(request, arrival=0, num_tokens_max=200)
        for token in range(100, 120):
            sequence.append(token)
        drafted = speculator._propose(sequence).tokens  # its output's last tokens stand nowhere else in it
        for token in range(100, 108):
            sequence.append(token)
        speculator._propose(sequence)  # learns what has come
        again = Sequence(replace(request, prompt_token_ids=range(100, 107)), arrival=1, num_tokens_max=200)
        return [*drafted, *speculator._propose(again).tokens]

    return ask


def usage(llama: Path) -> Ask:
    """The usage of an answer, from which a job's row, a batch's output and `GET /v1/usage` are made."""
    return partial(cached_tokens, make_engine(llama), NO_GROUPS)


def grammars(llama: Path) -> Ask:
    compiling = GrammarCompiler(None, 1, (), lambda flow, task: None)  # type: ignore[arg-type]
    known: list[object] = []

    def ask(tenant: str) -> object:
        grammar = compiling.compile(Grammar("regex", "a+"), cache_salt=tenant, flow=tenant)
        is_known = grammar in known
        known.append(grammar)
        return is_known

    return ask


def row_digests(llama: Path) -> Ask:
    """Digests under which equal rows find one another's results, in a worker and in earlier runs."""
    known: set[bytes] = set()

    def ask(tenant: str) -> object:
        digest = RowDigests(tenant, "/v1/chat/completions", LLAMA).digest_of({"input": TEXT})
        is_known = digest in known
        known.add(digest)
        return is_known

    return ask


def circuits(llama: Path) -> Ask:
    """Whether a receiver answers."""
    known = Circuits(CircuitConfig(failures_max=1))

    def ask(tenant: str) -> object:
        destination = webhook_destination(a_delivery(a_job(tenant_id=tenant)))
        is_open = known.open_until(destination, STARTS_AT)
        known.record(destination, STARTS_AT, answered=False)
        return is_open

    return ask


PARTED: Final[dict[str, Callable[[Path], Ask]]] = {
    "KV of prompts": prefixes,
    "KV that is being computed": prefixes_in_flight,
    "cached tokens of answers": usage,
    "compiled grammars": grammars,
    "drafted tokens": drafts,
    "results of equal rows": row_digests,
    "receivers of webhooks": circuits,
}


@pytest.mark.parametrize("name", PARTED)
def test_what_a_tenant_has_put_into_a_cache_is_found_by_itself_and_by_no_other(
    name: str, llama: Path
) -> None:
    ask = PARTED[name](llama)
    new = ask("first")

    assert ask("second") == new, "as if the first had asked nothing"
    assert ask("first") != new, "else this shows nothing"


def cached_tokens(engine: Engine, groups: CacheGroups, tenant: str) -> int:
    """Cached tokens in the usage of an answer to this tenant."""
    fatal: list[BaseException] = []
    server = TextServer(LLAMA, engine, fatal.append, SamplingDefaults(), groups)
    server.start()
    try:
        body = {"model": LLAMA.id, "prompt": TEXT, "max_tokens": 1, "temperature": 0}
        answer = submit(Models([server]), "/v1/completions", body, tenant_id=tenant).wait()
    finally:
        server.stop()
    assert fatal == []
    return answer.usage.cached_tokens


OF_TENANTS: Final = {
    "nightshift/bulk/results/earlier_results.py",  # of one job
    "scheduler/webhooks/circuits.py",
    "nightshift_engine/core/kv_blocks.py",
    "nightshift_engine/core/speculation/speculator.py",  # by salt and job
    "nightshift_engine/guidance/compiler.py",
    "workers/shard/run_once.py",  # by job and digest; by job, and the job's tenant is compared
}
OF_NO_TENANT: Final = {
    "api/access.py",  # a key's own caller, by its digest
    "api/page/assets.py",
    "api/page/rendering.py",  # templates
    "conformance/session.py",
    "nightshift/lifecycle/catalogue.py",  # models
    "nightshift/process/logs.py",  # lines of the log, which tenants do not see
    "nightshift/bulk/rows/requests.py",  # functions of a format and of a URI alone
    "nightshift/store/databases/database.py",  # which fields of a class have a column
    "nightshift/store/databases/migrate.py",  # the schema
    "nightshift/store/databases/multi_insert.py",  # statements
    "nightshift/schedules/zones.py",  # names of time zones
    "nightshift/store/pending.py",  # statements
    "nightshift_engine/core/adapter_slots.py",  # the adapters of the operator
    "nightshift_engine/guidance/guide.py",  # threads
    "nightshift_engine/sampling/adjustments.py",  # a table of all bytes
    "workers/serving/kinds/generators.py",  # threads
    "workers/upstreams/running/waiting.py",  # requests that wait
}
CACHES: Final = re.compile(r"lru_cache|@cache\b|OrderedDict\(|class Cached")


def test_every_cache_is_named_here() -> None:
    unknown = [
        path.relative_to(ROOT).as_posix()
        for package in ("api", "nightshift", "nightshift_engine", "scheduler", "workers")
        for path in sorted((ROOT / package).rglob("*.py"))
        if CACHES.search(path.read_text())
    ]

    assert {*unknown} - OF_TENANTS - OF_NO_TENANT - {"api/bodies/objects.py"} == set()


def test_tenants_of_a_group_share_their_prefixes_and_no_others(llama: Path) -> None:
    engine, groups = make_engine(llama), CacheGroups.parse(["search+ads"])
    cached = {tenant: cached_tokens(engine, groups, tenant) for tenant in ("search", "ads", "other")}

    assert cached["search"] == cached["other"] == 0
    assert cached["ads"] > 0


@pytest.mark.parametrize("groups", ["search", "search+", "a+b,b+c"])
def test_a_group_that_is_none_is_refused(groups: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_PREFIX_CACHE_GROUPS", groups)
    with pytest.raises(InvalidSetting, match="PREFIX_CACHE_GROUPS"):
        WorkerSettings()
