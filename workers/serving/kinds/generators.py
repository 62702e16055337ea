"""Kinds that generate text, and keep KV in their part of the device's memory: decoders, encoder-decoders."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Final

from transformers import GenerationConfig

from nightshift.errors import ConfigurationError
from nightshift.fleet.models import Model, OutputSizes
from nightshift.process.settings import WorkerSettings
from nightshift.tenants.cache_groups import CacheGroups
from nightshift.tenants.turns import TurnThreads
from nightshift_engine import AdapterPath, Engine, EngineConfig, SamplingParams
from nightshift_engine.errors import InvalidSamplingParams
from nightshift_engine.models import (
    DECODER,
    SEQ2SEQ,
    DeviceMemory,
    Footprint,
    LoadedModel,
    Tokenizer,
    generator_footprint,
    load_model,
    load_seq2seq,
    resolve_device,
    seq2seq_config,
)
from workers.serving.engine_process.engine_process import EngineProcess
from workers.serving.engine_process.launching import cores_here, has_engine_process
from workers.serving.hub import directory_of
from workers.serving.inference import SamplingDefaults
from workers.serving.kinds.answer_sizes import token_sizes
from workers.serving.kinds.kind import Loaded, ServedKind, Source
from workers.serving.model_server import OnFatal
from workers.serving.servers.seq2seq_server import Seq2seqServer
from workers.serving.servers.text_server import TextServer
from workers.serving.stepping_server import SteppingServer

GRAMMARS_COMPILED_MAX: Final = 2
"""Grammars compiled at a time in a worker, for one tenant; another one is left a thread."""


@dataclass(frozen=True)
class Weights:
    """A model without KV memory."""

    model: Model
    loaded: LoadedModel
    cache_groups: CacheGroups

    def engine(self, memory: DeviceMemory | None) -> Engine:
        engine = Engine.over(self.loaded, memory)
        engine.compile_aside(grammar_threads().run)
        return engine


class GeneratorKind(ServedKind):
    """A kind whose models run on the engine for text."""

    is_batched_dynamically = False

    @abstractmethod
    def config(self, source: Source, settings: WorkerSettings) -> EngineConfig: ...

    @property
    @abstractmethod
    def load_weights(self) -> Callable[[EngineConfig], LoadedModel]: ...

    @abstractmethod
    def serve(self, weights: Weights, memory: DeviceMemory | None, on_fatal: OnFatal) -> SteppingServer: ...

    def footprint(self, source: Source, settings: WorkerSettings) -> Footprint:
        return generator_footprint(self.config(source, settings), source.directory)

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        loaded = self.load_weights(self.config(source, settings))
        sizes = _sizes(loaded.tokenizer)
        model = self.model(source, context_length=loaded.facts.context_length, output_sizes=sizes)
        weights = Weights(model, loaded, settings.prefix_cache_groups)
        return Loaded(
            source.path_or_id,
            lambda memory, on_fatal: self.serve(weights, memory, on_fatal),
            loaded.device,
        )


class Decoders(GeneratorKind):
    kind = DECODER
    has_adapters = True
    load_weights = staticmethod(load_model)

    def config(self, source: Source, settings: WorkerSettings) -> EngineConfig:
        adapters = tuple(AdapterPath(adapter.name, adapter.path) for adapter in source.adapters)
        draft = settings.engine_draft_model
        if draft is not None:
            draft = str(directory_of(draft, may_download=settings.model_downloads))
        return replace(engine_config(str(source.directory), settings), adapters=adapters, draft_model=draft)

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        """Loads into a process of its own where it is the worker's only model and there are cores for two."""
        if not has_engine_process(settings, cores_here()):
            return super().load(source, settings)
        config = self.config(source, settings)
        engine = EngineProcess.start(config)
        sizes = _sizes(engine.tokenizer)
        model = self.model(source, context_length=engine.context_length, output_sizes=sizes)

        def serve(memory: DeviceMemory | None, on_fatal: OnFatal) -> SteppingServer:
            try:
                engine.open(memory, on_fatal)
                defaults = sampling_defaults(config.model)
            except BaseException:
                engine.close()
                raise
            return TextServer(model, engine, on_fatal, defaults, settings.prefix_cache_groups)

        return Loaded(source.path_or_id, serve, resolve_device(settings.device))

    def serve(self, weights: Weights, memory: DeviceMemory | None, on_fatal: OnFatal) -> SteppingServer:
        engine = weights.engine(memory)
        defaults = sampling_defaults(weights.loaded.config.model)
        return TextServer(weights.model, engine, on_fatal, defaults, weights.cache_groups)


