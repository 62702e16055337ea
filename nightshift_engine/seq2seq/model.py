"""Loads, proves and packs an encoder-decoder, and proves it again."""

import logging
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from ..checkpoint.kinds import SEQ2SEQ
from ..core.config import EngineConfig
from ..core.live_request import ModelFacts
from ..core.request import Request
from ..core.sequence import Sequence
from ..core.steps import Chunk
from ..errors import InvalidConfig, UnsupportedModel
from ..execution.attention.selection import has_transposed_keys, make_attention, resolve_attention_backend
from ..execution.device.devices import on_device
from ..execution.kv_memory import KvMemory, KvShape, largest_step_bytes
from ..execution.linears.interface import LinearDType
from ..execution.linears.packing import fastest_packing
from ..execution.packed_modules import pack_modules
from ..loading import weights
from ..loading.model import LoadedModel
from ..loading.selftest import LOGITS_ERROR_MAX
from ..text.tokenizer import Tokenizer
from .decoding import DecodingRules, read_rules
from .layers import CrossDecoder, cross_decoder
from .packed import can_be_packed, pack_model
from .runner import EncoderDecoder, Seq2seqRunner

log = logging.getLogger(__name__)


PADDING_RATIO_MAX = 0.25
"""Share of the tokens of a batch that may be padding."""


class ModuleEncoder:
    """The encoder of a transformers model."""

    def __init__(self, model: Any) -> None:
        self._encoder, self._device = model.get_encoder(), model.device
        pad = model.config.pad_token_id
        self._pad = pad if isinstance(pad, int) else 0

    def __call__(self, sources: Seq[Seq[int]]) -> Tensor:
        """Hidden states `[tokens, hidden]`, one source's after another's."""
        states_of: dict[int, Tensor] = {}
        for group in _similar_lengths([*map(len, sources)]):
            states, mask = self._states([sources[index] for index in group])
            states_of |= {index: own[kept] for index, own, kept in zip(group, states, mask, strict=True)}
        return torch.cat([states_of[index] for index in range(len(sources))])

    def _states(self, sources: Seq[Seq[int]]) -> tuple[Tensor, Tensor]:
        """`[sources, tokens, hidden]`, and which of the tokens are some."""
        width = max(map(len, sources))
        ids = [[*source, *[self._pad] * (width - len(source))] for source in sources]
        lengths = torch.tensor([*map(len, sources)], device=self._device)
        mask = torch.arange(width, device=self._device) < lengths[:, None]
        input_ids = torch.tensor(ids, device=self._device)
        return self._encoder(input_ids=input_ids, attention_mask=mask.long()).last_hidden_state, mask


def _similar_lengths(lengths: list[int]) -> Iterator[list[int]]:
    """Indices in groups in which little is padding, longest first."""
    group: list[int] = []
    num_tokens = 0
    for index in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        padded = (len(group) + 1) * lengths[group[0] if group else index]
        if group and num_tokens + lengths[index] < (1 - PADDING_RATIO_MAX) * padded:
            yield group
            group, num_tokens = [], 0
        group.append(index)
        num_tokens += lengths[index]
    if group:
        yield group


RELATIVE_POSITIONS_MAX = 512
"""Context of a model without absolute positions whose files state none: that of T5's training."""
_TEST_LENGTHS = ((11, 5), (6, 3))
"""Tokens of source and output, of each sequence of the self-test."""
SMALL_BLOCK_SIZE = 4
"""Block size with which the self-test's sequences reach into several blocks."""


def seq2seq_config(config: EngineConfig) -> EngineConfig:
    """The configuration that applies to an encoder-decoder. Raises `InvalidConfig` naming the wrong field.

    An encoder's states depend on the whole source, so a beginning's KV is of no use to another source.
    """
    if config.deterministic:
        raise InvalidConfig("deterministic is not available for encoder-decoders")
    if config.weight_dtype != "auto":
        raise InvalidConfig(f"weight_dtype must be auto for encoder-decoders, got {config.weight_dtype!r}")
    if config.tensor_parallel_size > 1:
        size = config.tensor_parallel_size
        raise InvalidConfig(f"tensor_parallel_size must be 1 for encoder-decoders, got {size}")
    if config.attention_backend not in ("auto", "torch", "native"):
        raise InvalidConfig(
            "attention_backend must be auto, torch or native for encoder-decoders, "
            f"got {config.attention_backend!r}"
        )
    if config.kv_cache_dtype in ("int8", "fp8"):
        raise InvalidConfig(
            f"kv_cache_dtype must not be quantised for encoder-decoders, got {config.kv_cache_dtype!r}"
        )
    return replace(config, enable_prefix_reuse=False, overlap_steps=False, cuda_graphs=False)


