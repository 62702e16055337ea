"""Decoders in a worker."""

from dataclasses import asdict, dataclass
from functools import cache
from typing import Final, cast

from transformers import GenerationConfig

from nightshift.errors import ConfigurationError
from nightshift.fleet.models import Model, ModelKind
from nightshift.process.settings import WorkerSettings
from nightshift.tenants.cache_groups import CacheGroups
from nightshift.tenants.turns import TurnThreads
from nightshift_engine import Engine, EngineConfig, InvalidSamplingParams, SamplingParams
from nightshift_engine.checkpoint.kinds import DECODER
from nightshift_engine.core.config import AttentionBackendName, DTypeName, KvCacheDTypeName, WeightDTypeName
from nightshift_engine.execution.device.devices import DeviceMemory
from nightshift_engine.loading.footprint import Footprint, generator_footprint
from nightshift_engine.loading.model import LoadedModel, load_model
from nightshift_engine.text.tokenizer import Tokenizer
from workers.serving.inference import SamplingDefaults
from workers.serving.kinds.answer_sizes import token_sizes
from workers.serving.kinds.kind import Loaded, ServedKind, Source
from workers.serving.model_server import ModelServer, OnFatal
from workers.serving.servers.text_server import TextServer

GRAMMARS_COMPILED_MAX: Final = 2
"""At a time in a worker, of one tenant; another one is left a thread."""


class Decoders(ServedKind):
    """Each keeps the KV of its sequences, in its part of the device's memory."""

    model_kind = ModelKind.DECODER
    kind = DECODER
    is_batched_dynamically = False

    def footprint(self, source: Source, settings: WorkerSettings) -> Footprint:
        return generator_footprint(engine_config(str(source.directory), settings), source.directory)

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        config = engine_config(str(source.directory), settings)
        tokenizer = Tokenizer.load(config.model, config.revision)
        loaded = load_model(config, tokenizer)
        sizes = token_sizes(tokenizer.token_ids, tokenizer.spelled)
        model = self.model(source, context_length=loaded.facts.context_length, output_sizes=sizes)
        weights = _Weights(model, loaded, tokenizer, config, settings.prefix_cache_groups)
        return Loaded(source.path_or_id, weights.serve, loaded.device)


@dataclass(frozen=True)
class _Weights:
    """A decoder without KV memory."""

    model: Model
    loaded: LoadedModel
    tokenizer: Tokenizer
    config: EngineConfig
    cache_groups: CacheGroups

    def serve(self, memory: DeviceMemory | None, on_fatal: OnFatal) -> ModelServer:
        engine = Engine.over(self.loaded, self.tokenizer, self.config, memory)
        engine.compile_aside(grammar_threads().run)
        defaults = sampling_defaults(self.config.model)
        return TextServer(self.model, engine, on_fatal, defaults, self.cache_groups)


@cache
def grammar_threads() -> TurnThreads:
    """Of all models of this process. They begin with the first grammar."""
    return TurnThreads("grammar", GRAMMARS_COMPILED_MAX + 1)


def engine_config(path_or_id: str, settings: WorkerSettings) -> EngineConfig:
    """What the settings say of one decoder's engine. Raises InvalidConfig naming the field."""
    return EngineConfig(
        model=path_or_id,
        dtype=cast(DTypeName, settings.dtype),
        deterministic=settings.deterministic,
        weight_dtype=cast(WeightDTypeName, settings.engine_weight_dtype),
        kv_cache_dtype=cast(KvCacheDTypeName, settings.engine_kv_cache_dtype),
        attention_backend=cast(AttentionBackendName, settings.engine_attention_backend),
        device=settings.device,
        block_size=settings.engine_block_size,
        num_kv_blocks=settings.engine_num_kv_blocks,
        gpu_memory_utilization=settings.engine_gpu_memory_utilization,
        max_num_seqs=settings.engine_max_num_seqs,
        max_num_batched_tokens=settings.engine_max_num_batched_tokens,
        max_model_len=settings.engine_max_model_len,
        interactive_step_budget_ms=settings.engine_interactive_step_budget_ms,
    )


def sampling_defaults(directory: str) -> SamplingDefaults:
    """Of its generation_config.json. Raises ConfigurationError if no request could be sampled with them."""
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
