"""Loads a model, proves it against transformers' attention, packs it and proves it again."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ..core.config import EngineConfig
from ..core.kv_groups import KvGroups, group_layers
from ..core.live_request import ModelFacts
from ..core.roofline import Roofline
from ..errors import InvalidConfig, UnsupportedModel
from ..execution.attention.latent import widest_latent
from ..execution.attention.native_backend import native_kernels
from ..execution.attention.selection import resolve_attention_backend
from ..execution.decoder.pack import read_decoder
from ..execution.decoder.recognition.facts import NotPlain
from ..execution.device.devices import on_device
from ..execution.device.held_weights import make_whole, narrow_of
from ..execution.device.mapped_files import return_free_memory
from ..execution.forward_pass import ForwardPass, ModulePass
from ..execution.kv_memory import KvShape, largest_step_bytes
from ..execution.linears.dense import dense_packing
from ..execution.linears.interface import LinearDType, Packing
from ..execution.linears.narrow_cuda import cuda_narrow_pack, multiplies_fp8
from ..execution.linears.narrow_native import narrow_native_pack
from ..execution.linears.native import NativeLinear
from ..execution.linears.packing import fastest_packing, native_packing
from ..execution.model_runner import ModelRunner
from ..execution.packed_modules import pack_modules
from ..execution.parallel.group import Group
from ..execution.parallel.part import Part
from ..text.tokenizer import Tokenizer
from . import weights
from .adapters import Adapters, load_adapters
from .context import context_length
from .device_limits import measure_limits, read_work
from .draft import check_draft, draft_config, naming_draft
from .ranks.checks import cannot_be_split, settle
from .ranks.processes import Ranks
from .ranks.reading import load_rows
from .selftest import (
    CheckedModel,
    check_forward_pass,
    check_invariance,
    check_model,
    check_written_steps,
)
from .times import LoadTimes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model proven on this machine, and what the engine has to know of it."""

    config: EngineConfig
    tokenizer: Tokenizer
    facts: ModelFacts
    forward_pass: Any
    """The model that `runner` calls: a `ForwardPass`, or an `EncoderDecoder`."""
    shapes: dict[int, KvShape]
    dtype: torch.dtype
    kv_dtype: torch.dtype
    device: torch.device
    attention: str
    """Name of the attention back end."""
    step_bytes: int
    """Bytes that the largest step needs besides KV memory."""
    runner: Callable[..., Any] = ModelRunner
    """Makes the model's runner of its forward pass, KV memory, attention and device."""
    windows: Mapping[int, int | None] = field(default_factory=dict)
    """Tokens that one sees by layer, itself included; None or missing if all of the context."""
    roofline: Roofline | None = None
    """The work of its steps. None: it is not known."""
    group: Group | None = None
    """The ranks that compute it together, of which this process is one. None: it does so alone."""
    ranks: Ranks | None = None
    """The processes of the others, on rank 0."""
    times: LoadTimes = field(default_factory=LoadTimes)
    adapters: Adapters | None = None
    """Adapters that requests may name. None: there are none."""
    draft: "LoadedModel | None" = None
    """The smaller model that drafts for it; all its layers are one group."""

    @property
    def groups(self) -> KvGroups:
        """Layers by the lifetime of their KV."""
        return group_layers(self.windows, self.shapes)


def load_model(config: EngineConfig) -> LoadedModel:
    """Loads and proves a decoder, and its draft model. Raises `ModelLoadFailed`, `UnsupportedModel`,
    `InvalidConfig` or `RankLost`.
    """
    times = LoadTimes()
    with times.part("tokenizer"):
        tokenizer = Tokenizer.load(config.model, config.revision)
    if config.tensor_parallel_size > 1:
        config, device = settle(config)
        ranks = Ranks(config)
        with ranks.in_step():
            return replace(load_part(config, tokenizer, device, ranks.group, times), ranks=ranks)
    with times.part("device"):
        device = weights.resolve_device(config.device)
    if config.draft_model is None:
        return load_part(config, tokenizer, device, times=times)
    check_draft(config, tokenizer)
    model = load_part(config, tokenizer, device, times=times)
    with naming_draft(config):
        if (window := model.groups.windows[0]) is not None:
            raise InvalidConfig(f"it needs blocks of all tokens, and all layers of the model see {window}")
        draft = load_part(draft_config(config, model.facts.context_length), tokenizer, device)
    return replace(model, draft=replace(draft, windows={}))


def load_part(
    config: EngineConfig,
    tokenizer: Tokenizer,
    device: torch.device,
    group: Group | None = None,
    times: LoadTimes | None = None,
) -> LoadedModel:
    """Loads and proves a decoder, or a rank's part of it, in step with the others.

    Raises like `load_model`.
    """
    _check_weight_dtype(config.weight_dtype, device)
    if config.deterministic:
        _check_deterministic(config, device)
    tokenizer.check_chat_template(config.model)
    read = None if group is None else partial(load_rows, group)
    times = times or LoadTimes()
    with on_device(device):
        model = weights.load_pretrained(config, device, read=read, times=times)
        digest = weights.model_digest(config.model, config.revision)
        return prove_model(config, model, tokenizer, digest, Part(group), times)