class Seq2seqModels(GeneratorKind):
    kind = SEQ2SEQ
    load_weights = staticmethod(load_seq2seq)

    def config(self, source: Source, settings: WorkerSettings) -> EngineConfig:
        return seq2seq_config(engine_config(str(source.directory), settings))

    def serve(self, weights: Weights, memory: DeviceMemory | None, on_fatal: OnFatal) -> SteppingServer:
        engine = weights.engine(memory)
        defaults = sampling_defaults(weights.loaded.config.model)
        rules = weights.loaded.forward_pass.rules
        if not rules.do_sample:  # greedy, as transformers' `generate` is
            defaults = replace(defaults, temperature=0.0)
        return Seq2seqServer(weights.model, engine, on_fatal, defaults, rules, weights.cache_groups)


def _sizes(tokenizer: Tokenizer) -> OutputSizes:
    thinks = tokenizer.thought_format is not None
    return token_sizes(tokenizer.token_ids, tokenizer.spelled, thinks=thinks)


@cache
def grammar_threads() -> TurnThreads:
    """Threads of all models of this process; they begin with the first grammar."""
    return TurnThreads("grammar", GRAMMARS_COMPILED_MAX + 1)


def engine_config(path_or_id: str, settings: WorkerSettings) -> EngineConfig:
    """The configuration of one decoder's engine, by the settings. Raises InvalidConfig naming the field."""
    return EngineConfig(
        model=path_or_id,
        dtype=settings.dtype,
        deterministic=settings.deterministic,
        weight_dtype=settings.engine_weight_dtype,
        kv_cache_dtype=settings.engine_kv_cache_dtype,
        attention_backend=settings.engine_attention_backend,
        device=settings.device,
        block_size=settings.engine_block_size,
        num_kv_blocks=settings.engine_num_kv_blocks,
        gpu_memory_utilization=settings.engine_gpu_memory_utilization,
        tensor_parallel_size=settings.engine_tensor_parallel_size,
        max_loras=settings.engine_max_loras,
        max_num_seqs=settings.engine_max_num_seqs,
        max_num_batched_tokens=settings.engine_max_num_batched_tokens,
        max_model_len=settings.engine_max_model_len,
        interactive_step_budget_ms=settings.engine_interactive_step_budget_ms,
        speculation=settings.engine_speculation,
    )


def sampling_defaults(directory: str) -> SamplingDefaults:
    """Defaults of a checkpoint's generation_config.json. Raises ConfigurationError if no request could be
    sampled with them.
    """
    try:
        config = GenerationConfig.from_pretrained(directory)
    except OSError:  # no generation_config.json
        return SamplingDefaults()
    except Exception as error:  # whatever it makes of the library
        reason = f"generation_config.json: {type(error).__name__}: {error}"
        raise ConfigurationError(reason, param="MODELS") from error
    defaults = SamplingDefaults.from_generation_config(config.to_diff_dict())
    given = {name: value for name, value in asdict(defaults).items() if value is not None}
    try:
        SamplingParams(**given)
    except InvalidSamplingParams as error:
        raise ConfigurationError(f"generation_config.json: {error}", param="MODELS") from error
    return defaults
