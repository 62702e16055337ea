"""From a path or a hub id to a model server.

Needs torch, and so is imported only when models are loaded: a worker starts quickly, and tests replace it.
"""

import hashlib
from pathlib import Path
from typing import cast

import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, GenerationConfig

from nightshift.errors import ConfigurationError
from nightshift.fleet.checkpoints import model_id
from nightshift.fleet.models import Model, ModelKind
from nightshift.settings import WorkerSettings
from workers.engine import Engine, EngineConfig, EngineError
from workers.engine.config import DTypeName, KvCacheDTypeName, WeightDTypeName
from workers.engine.encoders.model import EncoderModel
from workers.serving.embedding_server import EmbeddingServer
from workers.serving.inference import SamplingDefaults
from workers.serving.model_server import ModelServer, OnFatal
from workers.serving.text_server import TextServer


def load_model(path_or_id: str, position: int, settings: WorkerSettings, on_fatal: OnFatal) -> ModelServer:
    """Load one model and its engine. Raises ConfigurationError saying why it cannot be served."""
    transformers.utils.logging.disable_progress_bar()
    try:
        if _is_decoder(path_or_id):
            return _load_decoder(path_or_id, position, settings, on_fatal)
        return _load_encoder(path_or_id, position, settings, on_fatal)
    except (EngineError, OSError, ValueError, SafetensorError) as error:
        why = " ".join(str(error).split())  # the hub's reasons have several lines
        raise ConfigurationError(
            f"The model {path_or_id!r} cannot be served: {why}", param="MODELS"
        ) from error


def _load_decoder(path_or_id: str, position: int, settings: WorkerSettings, on_fatal: OnFatal) -> ModelServer:
    engine = Engine.load(
        EngineConfig(
            model=path_or_id,
            dtype=cast(DTypeName, settings.dtype),
            deterministic=settings.deterministic,
            weight_dtype=cast(WeightDTypeName, settings.engine_weight_dtype),
            kv_cache_dtype=cast(KvCacheDTypeName, settings.engine_kv_cache_dtype),
            device=settings.device,
            max_num_seqs=settings.engine_max_num_seqs,
            num_kv_blocks=settings.engine_num_kv_blocks,
            interactive_step_budget_ms=settings.engine_interactive_step_budget_ms,
        )
    )
    model = Model(
        id=model_id(path_or_id),
        kind=ModelKind.DECODER,
        context_length=engine.context_length,
        revision=_revision(path_or_id),
        position=position,
    )
    return TextServer(model, engine, on_fatal, _sampling_defaults(path_or_id))


def _load_encoder(path_or_id: str, position: int, settings: WorkerSettings, on_fatal: OnFatal) -> ModelServer:
    device = "cpu" if settings.device == "auto" else settings.device
    encoder = EncoderModel.load(path_or_id, cast(DTypeName, settings.dtype), device)
    model = Model(
        id=model_id(path_or_id),
        kind=ModelKind.ENCODER,
        context_length=encoder.max_length,
        revision=_revision(path_or_id),
        position=position,
    )
    return EmbeddingServer(model, encoder, on_fatal)


def _sampling_defaults(path_or_id: str) -> SamplingDefaults:
    try:
        config = GenerationConfig.from_pretrained(path_or_id)
    except OSError:  # no generation_config.json
        return SamplingDefaults()
    return SamplingDefaults.from_generation_config(config.to_diff_dict())


def _is_decoder(path_or_id: str) -> bool:
    architectures = AutoConfig.from_pretrained(path_or_id, trust_remote_code=False).architectures or []
    return any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures)


def _revision(path_or_id: str) -> str:
    """Identifies the weights: the hub's commit, or a digest of the files' sizes and times."""
    directory = Path(path_or_id)
    if not directory.is_dir():
        return str(getattr(AutoConfig.from_pretrained(path_or_id), "_commit_hash", None) or "unknown")
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    for weights in sorted(directory.glob("*.safetensors")):
        digest.update(f"{weights.name} {weights.stat().st_size} {weights.stat().st_mtime_ns}".encode())
    return f"local-{digest.hexdigest()[:16]}"