def load_seq2seq(config: EngineConfig) -> LoadedModel:
    """Loads and proves an encoder-decoder; raises as `load_model` does."""
    config = seq2seq_config(config)
    tokenizer = Tokenizer.load(config.model, config.revision)
    device = weights.resolve_device(config.device)
    with on_device(device):
        model = weights.load_pretrained(config, device, kind=SEQ2SEQ, auto_class=AutoModelForSeq2SeqLM)
        return _prove(config, model, tokenizer, weights.model_digest(config.model, config.revision))


def _prove(config: EngineConfig, model: Any, tokenizer: Tokenizer, digest: str) -> LoadedModel:
    _check_vocabularies(model.config, weights.model_id(config.model))
    name, device, dtype = weights.model_id(config.model), model.device, model.dtype
    weights.check_vocabulary(tokenizer, model.config.vocab_size, name)
    kv_dtype = weights.resolve_kv_dtype(config.kv_cache_dtype, dtype)
    eos = weights.eos_token_ids(model, tokenizer)
    decoder = cross_decoder(model)
    parts = _parts(model, decoder, name, eos)
    first = decoder.layers[0].self_attention
    shape = KvShape(first.num_heads, first.head_dim, first.head_dim)
    shapes = dict.fromkeys(range(len(decoder.layers)), shape)
    attention = _attention_backend(config.attention_backend, parts, device, kv_dtype)
    sequences = _test_tokens(model)
    expected = _reference_logits(model, parts.rules, sequences)
    test = _Test(shapes, sequences, expected, attention, name)
    test.check(parts, SMALL_BLOCK_SIZE)
    if device.type == "cpu":
        head: LinearDType = "bfloat16" if dtype == torch.bfloat16 else "float32"
        packing = fastest_packing(head, *weights.typical_linear(model.config), head_dtype=head)
        if attention == "native" and can_be_packed(model):
            encoder, packed = pack_model(model, packing)
            parts = replace(parts, encoder=encoder, decoder=packed)
        else:
            pack_modules(model, packing, dtype, head=model.get_output_embeddings())
            parts = _parts(model, cross_decoder(model), name, eos)
        test.check(parts, SMALL_BLOCK_SIZE)
    test.check(parts, config.block_size)
    length = _context_length(model.config, tokenizer, config.max_model_len)
    facts = ModelFacts(
        id=name,
        vocab_size=model.config.vocab_size,
        context_length=length,
        source_length=length,
        eos_token_ids=eos,
        digest=digest,
        dtype=str(dtype).removeprefix("torch."),
        kv_cache_dtype=str(kv_dtype).removeprefix("torch."),
        device=device.type,
        attention_backend=attention,
    )
    log.info("encoder-decoder loaded: %s, %s on %s", name, dtype, device)
    step_bytes = largest_step_bytes(config, model.config, dtype, device)
    return LoadedModel(
        config,
        tokenizer,
        facts,
        parts,
        shapes,
        dtype,
        kv_dtype,
        device,
        attention,
        step_bytes,
        Seq2seqRunner,
    )


def _check_vocabularies(hf_config: Any, name: str) -> None:
    """Raises `UnsupportedModel` if an output's tokens are others than a source's: a tokenizer has one set."""
    ours, outputs = hf_config.vocab_size, getattr(hf_config, "decoder_vocab_size", None)
    if outputs not in (None, ours):
        reason = (
            f"its outputs have a vocabulary of their own (decoder_vocab_size {outputs}, vocab_size {ours})"
        )
        raise UnsupportedModel(name, reason)


def _attention_backend(name: str, parts: EncoderDecoder, device: torch.device, kv_dtype: torch.dtype) -> str:
    """The kernel adds no position bias, and the others expect causal attention. Raises `InvalidConfig`."""
    if parts.decoder.position_bias is not None and name == "native":
        raise InvalidConfig("attention_backend must be auto or torch: this model adds a bias by position")
    if parts.decoder.position_bias is not None or device.type != "cpu":
        name = "torch"
    return resolve_attention_backend(name, device, parts.dtype, kv_dtype)


