"""Refuses, at load, a model that we would compute wrongly.

Any Hugging Face decoder is accepted if it passes: all its layers must come to our attention, and its layers
and logits over two short prompts, cut into chunks, spread over blocks and packed into one row, must equal
those of transformers' own eager attention over each prompt alone. What the model's class is called plays no
part.
"""

import contextlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..core.batcher import Chunk
from ..core.request import Request
from ..core.sequence import Sequence
from ..errors import UnsupportedModel
from ..execution.attention.interface import (
    ATTENTION_NAME,
    AttentionStep,
    LayerCall,
    UnsupportedAttention,
    paged_step,
)
from ..execution.attention.latent import expanded_only, keep_latent, latent_dims
from ..execution.attention.selection import block_size_multiple, has_transposed_keys, make_attention
from ..execution.forward_pass import ForwardPass, ModulePass, OnExperts, OnLayer, watch_layers
from ..execution.kv_memory import KvMemory, KvShape
from ..execution.model_runner import ModelRunner
from ..execution.step_layout import StepInputs, StepLayout
from .reference import ReferencePass, Token, WatchLayers, largest
from .weights import weight_not_finite

BLOCK_SIZE = 4
PROMPT_LENGTHS = (11, 7)
PROMPT_BLOCKS = ([5, 0, 3], [1, 4])
"""The blocks of each prompt's KV in the test's memory."""
WINDOW = 5
"""Sliding windows are narrowed to this during the test, or no short prompt would ever reach their edge."""
CHUNK_PLANS = ((6, 1), (1, 4), (3, 1), (1, 1))
"""Tokens of each prompt per step: chunks, single tokens, and both in one step."""
LAYER_ERROR_MAX = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Root mean square of what a layer's result differs in, relative to what the layer adds (`reference.py`)."""
LOGITS_ERROR_MAX = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 8e-2}
"""Root mean square of the logits' difference, relative to the spread of the reference logits. It is wider: a
pass that is not held to the reference has rounded in every layer before."""
OTHER_EXPERTS_MAX = {torch.float32: 0.01, torch.float16: 0.2, torch.bfloat16: 0.2}
"""Share of experts that would have been chosen otherwise. Rounding moves those that score nearly alike.

In float32 hardly ever: of the mixtures in the tests, no choice was another.
"""
QUANTIZED_ERROR_MAX = 0.3
"""Error of layers and logits, for weights and activations in int8."""
QUANTIZED_OTHER_EXPERTS_MAX = 0.2
"""The same as `OTHER_EXPERTS_MAX`, for weights and activations in int8."""


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """Facts about a model on paged attention, and what its own modules compute there."""

    shapes: dict[int, KvShape]
    calls: list[LayerCall]
    """Parameters that each layer asks of attention."""
    prompts: list[Tensor]
    logits: list[Tensor]
    """Logits of the prompts at the ends of chunks, by its own modules: `[chunks, vocabulary]` each."""
    reference: ReferencePass
    """Layer by layer, the pass behind those logits."""


def check_model(model: Any, name: str, attention: str = "torch") -> CheckedModel:
    """Puts `model` on paged attention by a back end and proves it. Raises `UnsupportedModel`."""
    try:
        return _check_model(model, name, attention)
    except UnsupportedModel as error:
        if (weight := weight_not_finite(model)) is None:
            raise
        reason = (
            f"its weight {weight} has NaN or infinite values in {str(model.dtype).removeprefix('torch.')}"
        )
        raise UnsupportedModel(name, reason) from error


