"""Encoder-decoders in a worker."""

from dataclasses import dataclass, replace

from nightshift.fleet.models import Model, ModelKind
from nightshift.process.settings import WorkerSettings
from nightshift.tenants.cache_groups import CacheGroups
from nightshift_engine import Engine, EngineConfig
from nightshift_engine.checkpoint.kinds import SEQ2SEQ
from nightshift_engine.execution.device.devices import DeviceMemory
from nightshift_engine.loading.footprint import Footprint, generator_footprint
from nightshift_engine.loading.model import LoadedModel
from nightshift_engine.seq2seq.model import load_seq2seq, seq2seq_config
from nightshift_engine.text.tokenizer import Tokenizer
from workers.serving.kinds.answer_sizes import token_sizes
from workers.serving.kinds.decoder import engine_config, grammar_threads, sampling_defaults
from workers.serving.kinds.kind import Loaded, ServedKind, Source
from workers.serving.model_server import ModelServer, OnFatal
from workers.serving.servers.seq2seq_server import Seq2seqServer


class Seq2seqModels(ServedKind):
    """Each keeps the KV of its sources and outputs, in its part of the device's memory."""

    model_kind = ModelKind.SEQ2SEQ
    kind = SEQ2SEQ
    is_batched_dynamically = False

    def footprint(self, source: Source, settings: WorkerSettings) -> Footprint:
        config = seq2seq_config(engine_config(str(source.directory), settings))
        return generator_footprint(config, source.directory)

    def load(self, source: Source, settings: WorkerSettings) -> Loaded:
        config = seq2seq_config(engine_config(str(source.directory), settings))
        tokenizer = Tokenizer.load(config.model, config.revision)
        loaded = load_seq2seq(config, tokenizer)
        sizes = token_sizes(tokenizer.token_ids, tokenizer.spelled)
        model = self.model(source, context_length=loaded.facts.context_length, output_sizes=sizes)
        weights = _Weights(model, loaded, tokenizer, config, settings.prefix_cache_groups)
        return Loaded(source.path_or_id, weights.serve, loaded.device)


@dataclass(frozen=True)
class _Weights:
    """An encoder-decoder without KV memory."""

    model: Model
    loaded: LoadedModel
    tokenizer: Tokenizer
    config: EngineConfig
    cache_groups: CacheGroups

    def serve(self, memory: DeviceMemory | None, on_fatal: OnFatal) -> ModelServer:
        engine = Engine.over(self.loaded, self.tokenizer, self.config, memory)
        engine.compile_aside(grammar_threads().run)
        defaults = sampling_defaults(self.config.model)
        if not self.loaded.forward_pass.rules.do_sample:  # greedy, as transformers' `generate` is
            defaults = replace(defaults, temperature=0.0)
        rules = self.loaded.forward_pass.rules
        block_size, groups = self.config.block_size, self.cache_groups
        return Seq2seqServer(self.model, engine, on_fatal, defaults, rules, block_size, groups)