def _check_weight_dtype(name: str, device: torch.device) -> None:
    """Raises `InvalidConfig` if the device has no kernel for such weights."""
    if name != "auto" and device.type not in ("cpu", "cuda"):
        raise InvalidConfig(f"weight_dtype {name!r} needs the CPU or CUDA, not {device}")
    if name == "fp8" and not multiplies_fp8(device):
        raise InvalidConfig(f"weight_dtype 'fp8' needs a GPU of compute capability 8.9 or more, not {device}")


def prove_model(
    config: EngineConfig,
    model: Any,
    tokenizer: Tokenizer,
    digest: str,
    part: Part | None = None,
    times: LoadTimes | None = None,
) -> LoadedModel:
    """A transformers model that is on its device, with eager attention: proven, and put on ours.

    `digest` names its weights, `part` what this rank packs of them, `times` are those of its load. Raises
    `UnsupportedModel` or `InvalidConfig`.
    """
    part, times = part or Part(), times or LoadTimes()
    device, dtype = model.device, model.dtype
    kv_dtype = weights.resolve_kv_dtype(config.kv_cache_dtype, dtype)
    with times.part("kernels"):
        attention = resolve_attention_backend(
            config.attention_backend, device, dtype, kv_dtype, latent_dim=widest_latent(model)
        )
    name = weights.model_id(config.model)
    weights.check_vocabulary(tokenizer, model.config.get_text_config().vocab_size, name)
    # Before its context, so that a model that is not served is refused for what it is.
    with times.part("self-test"):
        checked = check_model(model, name, attention)
    facts = ModelFacts(
        id=name,
        vocab_size=model.config.get_text_config().vocab_size,
        context_length=context_length(model.config, tokenizer, config.max_model_len),
        eos_token_ids=weights.eos_token_ids(model, tokenizer),
        digest=digest,
        dtype=str(dtype).removeprefix("torch."),
        weight_dtype=_weight_dtype(config, model),
        kv_cache_dtype=str(kv_dtype).removeprefix("torch."),
        device=device.type,
        attention_backend=attention,
    )
    windows = _windows(checked, facts.context_length)
    with times.part("device's limits"):
        roofline = _roofline(config, model, checked, windows, kv_dtype)  # packing takes the weights
    forward_pass = _forward_pass(config, model, checked, facts, attention, part, times)
    with times.part("adapters"):
        adapters = load_adapters(config, forward_pass, facts.weight_dtype, dtype, device)
    step_bytes = largest_step_bytes(config, model.config.get_text_config(), dtype, device)
    del model
    with times.part("memory given back"):
        return_free_memory()
    how = f"{dtype} on {device}, weights {facts.weight_dtype}, KV {kv_dtype}, attention by {attention}"
    log.info("model loaded: %s, %s%s", name, how, ", deterministic" if config.deterministic else "")
    return LoadedModel(
        config,
        tokenizer,
        facts,
        forward_pass,
        part.kv_shapes(checked.shapes),
        dtype,
        kv_dtype,
        device,
        attention,
        step_bytes,
        windows=windows,
        roofline=roofline,
        group=part.group,
        times=times,
        adapters=adapters,
    )


def _weight_dtype(config: EngineConfig, model: Any) -> str:
    """The weights' dtype as it was asked for, else as layers hold them."""
    held = (narrow.code for module in model.modules() if (narrow := narrow_of(module)) is not None)
    stored = next(held, None) if config.weight_dtype == "auto" else None
    return config.weight_dtype if stored is None else f"{stored} as stored"


def _windows(checked: CheckedModel, context_length: int) -> dict[int, int | None]:
    """Windows by layer; None where no sequence outgrows it."""
    windows = enumerate(call.window for call in checked.calls)
    return {
        layer: None if window is None or window >= context_length else window for layer, window in windows
    }


def _roofline(
    config: EngineConfig,
    model: Any,
    checked: CheckedModel,
    windows: Mapping[int, int | None],
    kv_dtype: torch.dtype,
) -> Roofline | None:
    is_cpu = model.device.type == "cpu"
    layers, head = _linear_dtypes(config, model)
    work = read_work(
        model,
        checked.shapes,
        windows,
        kv_dtype,
        layer_dtype=layers if is_cpu else None,
        head_dtype=head if is_cpu else None,
    )
    if work is None:
        return None
    limits = measure_limits(model, layers)
    return None if limits is None else Roofline(work, limits.of_several(config.tensor_parallel_size))


def _linear_dtypes(config: EngineConfig, model: Any) -> tuple[LinearDType, LinearDType]:
    """Dtypes of layers and head, as they are packed for a CPU."""
    head: LinearDType = "float32"
    if model.dtype == torch.bfloat16 and not config.deterministic:
        head = "bfloat16"
    return "int8" if config.weight_dtype == "int8" and not config.deterministic else head, head