def _parts(model: Any, decoder: CrossDecoder, name: str, eos_token_ids: frozenset[int]) -> EncoderDecoder:
    return EncoderDecoder(
        ModuleEncoder(model),
        decoder,
        read_rules(model, name, eos_token_ids),
        model.config.vocab_size,
        eos_token_ids,
        model.dtype,
    )


def _context_length(hf_config: Any, tokenizer: Tokenizer, max_model_len: int | None) -> int:
    """Tokens that a source may have, and an output. Raises `InvalidConfig` if there are not so many."""
    positions = getattr(hf_config, "max_position_embeddings", None)
    if positions is not None and max_model_len is not None and max_model_len > positions:
        raise InvalidConfig(f"max_model_len {max_model_len} exceeds the model's {positions} positions")
    length = max_model_len or positions or tokenizer.context_length or RELATIVE_POSITIONS_MAX
    return int(length)


def _test_tokens(model: Any) -> list[tuple[list[int], list[int]]]:
    """Source and output of each sequence, without padding."""
    generator = torch.Generator().manual_seed(0)
    pad = model.config.pad_token_id if isinstance(model.config.pad_token_id, int) else 0

    def draw(count: int) -> list[int]:
        ids = torch.randint(0, model.config.vocab_size - 1, (count,), generator=generator)
        return [id + (id >= pad) for id in ids.tolist()]

    return [(draw(source), draw(output)) for source, output in _TEST_LENGTHS]


@torch.inference_mode()
def _reference_logits(
    model: Any, rules: DecodingRules, sequences: Seq[tuple[list[int], list[int]]]
) -> list[Tensor]:
    """Logits of transformers' own model for each sequence alone: after its start and after each token."""
    logits_by_sequence = []
    for source, output in sequences:
        ids = torch.tensor([source], device=model.device)
        decoder_ids = torch.tensor([[rules.start_token_id, *output]], device=model.device)
        mask = torch.ones_like(decoder_ids)
        logits = model(
            input_ids=ids, decoder_input_ids=decoder_ids, decoder_attention_mask=mask, use_cache=False
        ).logits
        logits_by_sequence.append(logits[0].float())
    return logits_by_sequence


@dataclass(frozen=True, slots=True)
class _Test:
    """Sequences, and the logits that each should have."""

    shapes: dict[int, KvShape]
    sequences: list[tuple[list[int], list[int]]]
    expected: list[Tensor]
    attention: str
    name: str

    def check(self, parts: EncoderDecoder, block_size: int) -> None:
        """Raises `UnsupportedModel` unless both sequences, step by step, have the logits expected."""
        plain = replace(parts, rules=replace(parts.rules, never=(), no_repeat_ngram_size=0, min_length=0))
        device = self.expected[0].device
        kv = KvMemory(
            self.shapes,
            num_blocks=16,
            block_size=block_size,
            dtype=parts.dtype,
            device=device,
            transposed_keys=has_transposed_keys(self.attention),
        )
        runner = Seq2seqRunner(plain, kv, make_attention(self.attention, kv), device)
        sequences = []
        for number, (source, output) in enumerate(self.sequences):
            request = Request(str(number), [parts.rules.start_token_id], source_token_ids=source)
            num_tokens_max = request.source_slots(block_size) + 1 + len(output)
            sequence = Sequence(request, arrival=number, num_tokens_max=num_tokens_max, block_size=block_size)
            sequence.add_blocks([8 * number + at for at in (5, 0, 7, 2, 4, 6)])
            sequences.append((sequence, output))
        for step, tokens in enumerate(zip(*(output for _, output in sequences), strict=False)):
            chunks = [Chunk(sequence, sequence.num_uncomputed_tokens) for sequence, _ in sequences]
            logits = runner.forward(chunks)
            for row, (chunk, wanted) in enumerate(zip(chunks, self.expected, strict=True)):
                error = (logits[row] - wanted[step]).square().mean().sqrt() / wanted[step].std()
                if not error <= LOGITS_ERROR_MAX[parts.dtype]:  # NaN is none
                    reason = f"its logits differ from those of transformers' own model by {error.item():.2g}"
                    raise UnsupportedModel(self.name, reason)
                chunk.sequence.num_computed_tokens += chunk.num_tokens
                chunk.sequence.append(tokens[row])
