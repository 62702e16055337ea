"""From the paths or hub ids of a worker to its model servers.

Needs torch, and so is imported only when models are loaded: a worker starts quickly, and tests replace it.
"""

import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, cast

import transformers
from safetensors import SafetensorError
from transformers import GenerationConfig

from nightshift.errors import ConfigurationError
from nightshift.fleet.checkpoints import model_id
from nightshift.fleet.models import Model, ModelKind
from nightshift.settings import PREFIX, WorkerSettings
from workers.engine import Engine, EngineConfig, EngineError, InvalidSamplingParams, SamplingParams
from workers.engine.config import AttentionBackendName, DTypeName, KvCacheDTypeName, WeightDTypeName
from workers.engine.encoders.model import EncoderModel
from workers.engine.execution.devices import DeviceMemory
from workers.engine.loading.kind import read_kind
from workers.engine.loading.model import LoadedModel
from workers.engine.loading.model import load_model as load_decoder
from workers.engine.text.tokenizer import Tokenizer
from workers.serving.embedding_server import EmbeddingServer
from workers.serving.hub import directory_of
from workers.serving.inference import SamplingDefaults
from workers.serving.model_server import ModelServer, OnFatal
from workers.serving.text_server import TextServer

log = logging.getLogger(__name__)

CONFIGURATION: Final = (".json", ".txt", ".model", ".jinja")


def load_models(settings: WorkerSettings, on_fatal: OnFatal) -> list[ModelServer]:
    """All models of a worker, ready to start, in the order of the settings.

    The weights of all are loaded before the first takes KV memory, of which each then has an equal part.
    Raises ConfigurationError saying which model cannot be served, and why.
    """
    transformers.utils.logging.disable_progress_bar()
    loaded = [_load(path_or_id, position, settings) for position, path_or_id in enumerate(settings.models)]
    decoders = [each for each in loaded if isinstance(each, _Decoder)]
    memory = None
    if decoders:
        device = decoders[0].loaded.device  # that of all: there is one setting
        memory = DeviceMemory.measure(device, settings.engine_gpu_memory_utilization)
        memory = memory.shared_by(len(decoders))
    return [each.serve(memory, on_fatal) for each in loaded]


@dataclass(frozen=True)
class _Decoder:
    """A decoder with its weights, and without KV memory."""

    model: Model
    path_or_id: str
    loaded: LoadedModel
    tokenizer: Tokenizer
    config: EngineConfig

    def serve(self, memory: DeviceMemory | None, on_fatal: OnFatal) -> ModelServer:
        with _refusing(self.path_or_id):
            engine = Engine.over(self.loaded, self.tokenizer, self.config, memory)
            return TextServer(self.model, engine, on_fatal, _sampling_defaults(self.config.model))


@dataclass(frozen=True)
class _Encoder:
    """An encoder, which needs no memory between its steps."""

    model: Model
    encoder: EncoderModel

    def serve(self, memory: DeviceMemory | None, on_fatal: OnFatal) -> ModelServer:
        return EmbeddingServer(self.model, self.encoder, on_fatal)


@contextmanager
def _refusing(path_or_id: str) -> Iterator[None]:
    """Say of an error that this model cannot be served."""
    try:
        yield
    except (ConfigurationError, EngineError, OSError, ValueError, SafetensorError) as error:
        why = _with_settings(" ".join(str(error).split()))  # the hub's reasons have several lines
        raise ConfigurationError(
            f"The model {path_or_id!r} cannot be served: {why}", param="MODELS"
        ) from error
    except Exception as error:  # a model's own code may raise anything, and one of no use ends the worker
        log.exception("loading failed: model %s", path_or_id)
        why = f"loading it failed with {type(error).__name__}: {error}"
        raise ConfigurationError(
            f"The model {path_or_id!r} cannot be served: {why}", param="MODELS"
        ) from error


def _with_settings(reason: str) -> str:
    """A reason of the engine's in which its fields have the names under which an operator sets them."""
    settings = [name for name in WorkerSettings.model_fields if name.startswith("engine_")]
    fields = "|".join(name.removeprefix("engine_") for name in settings)
    named = re.sub(rf"\b({fields})\b", lambda found: f"{PREFIX}ENGINE_{found[0].upper()}", reason)
    return re.sub(r"^(dtype|device|deterministic)\b", lambda found: PREFIX + found[0].upper(), named)


def _load(path_or_id: str, position: int, settings: WorkerSettings) -> _Decoder | _Encoder:
    with _refusing(path_or_id):
        directory = directory_of(path_or_id, may_download=settings.model_downloads)
        if read_kind(str(directory)) == "decoder":
            return _load_decoder(path_or_id, directory, position, settings)
        return _load_encoder(path_or_id, directory, position, settings)


def _load_decoder(path_or_id: str, directory: Path, position: int, settings: WorkerSettings) -> _Decoder:
    config = engine_config(str(directory), settings)
    tokenizer = Tokenizer.load(config.model, config.revision)
    loaded = load_decoder(config, tokenizer)
    model = Model(
        id=model_id(path_or_id),
        kind=ModelKind.DECODER,
        context_length=loaded.facts.context_length,
        revision=_revision(path_or_id, directory),
        position=position,
    )
    return _Decoder(model, path_or_id, loaded, tokenizer, config)


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


def _load_encoder(path_or_id: str, directory: Path, position: int, settings: WorkerSettings) -> _Encoder:
    encoder = EncoderModel.load(str(directory), cast(DTypeName, settings.dtype), settings.device)
    model = Model(
        id=model_id(path_or_id),
        kind=ModelKind.ENCODER,
        context_length=encoder.max_length,
        revision=_revision(path_or_id, directory),
        dtype=encoder.dtype,
        dimensions=encoder.dimensions,
        position=position,
    )
    return _Encoder(model, encoder)


def _sampling_defaults(directory: str) -> SamplingDefaults:
    """Of its generation_config.json. Raises ConfigurationError if no request could be sampled with them."""
    try:
        config = GenerationConfig.from_pretrained(directory)
    except OSError:  # no generation_config.json
        return SamplingDefaults()
    defaults = SamplingDefaults.from_generation_config(config.to_diff_dict())
    given = {name: value for name, value in asdict(defaults).items() if value is not None}
    try:
        SamplingParams(**given)
    except InvalidSamplingParams as error:
        raise ConfigurationError(f"generation_config.json: {error}", param="MODELS") from error
    return defaults


def _revision(path_or_id: str, directory: Path) -> str:
    """Identifies what answers depend on: the hub's commit, or a digest of the tokenizer's and configuration's
    files, and of the sizes and times of the weights.
    """
    if not Path(path_or_id).is_dir():
        return directory.name
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        if path.suffix == ".safetensors":
            digest.update(f"{name} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
        elif path.suffix in CONFIGURATION:
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"local-{digest.hexdigest()[:16]}"
