"""The engine: requests in, tokens and text out, one step at a time.

`add` and `abort` may be called from any thread; `step` by one, in a loop, while `has_work`.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import torch

from ..checkpoint.kinds import DECODER, require_kind
from ..core.batcher import Batcher, Chunk
from ..core.config import EngineConfig
from ..core.kv_blocks import NUM_KEPT_MIN, BlockPool, chain_digests, salted
from ..core.kv_groups import BlockDemand
from ..core.live_request import LiveRequest, ModelFacts, RequestLimits
from ..core.request import FinishReason, MadeBy, Output, Request, TokenLogprobs
from ..core.roofline import Roofline
from ..core.sequence import SampledRow, Sequence
from ..core.speculation.speculator import Speculator
from ..core.stats import EAGER_REASONS, EngineHistograms, EngineStats
from ..core.steps import step_shape
from ..errors import DuplicateRequest, GrammarFailed
from ..execution.device.devices import DeviceMemory, on_device
from ..execution.model_runner import is_out_of_memory
from ..loading.model import LoadedModel, load_model
from ..loading.runner import make_draft_runner, make_runner
from ..loading.weights import instruction_set
from ..sampling.prompt_scores import PromptScores
from ..sampling.sampler import Sampled, Sampler
from ..text.tokenizer import Tokenizer
from .draft_model import DraftModel
from .drafting import Drafting
from .launched import AdapterLoader, LaunchedStep, Runner
from .reading import Reader

if TYPE_CHECKING:  # needs llguidance
    from ..guidance.compiler import GrammarCompiler, RunAside

log = logging.getLogger(__name__)


CPU = torch.device("cpu")

COMPILE_WAIT_S = 0.01
"""A step without other work waits so long for a grammar; what comes in meanwhile waits with it."""


class Engine:
    """Continuous batching over one model. Build it with `Engine.load`."""

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        model: ModelFacts,
        pool: BlockPool,
        config: EngineConfig,
        device: torch.device = CPU,
        windows: tuple[int | None, ...] = (None,),
        roofline: Roofline | None = None,
        adapters: AdapterLoader | None = None,
        draft_runner: Runner | None = None,
    ) -> None:
        """`windows` are those of the model's groups of layers (`KvGroups`); `draft_runner`: the draft's."""
        self.tokenizer = tokenizer
        self._device = device
        self._model = model
        self._runner = runner
        self._pool = pool
        is_cuda = model.device == "cuda"
        groups = config.group_admissions
        self._batcher = Batcher(
            pool,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            reuse_prefixes=config.enable_prefix_reuse,
            step_budget_ms=config.interactive_step_budget_ms,
            windows=windows,
            admits_in_groups=is_cuda if groups is None else groups,
            num_adapter_slots=0 if adapters is None else adapters.num_slots,
        )
        self._adapters = adapters
        self._tables = self._batcher.tables
        self.limits = RequestLimits(
            model,
            BlockDemand(windows, pool.block_size),
            pool.num_blocks,
            pool.block_size,
            {} if adapters is None else adapters.digests,
        )
        self._reuses_prefixes = config.enable_prefix_reuse
        self._sampler = Sampler(model.eos_token_ids)
        self._reader = Reader(tokenizer, model.eos_token_ids, model.vocab_size)
        self._grammars: GrammarCompiler | None = None  # at the first grammar
        self._compile_aside: RunAside | None = None
        self._uncompiled: dict[str, LiveRequest] = {}  # those that the batcher does not have yet
        self._overlaps = config.overlap_steps if config.overlap_steps is not None else is_cuda
        self._drafting: Drafting | None = None
        if config.speculation == "auto" and not model.source_length:
            draft_model = None
            if draft_runner is not None:
                draft_model = DraftModel(draft_runner, self._batcher, model.eos_token_ids)
            self._drafting = Drafting(Speculator(draft_model), self._batcher, overlaps=self._overlaps)
        self._in_flight: LaunchedStep | None = None
        self._settled_s = 0.0
        self.made_by = MadeBy(
            model_id=model.id,
            model_digest=model.digest,
            dtype=model.dtype,
            weight_dtype=model.weight_dtype,
            device=model.device,
            isa=instruction_set(model.device),
            torch_version=torch.__version__,
            attention_backend=model.attention_backend,
            kv_cache_dtype=model.kv_cache_dtype,
            deterministic=config.deterministic,
        )
        self.histograms = EngineHistograms()
        self._roofline = roofline
        self._roofline_s = 0.0
        self._live: dict[str, LiveRequest] = {}
        self._outbox: list[Output] = []
        # The inbox is all that other threads touch. A step takes it over in one go.
        self._inbox_lock = threading.Lock()
        self._inbox: deque[LiveRequest | str] = deque()  # sequences to add, ids to abort, in order of arrival
        self._known_ids: set[str] = set()
        self._arrivals = 0
        self._steps = self._tokens_computed = self._tokens_generated = self._out_of_memory = 0

    @classmethod
    def load(cls, config: EngineConfig) -> Engine:
        """Loads model and tokenizer, proves that the model is computed rightly, and allocates KV memory.

        Raises `ModelLoadFailed`, `UnsupportedModel` or `InvalidConfig`.
        """
        require_kind(config.model, config.revision, DECODER)  # or the tokenizer would be refused first
        return cls.over(load_model(config))

    @classmethod
    def over(cls, model: LoadedModel, memory: DeviceMemory | None = None) -> Engine:
        """An engine with KV memory for a model that is loaded and proven. Raises `InvalidConfig`.

        `memory` is its part of the device's; None gives it all that may be taken now.
        """
        with on_device(model.device):
            return cls._over(model, memory)

    @classmethod
    def _over(cls, model: LoadedModel, memory: DeviceMemory | None) -> Engine:
        facts, groups, config = model.facts, model.groups, model.config
        runner, num_blocks = make_runner(model, memory)
        draft_runner = None if model.draft is None else make_draft_runner(model, runner, num_blocks)
        extra_key = "|".join((facts.digest, facts.dtype, facts.kv_cache_dtype)).encode()
        num_kept_min = NUM_KEPT_MIN * len(groups.windows)  # a block has the KV of one group only
        pool = BlockPool(num_blocks, config.block_size, extra_key, num_kept_min=num_kept_min)
        windows = groups.windows
        engine = cls(
            *(runner, model.tokenizer, facts, pool, config, model.device, windows, model.roofline),
            adapters=model.adapters,
            draft_runner=draft_runner,
        )
        engine._sampler.compile_kernels(facts.vocab_size, model.device)
        room = f"{num_blocks} KV blocks, one sequence up to {engine.longest_sequence} tokens"
        log.info("engine loaded: model %s, %s, layers' windows %s", facts.id, room, windows)
        log.info("load of %s took %s", facts.id, model.times)
        return engine

    def close(self) -> None:
        """Does nothing: an engine in a process of its own ends that."""

    def compile_aside(self, run: RunAside) -> None:
        """Compiles grammars on these threads, where flows take turns; called before the first request."""
        self._compile_aside = run

    @property
    def model_id(self) -> str:
        return self._model.id

    @property
    def context_length(self) -> int:
        """Tokens that prompt and output may have together."""
        return self._model.context_length

    @property
    def longest_sequence(self) -> int:
        """Tokens that one sequence may have, in the model's context and in KV memory."""
        return self._tables.capacity(self._model.source_length + self._model.context_length)

    @property
    def has_work(self) -> bool:
        return bool(self._known_ids)

    def check(self, request: Request) -> None:
        """Raises what `add` raises of a request that can never run here, and takes nothing in."""
        self.limits.token_limit(request)

    def add(self, request: Request) -> None:
        """Takes a request in; it starts at the next step. Callable from any thread.

        Raises `PromptTooLong`, `DuplicateRequest` or another `InvalidRequest` if it can never run here.
        """
        limit = self.limits.token_limit(request)
        digests = self._prompt_digests(request)  # here, on the caller's thread: a step should not wait for it
        text = self.tokenizer.text_stream(request.prompt_token_ids, request.sampling.stop)
        thought, compiling = self._reader.new_thought(request), None
        if request.grammar is not None:
            salt, flow = request.cache_salt, request.flow
            compiling = self._compiler().compile(request.grammar, cache_salt=salt, flow=flow)
        with self._inbox_lock:
            if request.id in self._known_ids:
                raise DuplicateRequest(request.id)
            sequence = Sequence(
                request,
                arrival=self._arrivals,
                num_tokens_max=limit,
                num_groups=self._tables.num_groups,
                block_size=self._pool.block_size,
                adapter_digest=self._adapter_digest(request),
            )
            sequence.block_digests = digests
            sequence.thought = thought
            self._arrivals += 1
            self._known_ids.add(request.id)
            counts = self.histograms.of_class(request.priority)
            logprobs = list(request.output_logprobs)
            self._inbox.append(LiveRequest(sequence, text, logprobs, counts, compiling=compiling))

    def abort(self, request_id: str) -> None:
        """Ends a request at the next step, which reports it as "abort". Callable from any thread.

        An id the engine does not know, or no longer, is ignored: it may have finished a moment ago.
        """
        with self._inbox_lock:
            if request_id in self._known_ids:
                self._inbox.append(request_id)

    def step(self) -> list[Output]:
        """Advances every sequence that fits and returns what is new. A step that raises loses nothing."""
        self._take_inbox()
        if self._uncompiled:
            self._take_compiled()
        if self._drafting is not None and self._drafting.is_due:
            self._settle()  # tokens are drafted after those that are known
        chunks = self._load_adapters(self._batcher.plan())
        launched = self._try_launch(chunks) if chunks else None
        self._settle()  # the step before, if it is still in flight: it was computed in the meantime
        self._in_flight = launched
        if not self._overlaps or (launched is not None and launched.num_drafted):
            self._settle()
        return self._take_outbox()

    def generated(self, request_id: str, start: int = 0) -> tuple[list[int], list[TokenLogprobs]]:
        """Output tokens of a request from the `start`-th on, with log-probabilities if it asks for them.

        Callable from any thread. Nothing of a request that the engine does not know, or no longer.
        """
        live = self._live.get(request_id)
        if live is None:
            return [], []
        logprobs = live.logprobs[start:]
        token_ids = live.sequence.token_ids[live.sequence.num_prompt_tokens + start :].tolist()
        if live.sequence.sampling.logprobs is not None:
            del token_ids[len(logprobs) :]  # the newest may have come without them yet
        return token_ids, logprobs[: len(token_ids)]

    def stats(self) -> EngineStats:
        """Is called on the engine's thread, or between steps: it takes no lock."""
        drafts = None if self._drafting is None else self._drafting.speculator
        return EngineStats(
            running=self._batcher.num_running,
            waiting=len(self._known_ids) - self._batcher.num_running,
            blocks_free=self._pool.num_free,
            blocks_total=self._pool.num_blocks,
            preemptions=self._batcher.num_preemptions,
            steps=self._steps,
            tokens_computed=self._tokens_computed,
            tokens_generated=self._tokens_generated,
            tokens_queried=self._batcher.num_tokens_queried,
            tokens_reused=self._batcher.num_tokens_reused,
            tokens_recomputed=self._batcher.num_tokens_recomputed,
            deferrals=self._batcher.num_deferrals,
            out_of_memory=self._out_of_memory,
            max_num_batched_tokens=self._batcher.limits.max_num_batched_tokens,
            eager_steps=dict.fromkeys(EAGER_REASONS, 0) | self._runner.eager_steps,
            roofline_seconds=None if self._roofline is None else self._roofline_s,
            num_drafts=0 if drafts is None else drafts.num_drafts,
            num_draft_tokens=0 if drafts is None else drafts.num_draft_tokens,
            num_accepted_tokens=0 if drafts is None else drafts.num_accepted_tokens,
        )

    def check_integrity(self) -> None:
        """Asserts that sequences, blocks and ids agree. Call it between steps."""
        self._batcher.check_integrity()
        inside = {sequence.id for sequence in [*self._batcher.running, *self._batcher.waiting]}
        inside |= set(self._uncompiled)
        assert inside == set(self._live), "the batcher holds other sequences than the engine"
        assert set(self._live) <= self._known_ids, "a live request is unknown"

    def _prompt_digests(self, request: Request) -> list[bytes]:
        """Digests of the full blocks of what is known of a request; none if they are not looked for."""
        if not self._reuses_prefixes:
            return []
        token_ids = array("q", [*request.prompt_token_ids, *request.output_token_ids])
        root = salted(self._pool.root_digest, request.cache_salt, self._adapter_digest(request))
        return chain_digests(root, token_ids, self._pool.block_size)

    def _adapter_digest(self, request: Request) -> str:
        return "" if request.adapter is None else self.limits.adapters[request.adapter]

    def _take_inbox(self) -> None:
        """Applies what other threads asked for since the last step."""
        with self._inbox_lock:
            items, self._inbox = self._inbox, deque()
        for item in items:
            if isinstance(item, LiveRequest):
                self._admit(item)
            elif item in self._live:  # else it finished before the abort was seen
                self._outbox.append(self._finish(self._live[item], "abort", "", []))

    def _take_outbox(self) -> list[Output]:
        outputs, self._outbox = self._outbox, []
        return outputs

    def _load_adapters(self, chunks: list[Chunk]) -> list[Chunk]:
        """Loads the adapters that have got a slot; leaves out chunks of those that cannot be."""
        if self._adapters is None:
            return chunks
        with on_device(self._device):
            self._batcher.adapters.load_new(self._adapters.put, self._give_up_adapter)
        return [chunk for chunk in chunks if chunk.sequence.id in self._live]

    def _give_up_adapter(self, name: str, reason: str) -> None:
        for sequence in self._batcher.running:
            if sequence.adapter == name:
                self._outbox.append(self._fail(self._live[sequence.id], reason))

    def _try_launch(self, chunks: list[Chunk]) -> LaunchedStep | None:
        """Launches a step; None if memory did not suffice, and smaller steps come next."""
        try:
            if self._drafting is not None:
                with on_device(self._device):
                    self._drafting.draft(chunks, self._settled_s)
            return self._launch(chunks)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0] or type(error).__name__
        # Not inside the handler: while the error is alive, so are the tensors of the pass that failed.
        self._shrink(chunks, reason)
        return None

    def _shrink(self, chunks: Seq[Chunk], reason: str) -> None:
        """Plans smaller steps from now on; if they cannot be smaller, the sequence that does not fit ends."""
        self._out_of_memory += 1
        too_large = self._batcher.out_of_memory(chunks)
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        log.warning("out of memory: %d sequences, %d tokens, %s", len(chunks), num_tokens, reason)
        if too_large is not None and too_large.id in self._live:  # it may have ended with the step in flight
            self._outbox.append(self._fail(self._live[too_large.id], f"out of memory: {reason}"))

    def _launch(self, chunks: list[Chunk]) -> LaunchedStep:
        """Starts a step on the device, its sampling included; its tokens are promised from now on.

        If it raises, nothing has changed.
        """
        launched_s, shape = time.perf_counter(), step_shape(chunks)
        sampled = [chunk for chunk in chunks if chunk.is_last]
        rows: list[SampledRow] = []
        for chunk in sampled:
            rows.append(chunk.sequence)
            rows += chunk.draft
        starts = [chunk.sequence.num_computed_tokens for chunk in chunks]
        promised = self._in_flight.choice.tokens if self._in_flight else None
        with on_device(self._device):
            logits = self._runner.forward(chunks, promised)
            if promised is not None and any(row.is_steered for row in rows):
                # Those before decide which tokens may come, so they are read while the device computes.
                self._settle()
                promised = None
            scores = None
            if len(logits) > len(rows):
                logits, scores = logits[: len(rows)], PromptScores(logits[len(rows) :], chunks)
            choice = self._sampler.choose(logits, rows, promised)
        for chunk in chunks:
            live = self._live.get(chunk.sequence.id)
            if live is not None:  # else it ended with the step just settled
                self._batcher.advance(chunk)
                if live.launched_s is None:
                    live.count_launch(launched_s)
        row = 0
        for chunk in sampled:
            chunk.sequence.promise(row)
            row += 1 + len(chunk.draft)
        num_drafted = len(rows) - len(sampled)
        return LaunchedStep(chunks, starts, sampled, num_drafted, choice, shape, launched_s, scores)

    def _settle(self) -> None:
        """Reads the tokens of the step in flight, publishes its blocks, and reports what is new."""
        step, self._in_flight = self._in_flight, None
        if step is None:
            return
        result = step.choice.read()
        self._runner.check()
        self._observe(step)
        for chunk, start in zip(step.chunks, step.starts, strict=True):
            self._batcher.publish(chunk, start)
        if step.scores is not None:
            self._take_scores(step.scores)
        row = 0
        for chunk in step.sampled:
            sequence = chunk.sequence
            sequence.num_promised -= 1
            if chunk.draft and self._drafting is not None:
                self._take_drafted(self._drafting, chunk, result, row)
                row += 1 + len(chunk.draft)
                continue
            live = self._live.get(sequence.id)
            # A sequence that ended or was aborted while this step was in flight needs no other token.
            if live is not None and live.sequence is sequence:
                self._report(self._advance(live, result.tokens[row], result.logprobs.get(row)))
            row += 1

    def _observe(self, step: LaunchedStep) -> None:
        """Counts a step that is done, and learns from the time that it took."""
        settled_s = time.perf_counter()
        # A step launched before the last one was done began when that one was.
        shape, seconds = step.shape, settled_s - max(step.launched_s, self._settled_s)
        self._settled_s = settled_s
        self._batcher.observe(shape, seconds)
        if self._drafting is not None and shape.tokens == step.num_rows:
            self._drafting.speculator.observe(shape, seconds)
        self._steps += 1
        self._tokens_computed += shape.tokens
        self.histograms.observe_step(len(step.chunks), shape.tokens)
        if self._roofline is not None:
            self._roofline_s += step.least_seconds(self._roofline)

    def _take_drafted(self, drafting: Drafting, chunk: Chunk, result: Sampled, row: int) -> None:
        """Takes the tokens sampled for a chunk from `row` on, as long as each is the one drafted there."""
        sequence = chunk.sequence
        tokens = result.tokens[row : row + 1 + len(chunk.draft)]

        def take(index: int) -> bool:
            live = self._live.get(sequence.id)
            if live is None or live.sequence is not sequence:
                return False
            self._report(self._advance(live, tokens[index], result.logprobs.get(row + index)))
            return sequence.id in self._live

        drafting.verify(chunk, tokens, take)

    def _take_scores(self, scores: PromptScores) -> None:
        """Keeps log-probabilities of prompts. A preempted one computes some again."""
        for sequence, start, logprobs in scores.read():
            live = self._live.get(sequence.id)
            if live is None or live.sequence is not sequence:
                continue
            if logprobs is None:
                self._report(self._fail(live, "the model's logits are not finite"))
                continue
            live.prompt_logprobs[start:] = logprobs

    def _compiler(self) -> GrammarCompiler:
        # Imported at the first grammar: without one, the engine runs where llguidance is not installed.
        from ..guidance.compiler import GrammarCompiler

        with self._inbox_lock:
            if self._grammars is None:
                vocab_size, eos = self._model.vocab_size, self._model.eos_token_ids
                self._grammars = GrammarCompiler(self.tokenizer, vocab_size, eos, self._compile_aside)
            return self._grammars

    def _take_compiled(self) -> None:
        """Admits sequences whose grammars are compiled; with nothing else to do, waits for one a moment."""
        waiting = [(live, live.compiling) for live in self._uncompiled.values() if live.compiling is not None]
        if self._in_flight is None and not self._batcher.has_work:
            from ..guidance.compiler import wait_for_any

            wait_for_any([compiling for _, compiling in waiting], COMPILE_WAIT_S)
        for live, compiling in waiting:
            try:
                live.sequence.guide = compiling.guide()
            except GrammarFailed as error:
                self._outbox.append(self._refuse(live, str(error)))
                continue
            if live.sequence.guide is not None:
                del self._uncompiled[live.sequence.id]
                self._admit(live)

    def _admit(self, live: LiveRequest) -> None:
        """Hands a new sequence to the batcher; a resumed one first repeats what it has."""
        self._live[live.sequence.id] = live
        if live.compiling is not None and live.sequence.guide is None:
            self._uncompiled[live.sequence.id] = live
            return
        self._batcher.add(live.sequence)
        if live.sequence.num_output_tokens:
            self._report(self._replay(live))

    def _replay(self, live: LiveRequest) -> Output | None:
        """Turns a resumed sequence's tokens into text again."""
        sequence, earlier = live.sequence, live.sequence.output_token_ids
        try:
            text, reason = self._reader.read_again(live)
        except GrammarFailed as error:
            return self._refuse(live, str(error))
        if reason is not None:
            return self._finish(live, reason, text, sequence.output_token_ids)
        return live.new_output(text, earlier)

    def _report(self, output: Output | None) -> None:
        if output is not None:
            self._outbox.append(output)

    def _advance(self, live: LiveRequest, token: int | None, logprobs: TokenLogprobs | None) -> Output | None:
        """Appends a sampled token, and sees whether it ends the sequence. One that fails ends alone."""
        sequence = live.sequence
        if token is None:
            guide, allowed = sequence.guide, sequence.sampling.allowed_token_ids
            if guide is not None and allowed and not guide.allows_any(allowed, self._model.vocab_size):
                return self._refuse(live, "it allows none of allowed_token_ids here")
            return self._fail(live, "the model's logits are not finite")
        try:
            sequence.append(token)
            if logprobs is not None:
                live.logprobs.append(logprobs)
            self._tokens_generated += 1
            live.count_token(self._settled_s)
            text, reason = self._reader.read(live, token)
        except GrammarFailed as error:
            return self._refuse(live, str(error))
        except Exception as error:
            log.exception("sequence failed: id %s, token %d", sequence.id, token)
            return self._fail(live, f"{type(error).__name__}: {error}")
        if reason is not None:
            return self._finish(live, reason, text, [token])
        return live.new_output(text, [token])

    def _fail(self, live: LiveRequest, reason: str) -> Output:
        """Ends one sequence the model failed on, and keeps its values out of reach of the others."""
        sequence = live.sequence
        log.error("sequence given up: id %s, %d tokens, %s", sequence.id, sequence.num_tokens, reason)
        blocks = self._pool.forget(sequence.blocks)
        if self._tables.has_windows:  # those that have left the windows hold the same values
            blocks += self._pool.discard(self._tables.names(sequence))
        self._runner.clear_blocks(blocks)
        output = self._finish(live, "abort", "", [])
        output.error = reason
        return output

    def _refuse(self, live: LiveRequest, reason: str) -> Output:
        """Ends one sequence because of its grammar."""
        output = self._finish(live, "abort", "", [])
        output.error, output.is_refused = f"the grammar cannot be used: {reason}", True
        return output

    def _finish(self, live: LiveRequest, reason: FinishReason, text: str, token_ids: list[int]) -> Output:
        sequence = live.sequence
        live.count_end()
        if self._uncompiled.pop(sequence.id, None) is None:
            self._batcher.remove(sequence)
        del self._live[sequence.id]
        with self._inbox_lock:
            self._known_ids.discard(sequence.id)
        return live.last_output(reason, text, token_ids)
