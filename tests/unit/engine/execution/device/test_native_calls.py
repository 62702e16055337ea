"""Decoding steps written down once: made again, they give the bits of steps made call by call."""

from __future__ import annotations

import ctypes
import random
from array import array
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nightshift_engine import Request
from nightshift_engine.core.batcher import Chunk
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.execution.attention.interface import LayerCall
from nightshift_engine.execution.attention.native_backend import NativeAttention
from nightshift_engine.execution.decoder.decoder import Decoder
from nightshift_engine.execution.decoder.pack import read_decoder
from nightshift_engine.execution.decoder.weights import ROPE_ROWS
from nightshift_engine.execution.device.native_calls import WrittenCalls, invoke
from nightshift_engine.execution.kv_memory import KvMemory, KvShape
from nightshift_engine.execution.linears.interface import LinearDType
from nightshift_engine.execution.linears.native import NativeLinear
from nightshift_engine.execution.linears.packing import native_packing, onednn_pack
from nightshift_engine.execution.model_runner import ModelRunner
from nightshift_engine.execution.step_layout import StepLayout
from nightshift_engine.loading.selftest import check_model
from tests.unit.engine.execution.decoder.test_decoder import load, read
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import VOCAB_SIZE, save_model

pytestmark = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels"
)

BLOCK_SIZE = 32
BLOCKS_EACH = 2
NUM_SEQUENCES = 9
CPU = torch.device("cpu")
NAMES: dict[torch.dtype, LinearDType] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen2_moe": {"num_experts": 6, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40},
}


class CallByCall:
    """The native back end behind another name, so that nothing is written down."""

    shares_prefixes = False

    def __init__(self, kv: KvMemory) -> None:
        self._native = NativeAttention(kv)

    def step(self, layout: StepLayout) -> CallByCall:
        self._native.step(layout)
        return self

    def attend(self, layer_index: int, query: Tensor, key: Tensor, value: Tensor, call: LayerCall) -> Tensor:
        return self._native.attend(layer_index, query, key, value, call)


def kv_memory(model: Any, num_blocks: int = NUM_SEQUENCES * BLOCKS_EACH) -> KvMemory:
    config = model.config
    head_dim = config.hidden_size // config.num_attention_heads
    shape = KvShape(config.num_key_value_heads, head_dim, head_dim)
    return KvMemory(
        dict.fromkeys(range(config.num_hidden_layers), shape),
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        dtype=model.dtype,
        device=CPU,
        transposed_keys=True,
    )


def sequence(number: int, token_ids: list[int], blocks: list[int]) -> Sequence:
    made = Sequence(Request(str(number), ()), arrival=number, num_tokens_max=1)
    made.token_ids = array("q", token_ids)
    made.add_blocks(blocks)
    return made


def count_written(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Appends to the list it returns whenever calls are written down rather than made again."""
    written: list[int] = []
    real = decoder._compute

    def compute(*arguments: Any, keeps_all_rows: bool = False) -> None:
        if keeps_all_rows:
            written.append(1)
        real(*arguments, keeps_all_rows=keeps_all_rows)

    monkeypatch.setattr(decoder, "_compute", compute)
    return written


@pytest.mark.parametrize(
    ("model_type", "dtype"),
    mostly_exhaustive(
        product(["llama", "mixtral", "qwen2_moe"], NAMES),
        default=[("llama", torch.float32), ("mixtral", torch.bfloat16), ("qwen2_moe", torch.float32)],
    ),
)
def test_random_steps_give_the_bits_of_steps_call_by_call(
    dtype: torch.dtype, model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype == torch.bfloat16 and not NativeLinear.can_pack("bfloat16", 2):
        pytest.skip("this processor has no AVX512_BF16")
    model = load(save_model(tmp_path, model_type, **EXPERTS.get(model_type, {}))).to(dtype)
    memories = kv_memory(model), kv_memory(model)
    calls = check_model(model, model_type).calls
    decoder = read_decoder(model, calls, native_packing(NAMES[dtype]), dtype)
    written = count_written(decoder, monkeypatch)
    runners = (
        ModelRunner(decoder, memories[0], NativeAttention(memories[0]), CPU),
        ModelRunner(decoder, memories[1], CallByCall(memories[1]), CPU),
    )
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    rng = random.Random(seed)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(2, 30))] for _ in range(NUM_SEQUENCES)]
    sequences = [
        sequence(n, prompt, [BLOCKS_EACH * n, BLOCKS_EACH * n + 1]) for n, prompt in enumerate(prompts)
    ]
    steps = [rng.sample(range(NUM_SEQUENCES), rng.randint(1, NUM_SEQUENCES)) for _ in range(25)]
    for step in [list(range(NUM_SEQUENCES)), *steps]:
        chunks = [Chunk(sequences[n], sequences[n].num_uncomputed_tokens) for n in step]
        logits, wanted = (runner.forward(chunks).clone() for runner in runners)
        assert torch.equal(logits, wanted), f"step of {len(step)} sequences"
        for n in step:
            sequences[n].num_computed_tokens = sequences[n].num_tokens
            sequences[n].token_ids = [*sequences[n].token_ids, rng.randrange(VOCAB_SIZE)]
    assert 0 < len(written) < len(steps), "sizes that came again were not written again"


def test_steps_are_written_again_when_the_table_of_positions_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(save_model(tmp_path, max_position_embeddings=4 * ROPE_ROWS))
    num_blocks = ROPE_ROWS // BLOCK_SIZE + 1
    memories = kv_memory(model, num_blocks), kv_memory(model, num_blocks)
    decoder = read(model)
    written = count_written(decoder, monkeypatch)
    runners = (
        ModelRunner(decoder, memories[0], NativeAttention(memories[0]), CPU),
        ModelRunner(decoder, memories[1], CallByCall(memories[1]), CPU),
    )
    one = sequence(0, [index % VOCAB_SIZE for index in range(ROPE_ROWS - 2)], list(range(num_blocks)))
    for _ in range(6):
        chunks = [Chunk(one, one.num_uncomputed_tokens)]
        logits, wanted = (runner.forward(chunks).clone() for runner in runners)
        assert torch.equal(logits, wanted)
        one.num_computed_tokens = one.num_tokens
        one.token_ids = [*one.token_ids, 7]
    assert len(written) == 2, "once before the table grew and once after"


def test_layers_that_are_more_than_calls_of_kernels_are_not_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(save_model(tmp_path))
    kv = kv_memory(model)
    decoder = read(model, onednn_pack("float32"))
    written = count_written(decoder, monkeypatch)
    runner = ModelRunner(decoder, kv, NativeAttention(kv), CPU)

    runner.forward([Chunk(sequence(0, [5], [0, 1]), 1)])

    assert not written


class _Nothing(ctypes.Structure):
    _fields_ = (("unused", ctypes.c_int32),)


def test_a_call_that_fails_ends_the_run() -> None:
    kernel = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    made = []

    def answer(status: int) -> Any:
        return kernel(lambda _call, _team: made.append(status) or status)

    kernels = [answer(0), answer(1), answer(0)]
    written = WrittenCalls()
    with written.writing():
        for kernel in kernels:
            invoke(kernel, _Nothing())
    assert not made, "written down, not made"

    with pytest.raises(MemoryError):
        written.run()

    assert made == [0, 1]