def _check_model(model: Any, name: str, attention: str) -> CheckedModel:
    text_config = model.config.get_text_config()
    if text_config.num_hidden_layers < 1:
        raise UnsupportedModel(name, f"it has {text_config.num_hidden_layers} layers")
    _check_layer_types(text_config, name)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, text_config.vocab_size, (n,), generator=generator) for n in PROMPT_LENGTHS]
    num_layers, held = text_config.num_hidden_layers, ReferencePass()
    modules = ModulePass(model)
    with _narrow_windows(model, text_config) as has_windows, torch.inference_mode():
        try:
            reference = [_reference_logits(model, prompts, index, held) for index in range(len(prompts))]
            generated = [_generated_logits(model, prompts[0], held)] if has_windows else []
        except Exception as error:  # the model's own code, whatever it raises
            reason = f"transformers itself cannot run it: {type(error).__name__}: {error}"
            raise UnsupportedModel(name, reason) from error
        _compare(reference[: len(generated)], generated, held, model.dtype, name, "with a cache, its")
        _switch_to_paged(model, name)
        try:
            probe = _probe(model, num_layers, name)
            _check_latent(model, probe.shapes, name)
            held_pass = _Watched(modules, held.replayed)
            paged = logits = _paged_logits(held_pass, probe.shapes, prompts, model, attention)
        except (UnsupportedAttention, TypeError) as error:  # TypeError: its forward takes no position_ids
            raise UnsupportedModel(name, str(error)) from error
    at_ends = [wanted[_chunk_ends(index)] for index, wanted in enumerate(reference)]
    _compare(at_ends, paged, held, model.dtype, name)
    if has_windows:  # they are as wide as they should be again
        with torch.inference_mode():
            probe = _probe(model, num_layers, name)
            windows = {call.window for call in probe.calls.values() if call.window is not None}
            if any(window < 1 for window in windows):
                raise UnsupportedModel(name, "it has a sliding window in which a token does not see itself")
            if 1 in windows:  # of earlier keys it keeps the last 0, as Python's [-0:], which are all
                reason = (
                    "it has a sliding window of one token, which transformers' own cache does not keep to"
                )
                raise UnsupportedModel(name, reason)
            held = ReferencePass()
            recorded_pass = _Watched(modules, held.recorded)
            logits = _paged_logits(recorded_pass, probe.shapes, prompts, model, attention)
    calls = [probe.calls[layer] for layer in range(num_layers)]
    return CheckedModel(probe.shapes, calls, prompts, logits, held)


def check_forward_pass(
    forward_pass: ForwardPass,
    checked: CheckedModel,
    model: Any,
    name: str,
    attention: str,
    *,
    block_size: int,
    is_held: bool,
    is_quantized: bool = False,
) -> None:
    """Proves that `forward_pass` computes what the model's own modules did, in small blocks and in those of
    `block_size`.

    With `is_held` its layers are compared, else its logits. Raises `UnsupportedModel`.
    """
    compared = _Watched(forward_pass, checked.reference.replayed) if is_held else forward_pass
    for size in {BLOCK_SIZE, block_size}:
        try:
            logits = _paged_logits(
                compared, checked.shapes, checked.prompts, model, attention, block_size=size
            )
        except Exception as error:  # what a model's own code makes of packed layers
            reason = f"packed, it cannot run: {type(error).__name__}: {error}"
            raise UnsupportedModel(name, reason) from error
        _compare(checked.logits, logits, checked.reference, model.dtype, name, "packed, its", is_quantized)


def check_written_steps(
    forward_pass: ForwardPass, checked: CheckedModel, model: Any, name: str, attention: str
) -> None:
    """Proves that written-down steps give the bits of those made by layer. Raises `UnsupportedModel`."""

    def watch(_: list[Token], watch_layers: WatchLayers) -> AbstractContextManager[None]:
        return watch_layers(lambda _, hidden: hidden, lambda _, experts: experts)

    seen = _Watched(forward_pass, watch)
    as_it_runs, by_layer = (
        _paged_logits(run, checked.shapes, checked.prompts, model, attention) for run in (forward_pass, seen)
    )
    if not all(map(torch.equal, as_it_runs, by_layer)):
        raise UnsupportedModel(name, "its steps give other logits than its layers do")


def check_invariance(
    forward_pass: ForwardPass, checked: CheckedModel, model: Any, name: str, attention: str
) -> None:
    """Proves that a sequence's logits are bitwise the same alone and beside another, however it is cut.

    Raises `UnsupportedModel`.
    """
    together = _paged_logits(forward_pass, checked.shapes, checked.prompts, model, attention)
    for prompt, cut in zip(checked.prompts, together, strict=True):
        plan = ((len(prompt),),)
        [whole] = _paged_logits(forward_pass, checked.shapes, [prompt], model, attention, plan)
        if not torch.equal(whole[-1], cut[-1]):
            raise UnsupportedModel(name, "its logits depend on the batch, so it cannot run deterministically")


