"""An engine without a model: tokens are a hash, so every answer is known before it is asked for.

    token n of an answer  =  f(prompt, seed, n)          one step a token, for every request that runs

It stands at the engine's own boundary, beneath `TextServer`: everything above it is the real worker. What a
prompt says in its words is obeyed:

    ms=20              each step it takes part in lasts so long
    !abort             os.abort() in the step that would make its first token; !abort@5: its sixth
    !exit 137          os._exit(137)
    !raise             an exception escapes the step
    !hang              the step never ends
    !eat-memory        take memory until the process may have no more: 256 MiB on top of what it has;
                       !eat-memory 512: that many MiB
    !fail              the engine gives this one request up; !fail 2: the first two times in this process
    !wait              no more tokens while the file that `HELD` names is there

Nothing is obeyed any more once the engine is mended: while the file that `MENDED` names is there.
"""

import hashlib
import os
import re
import resource
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from benchmarks import zeros
from nightshift.fleet.checkpoints import model_id
from nightshift.fleet.models import Model, ModelKind
from nightshift.process.settings import WorkerSettings
from nightshift_engine import EngineHistograms, MadeBy, Output, Request, TokenLogprobs
from nightshift_engine.errors import InvalidTokenIds, PromptTooLong
from workers.serving.inference import SamplingDefaults
from workers.serving.model_server import ModelServer, OnFatal
from workers.serving.models import LazyModel
from workers.serving.servers.encoder_server import EmbeddingServer
from workers.serving.servers.text_server import TextServer

MODEL: Final = "fake"
EMBEDDER: Final = zeros.MODEL.id  # not as a lazy model
CONTEXT_LENGTH: Final = 100_000  # tokens, which are bytes here
TOKENS_DEFAULT: Final = 16  # of an answer whose request names no limit
MEMORY_MAX_BYTES: Final = 256 * 1024 * 1024  # what !eat-memory may take before it fails
STAMPS: Final = (
    "NIGHTSHIFT_FAKE_STAMPS"  # a file: a line "CLOCK_MONOTONIC in ns, added or done, id, tokens" each time
)
LOADING: Final = "NIGHTSHIFT_FAKE_LOADING"  # a file: models are being loaded for as long as it is there
HELD: Final = "NIGHTSHIFT_FAKE_HELD"  # a file: requests that are to wait do so while it is there
MENDED: Final = "NIGHTSHIFT_FAKE_MENDED"  # a file: magic words are not obeyed while it is there
STEP_MS: Final = "NIGHTSHIFT_FAKE_STEP_MS"  # what a step lasts when no prompt says so

_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz      "
_STEP: Final = re.compile(r"\bms=(\d+)")
_MAGIC: Final = re.compile(r"!(abort|exit|raise|hang|eat-memory|fail|wait)(?: (\d+))?(?:@(\d+))?")


def token(prompt: Sequence[int], seed: int, index: int) -> int:
    """The token with this index (from 0) of the answer to a prompt."""
    digest = hashlib.blake2b(bytes(prompt) + f"|{seed}|{index}".encode(), digest_size=1).digest()
    return _LETTERS[digest[0] % len(_LETTERS)]


def answer_tokens(prompt: Sequence[int], seed: int, max_tokens: int | None) -> list[int]:
    """The whole answer to a prompt."""
    return [token(prompt, seed, index) for index in range(max_tokens or TOKENS_DEFAULT)]


