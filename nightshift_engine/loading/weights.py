"""Loads a decoder from safetensors and says what its files promise: dtype, end-of-sequence ids, a digest."""

import hashlib
import logging
import os
import platform
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.hub import cached_file

from ..checkpoint.files import check_generation_config, local_directory
from ..checkpoint.kinds import DECODER, Kind, require_kind
from ..checkpoint.narrow.tensors import read_narrow
from ..checkpoint.stored_tensors import check_stored_tensors
from ..core.config import EngineConfig
from ..errors import EngineError, InvalidConfig, ModelLoadFailed, UnsupportedModel
from ..execution.device.held_weights import held_bytes, held_weights, narrow_of
from ..execution.linears.native import has_tiles
from ..execution.linears.packing import fastest_dtype
from ..text.tokenizer import Tokenizer
from . import narrow as narrow_weights
from .context import pin_longrope
from .times import LoadTimes

log = logging.getLogger(__name__)

DIGESTED_BYTES = 1 << 16
READERS = 4
"""Threads that copy weights to a device; each takes the page faults of what it reads of a mapped file."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
KV_DTYPES = DTYPES | {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def resolve_device(name: str) -> torch.device:
    """The device of a configuration; raises `InvalidConfig` if it does not exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidConfig(f"device {name!r} is not a torch device") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidConfig("device 'cuda' was asked for, but torch sees no CUDA device")
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:  # the second is how torch says it was built without one
        raise InvalidConfig(f"device {name!r} cannot be used here: {error}") from error
    return device


def resolve_dtype(name: str, checkpoint_dtype: torch.dtype | None, device: torch.device) -> torch.dtype:
    """The dtype to compute in. "auto" on CPU is float32."""
    if name != "auto":
        return DTYPES[name]
    if device.type == "cpu" or checkpoint_dtype is None:
        return torch.float32
    return checkpoint_dtype


def decoder_dtype(config: EngineConfig, hf_config: Any, device: torch.device) -> torch.dtype:
    """The dtype as `resolve_dtype` gives it, except that a bfloat16 checkpoint stays so on a CPU that
    computes it faster.

    Which one does is measured. A float32 checkpoint is never rounded without being asked.
    """
    stored = checkpoint_dtype(hf_config)
    if config.deterministic:
        return torch.float32
    if config.dtype == "auto" and device.type == "cpu" and stored == torch.bfloat16:
        return fastest_dtype(*typical_linear(hf_config))
    return resolve_dtype(config.dtype, stored, device)