def _check_latent(model: Any, shapes: dict[int, KvShape], name: str) -> None:
    if (module := expanded_only(model)) is None:
        return
    expanded = sum(shape.bytes_per_token(model.dtype) for shape in shapes.values())
    latent = len(shapes) * latent_dims(module) * model.dtype.itemsize
    reason = f"its latent KV of {latent} bytes a token would be kept expanded, in {expanded}"
    raise UnsupportedModel(name, f"{reason}: its attention is not built as transformers' others")


def _check_layer_types(text_config: Any, name: str) -> None:
    known = {"full_attention", "sliding_attention", None}
    unknown = set(getattr(text_config, "layer_types", None) or ()) - known
    if unknown:
        raise UnsupportedModel(name, f"it has layers of type {', '.join(sorted(unknown))}")


@contextlib.contextmanager
def _narrow_windows(model: Any, text_config: Any) -> Iterator[bool]:
    """Sets every sliding window to `WINDOW`, so that it is reached; yields whether there are any."""
    owners = [text_config, *model.modules()]
    reach = getattr(text_config, "max_position_embeddings", None) or float("inf")
    windows = [(owner, _window_of(owner)) for owner in owners]
    saved = [(owner, window) for owner, window in windows if isinstance(window, int) and window < reach]
    try:
        for owner, _ in saved:
            owner.sliding_window = WINDOW
        yield bool(saved)
    finally:
        for owner, window in saved:
            owner.sliding_window = window


def _window_of(owner: Any) -> Any:
    return getattr(owner, "sliding_window", None)


class _Watched:
    """A forward pass over the test's prompts that is recorded, or held to a recorded one."""

    def __init__(
        self,
        forward_pass: ForwardPass,
        watch: Callable[[list[Token], WatchLayers], AbstractContextManager[None]],
    ) -> None:
        self._forward_pass = forward_pass
        self._watch = watch

    def __call__(self, inputs: StepInputs, attention: AttentionStep) -> Tensor:
        with self._watch(_tokens(inputs.layout), self.watch_layers):
            return self._forward_pass(inputs, attention)

    def watch_layers(
        self, on_layer: OnLayer, on_experts: OnExperts | None = None
    ) -> AbstractContextManager[None]:
        return self._forward_pass.watch_layers(on_layer, on_experts)


def _tokens(layout: StepLayout) -> list[Token]:
    """The prompt and position of each row of a step, told by the first block of its sequence."""
    owners = {blocks[0]: prompt for prompt, blocks in enumerate(PROMPT_BLOCKS)}
    prompts = torch.tensor([owners[block] for block in layout.block_tables[:, 0].tolist()])
    rows = prompts.repeat_interleave(layout.cu_seqlens_q.diff().cpu())
    return list(zip(rows.tolist(), layout.positions.tolist(), strict=True))


def _reference_logits(model: Any, prompts: list[Tensor], index: int, held: ReferencePass) -> Tensor:
    """Logits of every position of a prompt, by transformers' own attention: `[tokens, vocabulary]`."""
    prompt = prompts[index]
    tokens = [(index, position) for position in range(len(prompt))]
    with held.recorded(tokens, partial(_watch_modules, model)):
        logits: Tensor = model(input_ids=prompt[None].to(model.device), use_cache=False).logits[0]
    return logits.float()


def _watch_modules(model: Any, on_layer: OnLayer, _: OnExperts) -> AbstractContextManager[None]:
    return watch_layers(model, on_layer)


def _generated_logits(model: Any, prompt: Tensor, held: ReferencePass) -> Tensor:
    """The logits like `_reference_logits`, but token after token with a cache, as transformers generates.

    The cache has its own idea of a window: a model whose layers ignore theirs is cut off by it all the same.
    """
    rows, cache = [], None
    for position, token in enumerate(prompt):
        ids = token.reshape(1, 1).to(model.device)
        with held.replayed([(0, position)], partial(_watch_modules, model)):
            output = model(input_ids=ids, past_key_values=cache, use_cache=True)
        rows.append(output.logits[0].float())
        cache = output.past_key_values
    return torch.cat(rows)


def _switch_to_paged(model: Any, name: str) -> None:
    with contextlib.suppress(ValueError):  # generate may refuse; the comparison below covers it
        model.set_attn_implementation(ATTENTION_NAME)
    if model.config.get_text_config()._attn_implementation != ATTENTION_NAME:
        raise UnsupportedModel(name, "its attention does not go through the transformers attention interface")
    keep_latent(model)


