"""Loads a worker's models from their paths or hub ids: at start, or once work waits for a lazy one.

Needs torch, and so is imported only when models are loaded: a worker starts quickly, and tests replace it.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import transformers
from safetensors import SafetensorError

from nightshift.errors import ConfigurationError
from nightshift.fleet.checkpoints import Adapter, check_references, model_id, split_adapters
from nightshift.process.settings import PREFIX, WorkerSettings
from nightshift_engine import EngineConfig, EngineError
from nightshift_engine.errors import RankLost
from nightshift_engine.models import DeviceMemory, Footprint, read_kind, resolve_device
from workers.serving import kinds
from workers.serving.engine_process.launching import EngineDied
from workers.serving.hub import directory_of
from workers.serving.kinds.kind import Loaded, ServedKind, Source
from workers.serving.model_config import MODEL_CONFIG, ModelConfig, read_model_configs
from workers.serving.model_server import ModelServer, OnFatal
from workers.serving.models import LazyModel
from workers.serving.residency.budget import Need, Shares, check_pinned, resident_bytes, shares
from workers.serving.turns import StepTurns

log = logging.getLogger(__name__)


def load_models(settings: WorkerSettings, on_fatal: OnFatal) -> list[ModelServer]:
    """The models that are loaded at start, ready to start, in the order of the settings; none may be lazy."""
    return [cast(ModelServer, server) for server in open_models(settings, on_fatal)]


def open_models(settings: WorkerSettings, on_fatal: OnFatal) -> list[ModelServer | LazyModel]:
    """All models of a worker, in the order of the settings, first those that are loaded now.

    What each will take of the device is known before anything is loaded. The weights of all are loaded
    before the first takes KV memory, of which each then has an equal part. Raises ConfigurationError saying
    which model cannot be served, and why.
    """
    checkpoints = _find_all(settings)
    num_pinned = len(split_adapters(settings.models)[0])
    pinned, lazy = checkpoints[:num_pinned], checkpoints[num_pinned:]
    device = _device(settings)
    total = _memory(device, settings).in_all
    check_pinned([checkpoint.need for checkpoint in pinned], total)
    with _ending_with_engine(on_fatal):
        loaded = [checkpoint.load(settings) for checkpoint in pinned]
    left = _memory(device, settings, taken=sum(checkpoint.footprint.weights for checkpoint in pinned))
    share = shares(
        [checkpoint.need for checkpoint in pinned], [checkpoint.need for checkpoint in lazy], left, total
    )
    turns = _turns(device, settings)
    with _ending_with_engine(on_fatal):
        servers = [_serve(model, share.kv, on_fatal, turns) for model in loaded]
    _make_modules_alone(turns)
    return [*servers, *(_lazy(checkpoint, settings, share, on_fatal, turns) for checkpoint in lazy)]


@dataclass(frozen=True)
class Estimate:
    """Memory that the models would take of their device, by their files. Nothing is loaded."""

    device: torch.device
    memory: DeviceMemory
    """Memory that the settings allow, of what is free there now."""
    pinned: Sequence[Need]
    lazy: Sequence[Need]

    def check(self) -> None:
        """Raises ConfigurationError with the numbers if they do not fit, as a worker's start would."""
        check_pinned(self.pinned, self.memory.in_all)
        left = self.memory.without(sum(need.footprint.weights for need in self.pinned))
        shares(self.pinned, self.lazy, left, self.memory.in_all)


def estimate(settings: WorkerSettings) -> Estimate:
    """Raises ConfigurationError saying which model cannot be served, and why."""
    needs = [checkpoint.need for checkpoint in _find_all(settings)]
    device = _device(settings)
    num_pinned = len(split_adapters(settings.models)[0])
    pinned, lazy = needs[:num_pinned], needs[num_pinned:]
    return Estimate(device, _memory(device, settings), pinned, lazy)


def _find_all(settings: WorkerSettings) -> list["_Checkpoint"]:
    """The checkpoints in the order of the settings, first those that are loaded at start."""
    pinned, adapters = split_adapters(settings.models)
    names = (*pinned, *settings.lazy_models)
    check_references(settings.models, settings.lazy_models)
    configs = read_model_configs(settings.model_config_files, names)
    transformers.utils.logging.disable_progress_bar()
    return [
        _find(path_or_id, position, settings, configs.get(model_id(path_or_id)), adapters)
        for position, path_or_id in enumerate(names)
    ]


