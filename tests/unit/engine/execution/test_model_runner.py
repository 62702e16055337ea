"""Which rows of a step get logits, and that they are those of the same tokens computed one by one."""

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from nightshift_engine import Request
from nightshift_engine.core.batcher import Chunk
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.execution.attention.selection import has_transposed_keys, make_attention
from nightshift_engine.execution.decoder.pack import read_decoder
from nightshift_engine.execution.forward_pass import ModulePass
from nightshift_engine.execution.kv_memory import KvMemory
from nightshift_engine.execution.linears.native import NativeLinear
from nightshift_engine.execution.linears.packing import native_packing
from nightshift_engine.execution.model_runner import ModelRunner
from nightshift_engine.loading.selftest import CheckedModel, check_model

CPU = torch.device("cpu")
PROMPT = list(range(40, 60))
NUM_SAMPLED = 3
needs_native = pytest.mark.skipif(
    not NativeLinear.can_pack("float32", 1), reason="no compiler, so no native kernels"
)


class Runs:
    """Runners over one model, each with KV memory of its own."""

    def __init__(self, directory: Path, attention: str, *, is_written_out: bool) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
        self._checked: CheckedModel = check_model(model, "llama", attention)
        self._attention = attention
        packing = native_packing("float32")
        self._forward_pass = (
            read_decoder(model, self._checked.calls, packing, torch.float32)
            if is_written_out
            else ModulePass(model)
        )

    def runner(self) -> ModelRunner:
        kv = KvMemory(
            self._checked.shapes,
            num_blocks=8,
            block_size=16,
            dtype=torch.float32,
            device=CPU,
            transposed_keys=has_transposed_keys(self._attention),
        )
        return ModelRunner(self._forward_pass, kv, make_attention(self._attention, kv), CPU)


def sequence(name: str, blocks: list[int]) -> Sequence:
    made = Sequence(Request(name, ()), arrival=int(name), num_tokens_max=len(PROMPT) + 1)
    made.add_blocks(blocks)
    return made


def advance(runner: ModelRunner, one: Sequence, known: int, num_sampled: int = 1, *others: Chunk) -> Tensor:
    """Logits of a step that computes `one` up to `known` tokens, behind `others`."""
    one.token_ids = array("q", PROMPT[:known])
    chunk = Chunk(one, one.num_uncomputed_tokens, num_sampled)
    logits = runner.forward([*others, chunk]).clone()
    one.num_computed_tokens = known
    return logits


@pytest.mark.parametrize(
    ("attention", "is_written_out"),
    [("torch", False), pytest.param("native", True, marks=needs_native)],
    ids=["modules", "written out"],
)
def test_the_last_rows_of_a_chunk_get_the_logits_of_as_many_steps(
    llama: Path, attention: str, is_written_out: bool
) -> None:
    runs = Runs(llama, attention, is_written_out=is_written_out)
    before = len(PROMPT) - NUM_SAMPLED
    one_by_one, guessed = runs.runner(), runs.runner()
    stepwise = sequence("0", [5, 2])
    advance(one_by_one, stepwise, before)
    wanted = torch.cat([advance(one_by_one, stepwise, before + n) for n in range(1, NUM_SAMPLED + 1)])

    at_once, beside = sequence("0", [1, 4]), sequence("1", [3])
    advance(guessed, at_once, before)
    beside.token_ids = array("q", PROMPT[:1])
    logits = advance(guessed, at_once, len(PROMPT), NUM_SAMPLED, Chunk(beside, 1))

    assert logits.shape == (1 + NUM_SAMPLED, wanted.shape[1])
    torch.testing.assert_close(logits[1:], wanted, atol=1e-4, rtol=0)
    assert not torch.allclose(wanted[0], wanted[1], atol=1e-2), "the rows are too alike to tell apart"


def test_a_whole_prompt_may_get_logits_and_a_part_of_one_gets_none(llama: Path) -> None:
    runner = Runs(llama, "torch", is_written_out=False).runner()
    whole, part = sequence("0", [5, 2]), sequence("1", [1, 4])
    whole.token_ids = part.token_ids = array("q", PROMPT)

    assert len(runner.forward([Chunk(part, 7, 7), Chunk(whole, len(PROMPT), len(PROMPT))])) == len(PROMPT)
    with pytest.raises(AssertionError, match="more rows than it computes"):
        runner.forward([Chunk(part, 2, 3)])