@dataclass
class _Probe:
    """Stands in for a paged step, and notes how each layer calls."""

    shapes: dict[int, KvShape] = field(default_factory=dict)
    calls: dict[int, LayerCall] = field(default_factory=dict)
    num_calls: int = 0

    def attend(self, layer_index: int, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        self.num_calls += 1
        self.shapes[layer_index] = KvShape(key.shape[0], key.shape[2], value.shape[2])
        self.calls[layer_index] = call
        return query.new_zeros(query.shape[1], query.shape[0], value.shape[2])


def _probe(model: Any, num_layers: int, name: str) -> _Probe:
    probe = _Probe()
    ids = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    with paged_step(probe):
        model(input_ids=ids, position_ids=torch.arange(2, device=model.device)[None], use_cache=False)
    if probe.num_calls != num_layers or sorted(probe.shapes) != list(range(num_layers)):
        reason = f"{probe.num_calls} attention calls in one pass over {num_layers} layers"
        raise UnsupportedModel(name, f"its attention bypasses the transformers attention interface: {reason}")
    return probe


def _paged_logits(
    forward_pass: ForwardPass,
    shapes: dict[int, KvShape],
    prompts: list[Tensor],
    model: Any,
    attention: str,
    plans: Iterable[tuple[int, ...]] = CHUNK_PLANS,
    block_size: int = BLOCK_SIZE,
) -> list[Tensor]:
    """Logits at the end of every chunk of `plans`, through the real runner, per prompt."""
    block_size = max(block_size, block_size_multiple(attention))
    kv = KvMemory(
        shapes,
        num_blocks=6,
        block_size=block_size,
        dtype=model.dtype,
        device=model.device,
        transposed_keys=has_transposed_keys(attention),
    )
    runner = ModelRunner(forward_pass, kv, make_attention(attention, kv), model.device)
    sequences = [Sequence(Request(str(n), ()), arrival=n, num_tokens_max=1) for n in range(len(prompts))]
    for sequence, blocks in zip(sequences, PROMPT_BLOCKS, strict=False):
        sequence.add_blocks(blocks)
    rows: list[list[Tensor]] = [[] for _ in prompts]
    for counts in plans:
        for sequence, prompt, count in zip(sequences, prompts, counts, strict=True):
            known = sequence.num_computed_tokens + count
            sequence.token_ids = array("q", prompt[:known].tolist())
        logits = runner.forward([Chunk(sequence, sequence.num_uncomputed_tokens) for sequence in sequences])
        for index, sequence in enumerate(sequences):
            sequence.num_computed_tokens = sequence.num_tokens
            rows[index].append(logits[index].clone())
    return [torch.stack(chunk_ends) for chunk_ends in rows]


def _chunk_ends(prompt_index: int) -> list[int]:
    """Positions whose logits `_paged_logits` returns."""
    return [end - 1 for end in accumulate(counts[prompt_index] for counts in CHUNK_PLANS)]


def _compare(
    wanted: list[Tensor],
    got: list[Tensor],
    held: ReferencePass,
    dtype: torch.dtype,
    name: str,
    whose: str = "its",
    is_quantized: bool = False,
) -> None:
    """Judges the passes held to the reference since the last comparison, by their layers and their logits."""
    errors = [((a - b).square().mean().sqrt() / a.std()).item() for a, b in zip(wanted, got, strict=True)]
    in_layers, share = held.take_differences()
    for error, allowed, where in (
        (largest(errors), QUANTIZED_ERROR_MAX if is_quantized else LOGITS_ERROR_MAX[dtype], ""),
        (
            in_layers,
            QUANTIZED_ERROR_MAX if is_quantized else LAYER_ERROR_MAX[dtype],
            ", measured layer by layer,",
        ),
    ):
        if not error <= allowed:
            differ = f"{whose} logits differ from the reference{where} by {error:.1e}"
            raise UnsupportedModel(name, f"{differ} (allowed {allowed:.0e})")
    others_max = QUANTIZED_OTHER_EXPERTS_MAX if is_quantized else OTHER_EXPERTS_MAX[dtype]
    if not share <= others_max:
        differ = f"{share:.1%} of {whose} experts are others than the reference's"
        raise UnsupportedModel(name, f"{differ} (allowed {others_max:.0%})")