class FakeTokenizer:
    """A token is a byte."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    chat_template = ""

    def chat_text(self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any) -> str:
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any) -> list[int]:
        return self.encode(self.chat_text(messages))

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return False


PRIORITIES = ("interactive", "standard", "background")


@dataclass(eq=False)
class _Running:
    request: Request
    arrival: int
    step_s: float
    magic: tuple[str, int | None, int] | None  # what, its number, at which token
    token_ids: list[int] = field(default_factory=list)
    has_spoken: bool = False

    @property
    def order(self) -> tuple[int, int]:
        return PRIORITIES.index(self.request.priority), self.arrival


class FakeEngine:
    """The part of an engine that `TextServer` needs. All but `step` come from any thread."""

    made_by = MadeBy(MODEL, "hash", "bytes", "auto", "cpu", "any", "none", "none", "none", deterministic=True)
    limits = SimpleNamespace(adapters={})

    def __init__(self, num_seqs_max: int) -> None:
        self.tokenizer = FakeTokenizer()
        self._num_seqs_max = num_seqs_max
        self._lock = threading.Lock()
        self._inside: dict[str, _Running] = {}  # running and waiting
        self._aborted: list[str] = []
        self._arrivals = 0
        self._failures: Counter[str] = Counter()
        self._step_s = float(os.environ.get(STEP_MS, "0")) / 1000
        self._stamps = os.environ.get(STAMPS)
        self._mended = os.environ.get(MENDED)
        self._held = os.environ.get(HELD, "")
        self.histograms = EngineHistograms()

    @property
    def has_work(self) -> bool:
        return bool(self._inside)

    def check(self, request: Request) -> None:
        if len(request.prompt_token_ids) >= CONTEXT_LENGTH:
            raise PromptTooLong(len(request.prompt_token_ids), CONTEXT_LENGTH, "context")
        if not {*request.output_token_ids} <= {*range(256)}:
            raise InvalidTokenIds("output", "has a token id that is no byte")

    def add(self, request: Request) -> None:
        self.check(request)
        text = self.tokenizer.decode(request.prompt_token_ids)
        step, magic = _STEP.search(text), _MAGIC.search(text)
        with self._lock:
            self._inside[request.id] = _Running(
                request,
                self._arrivals,
                int(step[1]) / 1000 if step else self._step_s,
                None if magic is None else (magic[1], magic[2] and int(magic[2]), int(magic[3] or 0)),
                list(request.output_token_ids),
            )
            self._arrivals += 1
        self._stamp("added", request.id, len(request.output_token_ids))

    def generated(self, request_id: str, start: int = 0) -> tuple[list[int], list[TokenLogprobs]]:
        one = self._inside.get(request_id)
        return ([], []) if one is None else (one.token_ids[start:], [])

    def stats(self) -> None:
        """It has no figures to show."""

    def abort(self, request_id: str) -> None:
        with self._lock:
            if request_id in self._inside:
                self._aborted.append(request_id)

    def close(self) -> None:
        """Does nothing: it is in this process."""

    def step(self) -> list[Output]:
        """A token for each request that runs; those it has from elsewhere first, at once."""
        with self._lock:
            aborted, self._aborted = self._aborted, []
            gone = [self._inside.pop(id) for id in aborted if id in self._inside]
            running = sorted(self._inside.values(), key=lambda one: one.order)[: self._num_seqs_max]
        self.histograms.observe_step(len(running), len(running))
        time.sleep(max((one.step_s for one in running), default=0.0))
        outputs = [self._output(one, [], "abort") for one in gone]
        outputs += [self._advance(one) for one in running]
        return [output for output in outputs if output is not None]

    def _advance(self, one: _Running) -> Output | None:
        request = one.request
        limit = request.sampling.max_tokens or TOKENS_DEFAULT
        if self._waits(one):
            return self._new(one, [])
        if one.magic is not None and len(one.token_ids) == one.magic[2]:
            error = self._obey(one, *one.magic[:2])
            if error is not None:
                self._leave(one)
                return self._output(one, [], "abort", error)
        assert request.sampling.seed is not None, "every request has one"
        new = [] if one.has_spoken else list(one.token_ids)
        one.has_spoken = True
        if len(one.token_ids) < limit:
            new.append(token(request.prompt_token_ids, request.sampling.seed, len(one.token_ids)))
            one.token_ids.append(new[-1])
        if len(one.token_ids) < limit:
            return self._new(one, new)
        if request.output_kind == "final_only":
            new = list(one.token_ids)
        self._leave(one)
        self._stamp("done", request.id, len(one.token_ids))
        return self._output(one, new, "length")

    def _new(self, one: _Running, token_ids: list[int]) -> Output | None:
        """Returns no outputs of a request whose only output comes at its end."""
        return None if one.request.output_kind == "final_only" else self._output(one, token_ids, None)

    def _waits(self, one: _Running) -> bool:
        return one.magic is not None and one.magic[0] == "wait" and os.path.exists(self._held)

    def _obey(self, one: _Running, what: str, number: int | None) -> str | None:
        """Does what the prompt says. Returns why the engine gives this request up, if it does."""
        if self._mended and os.path.exists(self._mended):
            return None
        match what:
            case "abort":
                os.abort()
            case "exit":
                os._exit(1 if number is None else number)
            case "raise":
                raise RuntimeError("a prompt told the engine to die")
            case "hang":
                threading.Event().wait()
            case "eat-memory":
                _eat_memory(number * 1024 * 1024 if number else MEMORY_MAX_BYTES)
            case "fail":
                prompt = self.tokenizer.decode(one.request.prompt_token_ids)
                self._failures[prompt] += 1
                if number is None or self._failures[prompt] <= number:
                    return "a prompt told the engine to fail on it"
        return None

    def _stamp(self, what: str, id: str, tokens: int) -> None:
        if self._stamps:
            with open(self._stamps, "a") as file:  # one short write: lines of several workers stay whole
                file.write(f"{time.monotonic_ns()} {what} {id} {tokens}\n")

    def _leave(self, one: _Running) -> None:
        with self._lock:
            self._inside.pop(one.request.id, None)

    def _output(self, one: _Running, token_ids: list[int], reason: Any, error: str | None = None) -> Output:
        return Output(
            id=one.request.id,
            text=self.tokenizer.decode(token_ids),
            token_ids=token_ids,
            finish_reason=reason,
            num_prompt_tokens=len(one.request.prompt_token_ids),
            num_output_tokens=len(one.token_ids),
            num_cached_tokens=0,
            error=error,
        )


def _eat_memory(more_bytes: int) -> None:
    """Takes memory until a limit of our own is reached, which spares the machine. Raises MemoryError."""
    used_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + more_bytes, hard))
    eaten = []
    while True:
        eaten.append(b"x" * (16 * 1024 * 1024))  # memory that is written to, so that it is really taken


def load_fakes(settings: WorkerSettings, on_fatal: OnFatal) -> list[ModelServer | LazyModel]:
    """Stands in for `workers.serving.loading.open_models`: any name is a model, `EMBEDDER` one of embeddings
    that are zeros. One lazy model fits at a time.
    """
    fakes = [
        _FakeModel(path_or_id, position, settings, on_fatal)
        for position, path_or_id in enumerate((*settings.models, *settings.lazy_models))
    ]
    pinned, lazy = fakes[: len(settings.models)], fakes[len(settings.models) :]
    return [*(fake.load() for fake in pinned), *(LazyModel(fake.model, 1, fake.load, 1) for fake in lazy)]


@dataclass(frozen=True)
class _FakeModel:
    path_or_id: str
    position: int
    settings: WorkerSettings
    on_fatal: OnFatal

    @property
    def model(self) -> Model:
        return Model(
            id=model_id(self.path_or_id),
            kind=ModelKind.DECODER,
            context_length=CONTEXT_LENGTH,
            revision="fake",
            position=self.position,
        )

    def load(self) -> ModelServer:
        if self.path_or_id == EMBEDDER:
            encoder: Any = zeros.Zeros()
            return EmbeddingServer(zeros.MODEL, encoder, self.on_fatal)
        while os.path.exists(os.environ.get(LOADING, "")):
            time.sleep(0.02)
        engine: Any = FakeEngine(self.settings.engine_max_num_seqs)
        return TextServer(self.model, engine, self.on_fatal, SamplingDefaults())