def _check_deterministic(config: EngineConfig, device: torch.device) -> None:
    """Raises `InvalidConfig` if this machine or configuration has no arithmetic in a fixed order."""
    if device.type != "cpu":
        raise InvalidConfig(f"deterministic needs the CPU, not {device}")
    if not NativeLinear.can_pack("float32", 1) or native_kernels() is None:
        raise InvalidConfig("deterministic needs our native kernels, which cannot be built here (no g++?)")


def _forward_pass(
    config: EngineConfig,
    model: Any,
    checked: CheckedModel,
    facts: ModelFacts,
    attention: str,
    part: Part,
    times: LoadTimes,
) -> ForwardPass:
    """The fastest way through the model that computes the same."""
    packing = _packing(config, model)
    forward_pass = _written_out(config, model, checked, packing, facts, attention, part, times)
    if config.deterministic:
        check_invariance(forward_pass, checked, model, facts.id, attention)
    return forward_pass


def _packing(config: EngineConfig, model: Any) -> Packing:
    if model.device.type != "cpu":
        return replace(dense_packing(), narrow=cuda_narrow_pack(model.device))
    if config.deterministic:
        return native_packing("float32")
    try:
        layers, head = _linear_dtypes(config, model)
        packing = fastest_packing(layers, *weights.typical_linear(model.config), head_dtype=head)
        return replace(packing, narrow=narrow_native_pack(layers))
    except LookupError as error:
        raise InvalidConfig(f"weight_dtype {config.weight_dtype!r} cannot be used: {error}") from error


def _written_out(
    config: EngineConfig,
    model: Any,
    checked: CheckedModel,
    packing: Packing,
    facts: ModelFacts,
    attention: str,
    part: Part,
    times: LoadTimes,
) -> ForwardPass:
    """The decoder written out if the model is a plain one, else its modules with packed linear layers.

    Several ranks hold their parts of the decoder together to the whole model.
    """
    name = facts.id
    prove = partial(
        check_forward_pass,
        checked=replace(checked, shapes=part.kv_shapes(checked.shapes)),
        model=model,
        name=name,
        attention=attention,
        block_size=config.block_size,
        is_quantized=_rounds_inputs(config, model),
    )
    try:
        with times.part("packing"):
            decoder = read_decoder(
                model,
                checked.calls,
                packing,
                model.dtype,
                allows_modules=not config.deterministic and part.size == 1,
                context_length=facts.context_length,
                part=part,
            )
        # Of dense layers, it is proven as it will run; a mixture's logits differ where rounding chose others.
        with times.part("second proof"):
            prove(decoder, is_held=checked.reference.chooses_experts)
            if checked.reference.chooses_experts and decoder.can_be_written_down:
                check_written_steps(decoder, checked, model, name, attention)
        return decoder
    except NotPlain as difference:
        _refuse_other_than_plain(config, name, difference)
        log.info("model %s runs through its own modules: %s", name, difference)
    except UnsupportedModel as difference:  # it looked plain and is not; its weights are gone
        _refuse_other_than_plain(config, name, difference)
        log.info("model %s runs through its own modules: %s", name, difference)
        model = _reloaded(config, model, name, attention)
    if model.device.type != "cpu":  # packed layers would be its own
        if num_whole := make_whole(model):
            log.warning("model %s: %d layers have narrow weights and are dequantised", name, num_whole)
        return ModulePass(model)
    num_packed = pack_modules(model, packing, model.dtype, head=model.get_output_embeddings())
    log.debug("model %s: %d layers packed", name, num_packed)
    try:
        prove(ModulePass(model), is_held=True)
    except UnsupportedModel as difference:  # its modules do more with a layer than call it
        if config.weight_dtype != "auto":
            raise
        log.warning("model %s runs without packed layers, more slowly: %s", name, difference)
        model = _reloaded(config, model, name, attention)
    return ModulePass(model)


def _rounds_inputs(config: EngineConfig, model: Any) -> bool:
    """Whether packed layers round what they read."""
    if model.device.type == "cpu":
        return config.weight_dtype == "int8"
    narrow = (narrow for module in model.modules() if (narrow := narrow_of(module)) is not None)
    return any(weight.rounds_inputs for weight in narrow) and multiplies_fp8(model.device)


def _reloaded(config: EngineConfig, model: Any, name: str, attention: str) -> Any:
    """The model once more, proven again: packing has taken its weights."""
    model = weights.load_pretrained(config, model.device)
    check_model(model, name, attention)
    return model


def _refuse_other_than_plain(config: EngineConfig, name: str, difference: Exception) -> None:
    """Refuses, as modules are not split, and torch's activations compute the last elements of a tensor
    otherwise than the rest.
    """
    if config.tensor_parallel_size > 1:
        is_wrong = isinstance(difference, UnsupportedModel)
        raise difference if is_wrong else cannot_be_split(config, str(difference))
    if config.deterministic:
        reason = f"deterministic mode has arithmetic of its own for plain decoders only, and {difference}"
        raise UnsupportedModel(name, reason) from difference