def _turns(device: torch.device, settings: WorkerSettings) -> StepTurns:
    budget_ms = settings.engine_interactive_step_budget_ms
    return StepTurns(
        one_at_a_time=settings.engine_steps_in_turn and device.type == "cpu",
        urgent_step_s=None if budget_ms is None else budget_ms / 1_000,
    )


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint, its kind, and what it will take of the device."""

    source: Source
    kind: ServedKind
    footprint: Footprint

    @property
    def need(self) -> Need:
        return Need(self.source.id, self.footprint)

    def load(self, settings: WorkerSettings) -> Loaded:
        with _refusing(self.source.path_or_id):
            return self.kind.load(self.source, settings)


def _find(
    path_or_id: str,
    position: int,
    settings: WorkerSettings,
    config: ModelConfig | None,
    adapters: Sequence[Adapter] = (),
) -> _Checkpoint:
    """`adapters` are those of all models."""
    own = [adapter for adapter in adapters if model_id(adapter.base) == model_id(path_or_id)]
    with _refusing(path_or_id):
        directory = directory_of(path_or_id, may_download=settings.model_downloads)
        kind = kinds.serving(read_kind(str(directory)))
        if config is not None and not kind.is_batched_dynamically:
            raise config.error("it configures dynamic batching, and the model generates text")
        if config is not None and config.matryoshka is not None and not kind.has_matryoshka:
            raise config.error("it has matryoshka fields, and the model embeds no text")
        if own and not kind.has_adapters:
            does = kind.model_kind.does
            raise ValueError(
                f"the adapter {own[0].name!r} is for it, and it {does}; adapters are for decoders"
            )
        source = Source(path_or_id, directory, position, config, own)
        return _Checkpoint(source, kind, kind.footprint(source, settings))


def _device(settings: WorkerSettings) -> torch.device:
    try:
        return resolve_device(settings.device)
    except EngineError as error:
        raise ConfigurationError(_with_settings(str(error)), param="DEVICE") from error


def _memory(device: torch.device, settings: WorkerSettings, taken: int = 0) -> DeviceMemory:
    """Memory that is there now; `taken` of what the settings allow is in use."""
    memory = DeviceMemory.measure(device, settings.engine_gpu_memory_utilization)
    if settings.device_memory_bytes is None:
        return memory
    in_all = min(memory.in_all, max(0, settings.device_memory_bytes - taken))
    return DeviceMemory(min(memory.for_kv, in_all), in_all)


def _lazy(
    checkpoint: _Checkpoint, settings: WorkerSettings, share: Shares, on_fatal: OnFatal, turns: StepTurns
) -> LazyModel:
    needed = resident_bytes(checkpoint.footprint, share.kv)

    def load() -> ModelServer:
        _check_as_found(checkpoint, settings, share, needed)
        with _ending_with_engine(on_fatal):
            return _serve(checkpoint.load(settings), share.kv, on_fatal, turns)

    return LazyModel(checkpoint.kind.model(checkpoint.source), needed, load, share.lazy_bytes)


def _check_as_found(checkpoint: _Checkpoint, settings: WorkerSettings, share: Shares, needed: int) -> None:
    """Whether its files are still of the kind and the size that memory was set aside for. Raises
    ConfigurationError.
    """
    path_or_id, directory = checkpoint.source.path_or_id, checkpoint.source.directory
    with _refusing(path_or_id):
        kind = kinds.serving(read_kind(str(directory)))
        if kind is not checkpoint.kind:
            raise ValueError(f"since the worker started its files are of a model that {kind.kind.does}")
        needs = resident_bytes(kind.footprint(checkpoint.source, settings), share.kv)
        if needs > needed:
            raise ValueError(
                f"since the worker started its files need more memory, {needs} bytes in place of {needed}; "
                "start the worker again"
            )


def _serve(loaded: Loaded, memory: DeviceMemory, on_fatal: OnFatal, turns: StepTurns) -> ModelServer:
    with _refusing(loaded.path_or_id):
        server = loaded.serve(None if loaded.memory_device is None else memory, on_fatal)
    server.share_device(turns)
    return server


def _make_modules_alone(turns: StepTurns) -> None:
    """Lets no model step while transformers makes the modules of another, for which it changes
    torch's default dtype in all threads. Reading their weights needs no pause.
    """
    base: Any = transformers.PreTrainedModel
    contexts = getattr(base.get_init_context, "unpaused", base.get_init_context.__func__)
    without_weights = getattr(base._from_config, "unpaused", base._from_config.__func__)

    def paused(cls: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [turns.paused(), *contexts(cls, *args, **kwargs)]

    def made_alone(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with turns.paused():
            return without_weights(cls, *args, **kwargs)

    paused.unpaused = contexts  # type: ignore[attr-defined]
    made_alone.unpaused = without_weights  # type: ignore[attr-defined]
    base.get_init_context = classmethod(paused)
    base._from_config = classmethod(made_alone)


@contextmanager
def _ending_with_engine(on_fatal: OnFatal) -> Iterator[None]:
    """Tells of the death of a process that loads a model: it says nothing of the model."""
    try:
        yield
    except (EngineDied, RankLost) as error:
        on_fatal(error)
        raise


@contextmanager
def _refusing(path_or_id: str) -> Iterator[None]:
    """Says of an error that this model cannot be served."""
    try:
        yield
    except (EngineDied, RankLost):
        raise
    except (ConfigurationError, EngineError, OSError, ValueError, SafetensorError) as error:
        if isinstance(error, ConfigurationError) and error.param == MODEL_CONFIG:
            raise  # it names the file and the field as the operator wrote them
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
    fields = "|".join(
        name for name in EngineConfig.__dataclass_fields__ if f"engine_{name}" in WorkerSettings.model_fields
    )
    named = re.sub(rf"\b({fields})\b", lambda match: f"{PREFIX}ENGINE_{match[0].upper()}", reason)
    return re.sub(r"^(dtype|device|deterministic)\b", lambda match: PREFIX + match[0].upper(), named)