def typical_linear(hf_config: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear layer of the model, to measure with."""
    text_config = hf_config.get_text_config()
    hidden = text_config.hidden_size
    wide = getattr(text_config, "intermediate_size", None) or 4 * hidden
    return hidden, wide if isinstance(wide, int) else 4 * hidden


def resolve_kv_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of KV memory, for a model that computes in `dtype`."""
    return dtype if name == "auto" else KV_DTYPES[name]


class LoadedCheckpoint(NamedTuple):
    model: Any
    config: Any
    """The transformers configuration."""
    info: dict[str, Any]
    """The weights that were missing, misshapen or unexpected, as transformers lists them."""


def load_checkpoint(
    directory: Path,
    auto_class: Any,
    dtype_of: Callable[[Any], torch.dtype],
    *,
    name: str,
    called: str | None = None,
    class_of: Callable[[Any], Any] | None = None,
    **options: Any,
) -> LoadedCheckpoint:
    """Loads a checkpoint from safetensors. Raises `ModelLoadFailed` or `UnsupportedModel`."""
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        dtype = dtype_of(config)
        options |= {
            "use_safetensors": True,
            "trust_remote_code": False,
            "output_loading_info": True,
            "ignore_mismatched_sizes": True,  # callers refuse them by name
        }
        narrow = read_narrow(directory, name)
        if narrow is not None:
            narrow_weights.forget_quantization(config)
        scaled = () if narrow is None else narrow.parts
        check_stored_tensors(directory, name, config, auto_class, scaled)
        made_by = class_of(config) if class_of else auto_class
        if narrow is not None:
            model, info = narrow_weights.read_model(
                directory, name, narrow, made_by, config, dtype, **options
            )
            return LoadedCheckpoint(model, config, info)
        model, info = made_by.from_pretrained(directory, config=config, dtype=dtype, **options)
    except EngineError:
        raise
    except Exception as error:  # whatever a broken file makes of the libraries below
        raise ModelLoadFailed(f"cannot load {called or repr(name)}: {said(error)}") from error
    return LoadedCheckpoint(model, config, info)


def load_pretrained(
    config: EngineConfig,
    device: torch.device,
    *,
    kind: Kind = DECODER,
    auto_class: Any = AutoModelForCausalLM,
    read: Callable[[EngineConfig, Path], LoadedCheckpoint] | None = None,
    times: LoadTimes | None = None,
) -> Any:
    """A model that generates, on its device, in eval mode. Raises `ModelLoadFailed` or `UnsupportedModel`.

    `read` reads the files in place of transformers.
    """
    times = times or LoadTimes()
    require_kind(config.model, config.revision, kind)
    directory = local_directory(config.model, config.revision)
    check_generation_config(directory, config.model)
    scheme = narrow_weights.check_config(config, directory)
    with times.part("checkpoint"):
        loaded = (
            read(config, directory)
            if read is not None
            else load_checkpoint(
                directory,
                auto_class,
                lambda hf_config: decoder_dtype(config, hf_config, device),
                name=config.model,
                called=f"model {config.model!r}",
                attn_implementation="eager",
            )
        )
    model = loaded.model
    loaded.info["missing_keys"] = kind.missing(loaded.config, loaded.info["missing_keys"])
    check_complete(config.model, loaded.info)
    made_as = type(model).__name__
    if unused := kind.unused(loaded.config, made_as, loaded.info["unexpected_keys"]):
        reason = f"{len(unused)} weights in its files belong to nothing in {made_as}: {_shown(unused)}"
        raise UnsupportedModel(config.model, reason)
    pin_longrope(model, config.max_model_len, config.model)
    code = narrow_weights.rounded_to(config, device)
    if code is not None and scheme is None:
        with times.part("weights rounded"):
            narrow_weights.round_linears(model, code, config.model)
    with times.part("weights to the device"):
        narrow_weights.move_held(model, device)
        move_weights(model, device)
    held = held_bytes(model)
    times.weight_bytes += sum(held.get(id(weight), weight.nbytes) for weight in model.parameters())
    return model.eval()


def move_weights(model: Any, device: torch.device) -> None:
    """Puts a model on a device, its weights by `READERS` threads: one alone reads a mapped file more slowly
    than a device takes it.
    """
    weights = [weight for weight in model.parameters() if weight.device != device]
    with ThreadPoolExecutor(READERS) as pool:
        copies = pool.map(lambda weight: weight.detach().to(device), weights)
        for weight, copy in zip(weights, copies, strict=True):
            weight.data = copy
    model.to(device)


def check_all_used(loaded: LoadedCheckpoint, kind: Kind, name: str) -> None:
    """Refuses a checkpoint that lacks weights, or has some that its model leaves out and its kind needs."""
    check_complete(name, loaded.info)
    made_as = type(loaded.model).__name__
    if unused := kind.unused(loaded.config, made_as, loaded.info["unexpected_keys"]):
        reason = f"{made_as} has no use for {unused[0]} and {len(unused) - 1} more weights"
        raise UnsupportedModel(name, reason)


def check_complete(name: str, loading_info: Any) -> None:
    """Refuses a checkpoint whose weights are not all there: the rest would be random numbers."""
    misshapen = [
        f"{weight} ({list(theirs)}, not {list(ours)})"
        for weight, theirs, ours in loading_info["mismatched_keys"]
    ]
    for weights, problem in (
        (loading_info["missing_keys"], "are missing"),
        (misshapen, "have another shape"),
    ):
        if weights:
            raise ModelLoadFailed(
                f"cannot load model {name!r}: {len(weights)} weights {problem}: {_shown(weights)}"
            )


def _shown(weights: Collection[str]) -> str:
    return ", ".join(sorted(weights)[:3]) + (", …" if len(weights) > 3 else "")


def said(error: Exception) -> str:
    """An exception in words. Those of most kinds make no sense without the name of the kind."""
    speaks = isinstance(error, (OSError, ValueError, ImportError, SafetensorError)) and str(error)
    return str(error) if speaks else f"{type(error).__name__}: {error}"


def checkpoint_dtype(hf_config: Any) -> torch.dtype | None:
    dtype: torch.dtype | str | None = hf_config.get_text_config().dtype
    return DTYPES.get(dtype) if isinstance(dtype, str) else dtype


def model_id(model: str) -> str:
    """The id under which a model is served: its hub id, or the last part of its path."""
    return Path(os.path.abspath(model)).name if Path(model).exists() else model


def model_digest(model: str, revision: str | None = None) -> str:
    """A digest of config.json, and of the name, size and ends of each weight file."""
    try:
        directory = Path(str(cached_file(model, "config.json", revision=revision))).parent
        digest = hashlib.sha256((directory / "config.json").read_bytes())
        for path in sorted(directory.glob("*.safetensors")):
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                digest.update(f"\0{path.name}\0{size}\0".encode())
                for start in (0, max(0, size - DIGESTED_BYTES)):
                    file.seek(start)
                    digest.update(file.read(DIGESTED_BYTES))
    except OSError as error:
        raise ModelLoadFailed(f"cannot read the files of model {model!r}: {said(error)}") from error
    return digest.hexdigest()[:16]


def instruction_set(device: str) -> str:
    """The CPU's instruction set, or the GPU's name, on which computed numbers depend."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    capability = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    if has_tiles():
        return f"{capability} AMX float32"  # linear layers of float32 too: before, those in bfloat16 alone
    return f"{capability} AMX" if torch.cpu._is_amx_tile_supported() else capability


def weight_not_finite(model: Any) -> str | None:
    """The first weight of a model with values that are no finite numbers, if there is one.

    What narrow weights stand for is looked at; other weights that are held in parts are left out.
    """
    for path, module in model.named_modules():
        held, narrow = held_weights(module), narrow_of(module)
        for name, weight in module.named_parameters(recurse=False):
            if name in held and narrow is None:
                continue
            numbers = narrow.dequantized(weight.dtype) if narrow is not None and name in held else weight
            if not numbers.isfinite().all():
                return f"{path}.{name}" if path else name
    return None


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int, name: str) -> None:
    """Refuses a tokenizer with more tokens than the model has embeddings, but for added ones."""
    if tokenizer.num_own_tokens > vocab_size:
        reason = f"its tokenizer has {tokenizer.num_own_tokens} tokens, and the model embeds {vocab_size}"
        raise UnsupportedModel(name, f"{reason}; take the tokenizer that the model was trained with")
    if added := tokenizer.added_from(vocab_size):
        counted = f"{len(added)} added tokens without an embedding ({_shown(added)})"
        log.warning("model %s: its tokenizer has %s; prompts with them are refused", name, counted)


def eos_token_ids(model: Any, tokenizer: Tokenizer) -> frozenset[int]:
    """All ids that end a sequence, according to the generation config and the tokenizer."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    stated = [*(configured if isinstance(configured, list) else [configured]), tokenizer.eos_token_id]
    known = range(model.config.get_text_config().vocab_size)
    strange = [id for id in stated if id is not None and (not isinstance(id, int) or id not in known)]
    if strange:
        log.warning("end-of-sequence ids outside the vocabulary of %d are ignored: %s", len(known), strange)
    return frozenset(id for id in stated if id is not None and id not in strange)
