"""The attention back ends for CUDA, as far as a CPU can tell.

Triton's interpreter runs our kernels on whole models. torch's own kernel is replaced by a plain computation
of what its documentation says of the arguments, so what is tested is what it is given.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nightshift_engine import EngineConfig
from nightshift_engine.errors import InvalidConfig
from nightshift_engine.execution.attention import selection, varlen_backend
from nightshift_engine.execution.attention.interface import LayerCall, UnsupportedAttention
from nightshift_engine.execution.attention.selection import resolve_attention_backend
from nightshift_engine.execution.attention.varlen_backend import VarlenAttention
from nightshift_engine.execution.kv_memory import KvMemory, KvShape
from tests.unit.engine.execution.attention.test_attention import layout_of, make_cases, written_out
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import (
    greedy_answers,
    load_engine,
    reference_greedy,
    save_model,
)

CPU = torch.device("cpu")
NEW_TOKENS = 3
PROMPTS = [[5, 9, 200, 31, 7, 77, 8, 120, 3], [41] * 5, list(range(60, 80))]

# Triton's interpreter is slow for each program of each layer: few heads, and no more layers than kinds.
ONE_GROUP = {"num_attention_heads": 2, "num_key_value_heads": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama, odd head dim": {"head_dim": 10, "num_hidden_layers": 1},
    "gemma2": ONE_GROUP
    | {
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 8,
        "attn_logit_softcapping": 2.0,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gpt_oss": ONE_GROUP
    | {
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
"""Padded; with windows and softcap; with windows and sinks."""


@pytest.mark.parametrize("name", mostly_exhaustive(FAMILIES, default=["gemma2"]))
def test_greedy_output_through_triton_equals_generate(name: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    directory = save_model(tmp_path, name.split(",")[0], seed=5, **FAMILIES[name])
    # Budget and memory are small, so that prompts are cut, mixed with decoding, and computed again.
    engine = load_engine(
        directory, attention_backend="triton", dtype="float32", num_kv_blocks=16, max_num_batched_tokens=16
    )

    wanted = reference_greedy(directory, PROMPTS, NEW_TOKENS)
    assert greedy_answers(engine, PROMPTS, NEW_TOKENS) == wanted


def test_rows_of_one_prompt_read_its_blocks_together_and_answer_as_if_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from nightshift_engine.execution.attention import triton_backend
    from nightshift_engine.kernels.triton import decode, splits

    shared: list[int] = []

    def attend_decodes(*arguments: Any, shared_tokens: Tensor, **options: Any) -> None:
        shared.append(int(shared_tokens.max()))
        decode.attend_decodes(*arguments, shared_tokens=shared_tokens, **options)

    monkeypatch.setattr(splits, "SPLIT_TOKENS_MIN", 16)
    monkeypatch.setattr(triton_backend, "attend_decodes", attend_decodes)
    directory = save_model(tmp_path, seed=5, num_hidden_layers=1, **ONE_GROUP)
    prompts = [[*range(30, 66), 100 + n] for n in range(9)]  # two splits, a block and one token
    engine = load_engine(directory, attention_backend="triton", dtype="float32")
    greedy_answers(engine, prompts[:1], 1)

    assert greedy_answers(engine, prompts, NEW_TOKENS) == reference_greedy(directory, prompts, NEW_TOKENS)
    assert max(shared) == 36


@pytest.mark.parametrize("kv_cache_dtype", mostly_exhaustive(["int8", "bfloat16"], default=[]))
def test_narrow_kv_through_triton_gives_what_it_gives_in_plain_torch(
    kv_cache_dtype: str, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    directory = save_model(tmp_path, seed=5, num_hidden_layers=1)
    answers = []
    for attention_backend in ("torch", "triton"):
        engine = load_engine(
            directory, attention_backend=attention_backend, dtype="float32", kv_cache_dtype=kv_cache_dtype
        )
        answers.append(greedy_answers(engine, PROMPTS[:2], NEW_TOKENS))

    assert answers[0] == answers[1]


def documented_varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
) -> Tensor:
    """As torch documents: pages `[pages, page_size, kv_heads, dim]`, window (left, right) of a token."""
    assert cu_seq_k is None
    assert key.shape[1] % 256 == 0
    assert enable_gqa == (query.shape[1] != key.shape[2])
    left, right = window_size
    out = []
    for row, length in enumerate(seqused_k.tolist()):
        q = query[cu_seq_q[row] : cu_seq_q[row + 1]]
        assert len(q) <= max_q
        assert length <= max_k
        keys, values = (pages[block_table[row].long()].flatten(0, 1)[:length] for pages in (key, value))
        distance = torch.arange(length - len(q), length)[:, None] - torch.arange(length)[None]
        seen = (distance >= -right) & ((distance <= left) | (left < 0))
        group = query.shape[1] // key.shape[2]
        scores = torch.einsum("qhd,khd->hqk", q, keys.repeat_interleave(group, 1)) * scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(group, 1)))
    return torch.cat(out)


@pytest.mark.parametrize("window", [None, 1, 4])
def test_torchs_own_kernel_gets_the_place_of_everything(window: int | None) -> None:
    shape, call = KvShape(2, 8, 8), LayerCall(scale=0.3, window=window, softcap=None, sinks=None)
    cases = make_cases([(0, 1), (0, 9), (0, 6)], num_heads=6, shape=shape, seed=3)
    for case in cases:
        case.table = case.table[:1]  # at 256 tokens a block, one each
    kv = KvMemory({0: shape}, num_blocks=40, block_size=256, dtype=torch.float32, device=CPU)
    layout = layout_of(cases, block_size=256)

    step = VarlenAttention(kv, documented_varlen_attn).step(layout)
    query, key, value = (
        torch.cat([getattr(case, name) for case in cases], 1) for name in ("query", "key", "value")
    )
    out = step.attend(0, query, key, value, call)

    wanted = torch.cat([written_out(case, call) for case in cases])
    torch.testing.assert_close(out.double(), wanted, atol=2e-6, rtol=1e-5)


def test_torchs_own_kernel_accepts_our_arguments_where_it_takes_block_tables() -> None:
    varlen_attn = varlen_backend.paged_varlen_attn()
    if varlen_attn is None:
        pytest.skip("this torch's varlen_attn has no block tables")
    shape = KvShape(2, 64, 64)
    cases = make_cases([(0, 1), (0, 9)], num_heads=6, shape=shape, seed=3)
    for case in cases:
        case.table = case.table[:1]
    layout = layout_of(cases, block_size=256)
    with torch.device("meta"):  # shapes only: the kernel itself needs CUDA
        kv = KvMemory(
            {0: shape}, num_blocks=40, block_size=256, dtype=torch.bfloat16, device=torch.device("meta")
        )
        tensors = {name: getattr(layout, name).to("meta") for name in LAYOUT_TENSORS}
        layout = type(layout)(**{name: getattr(layout, name) for name in layout.__slots__} | tensors)
        query, key = (
            torch.empty(6, 10, 64, dtype=torch.bfloat16),
            torch.empty(2, 10, 64, dtype=torch.bfloat16),
        )

        out = VarlenAttention(kv).step(layout).attend(0, query, key, key, LayerCall(0.1, 5, None, None))

    assert out.shape == (10, 6, 64)


LAYOUT_TENSORS = ("cu_seqlens_q", "seq_lens", "block_tables", "slot_mapping", "positions")


def test_torchs_own_kernel_refuses_what_it_does_not_compute() -> None:
    shape = KvShape(2, 8, 8)
    small = KvMemory({0: shape}, num_blocks=2, block_size=32, dtype=torch.float32, device=CPU)
    kv = KvMemory({0: shape}, num_blocks=2, block_size=256, dtype=torch.float32, device=CPU)
    cases = make_cases([(0, 1)], num_heads=2, shape=shape, seed=3)
    step = VarlenAttention(kv, documented_varlen_attn).step(layout_of(cases, block_size=256))

    with pytest.raises(InvalidConfig, match=r"block_size.*multiple of 256.*got 32"):
        VarlenAttention(small, documented_varlen_attn)
    with pytest.raises(UnsupportedAttention, match="softcap"):
        step.attend(0, cases[0].query, cases[0].key, cases[0].value, LayerCall(0.3, None, 5.0, None))


def test_a_back_end_that_does_not_run_here_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    assert resolve_attention_backend("auto", CPU, torch.float32) != "triton"
    with pytest.raises(InvalidConfig, match=r"'triton'.*(CUDA|not installed)"):
        resolve_attention_backend("triton", CPU, torch.float32)
    with pytest.raises(InvalidConfig, match="'varlen'"):
        resolve_attention_backend("varlen", CPU, torch.float32)
    with pytest.raises(InvalidConfig, match="attention_backend"):
        EngineConfig("some/model", attention_backend="flash")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("capability", "is_installed", "wanted"),
    [((9, 0), True, "triton"), ((7, 5), True, "torch"), ((9, 0), False, "torch")],
)
def test_cuda_gets_triton_where_it_is_installed_and_the_device_new_enough(
    capability: tuple[int, int], is_installed: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(
        selection.importlib.util, "find_spec", lambda name: object() if is_installed else None
    )

    assert resolve_attention_backend("auto", torch.device("cuda"), torch.bfloat16) == wanted
