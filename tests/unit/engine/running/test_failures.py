"""Failures of a pass, of memory, of one sequence's numbers or text: other sequences are unharmed."""

from collections.abc import Sequence as Seq
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from nightshift_engine import Request, SamplingParams
from nightshift_engine.core.batcher import Chunk
from nightshift_engine.text.decoders import TextStream
from nightshift_engine.text.tokenizer import Tokenizer
from tests.unit.engine.running.scripted_runner import ScriptedRunner, engine_over
from tests.unit.engine.tiny.decoders import (
    EOS,
    byte_tokenizer,
    complete,
    greedy,
    make_engine,
    run_to_end,
    save_model,
)


def test_a_pass_that_fails_is_tried_again_and_loses_nothing(llama: Path) -> None:
    tokenizer = Tokenizer.load(str(llama))
    runner = ScriptedRunner([*tokenizer.encode("fine"), EOS])
    engine = engine_over(runner, tokenizer)
    engine.add(Request("a", [1, 2], SamplingParams(temperature=0)))
    engine.add(Request("aborted", [1, 2], SamplingParams(temperature=0)))
    engine.step()
    engine.abort("aborted")
    runner.fail_next = True

    with pytest.raises(RuntimeError, match="kernel launch failed"):
        engine.step()
    engine.check_integrity()
    completions = run_to_end(engine)

    assert completions["a"].text == "ine"
    assert completions["aborted"].finish_reason == "abort"


class SmallMachine(ScriptedRunner):
    """Has memory for so many tokens per pass; for none at all of a prompt that begins with `poison`."""

    def __init__(self, script: Seq[int], *, tokens_max: int, poison: int = -1) -> None:
        super().__init__(script)
        self.tokens_max, self.poison = tokens_max, poison
        self.num_failures = 0

    def forward(self, chunks: Seq[Chunk], promised: Tensor | None = None) -> Tensor:
        is_poisoned = any(chunk.sequence.token_ids[0] == self.poison for chunk in chunks)
        if is_poisoned or sum(chunk.num_tokens for chunk in chunks) > self.tokens_max:
            self.num_failures += 1
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to ...")
        return super().forward(chunks, promised)


@pytest.mark.parametrize("tokens_max", [20, 40, 70])
def test_a_step_too_large_for_memory_is_planned_anew_in_smaller_ones(llama: Path, tokens_max: int) -> None:
    tokenizer = Tokenizer.load(str(llama))
    runner = SmallMachine([*tokenizer.encode("fine"), EOS], tokens_max=tokens_max)
    engine = engine_over(runner, tokenizer, max_num_seqs=8)
    requests = [
        Request(str(number), [number] * 20, SamplingParams(temperature=0, max_tokens=9))
        for number in range(8)
    ]

    assert {done.text for done in complete(engine, *requests)} == {"fine"}
    assert 0 < runner.num_failures <= 4, "log2 of the tokens of the largest step, at most"
    assert engine.stats().out_of_memory == runner.num_failures


def test_limits_grow_back_slowly_after_memory_ran_out(llama: Path) -> None:
    tokenizer = Tokenizer.load(str(llama))
    runner = SmallMachine(tokenizer.encode("a"), tokens_max=60)
    engine = engine_over(runner, tokenizer, max_num_batched_tokens=64)
    engine.add(Request("first", [3] * 63, greedy(50)))
    engine.add(Request("second", [4] * 63, greedy(50)))
    engine.step()
    assert engine.stats().max_num_batched_tokens == 32
    runner.tokens_max = 1000
    run_to_end(engine)

    assert engine.stats().max_num_batched_tokens == 32, "not yet"
    complete(engine, Request("third", [5], greedy(100)))
    assert engine.stats().max_num_batched_tokens == 64


def test_a_sequence_no_step_has_memory_for_ends_alone_and_names_the_reason(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer.load(str(llama))
    runner = SmallMachine([*tokenizer.encode("fine"), EOS], tokens_max=1000, poison=13)
    engine = engine_over(runner, tokenizer, max_num_seqs=8)
    requests = [
        Request(f"r{number}", [10 + number] * 20, SamplingParams(temperature=0, max_tokens=9))
        for number in range(8)
    ]

    completions = complete(engine, *requests)

    lost = completions.pop(3)
    assert (lost.id, lost.finish_reason) == ("r3", "abort")
    assert lost.error is not None
    assert lost.error.startswith("out of memory: [enforce fail] DefaultCPUAllocator: can't allocate")
    assert {done.text for done in completions} == {"fine"}
    assert runner.num_failures <= 12, "halvings of tokens, then of sequences, and the last straw"
    assert "r3" in caplog.text


def test_a_sequence_whose_logits_are_not_numbers_ends_alone(tmp_path: Path) -> None:
    """One embedding row is NaN: only prompts with that token fail, and none that comes later."""
    poisoned = 200
    clean = save_model(tmp_path / "clean")
    sick = save_model(tmp_path / "sick")
    weights = load_file(sick / "model.safetensors")
    weights["model.embed_tokens.weight"][poisoned] = float("nan")
    save_file(weights, sick / "model.safetensors", metadata={"format": "pt"})
    other = Request("other", [1, 2, 3], greedy(12))
    later = [Request(f"later-{n}", list(range(n, n + 17)), greedy(12)) for n in range(4)]
    engine = make_engine(sick, num_kv_blocks=25)

    doomed = Request("doomed", [*range(20), poisoned], greedy(12))
    lost, survivor = complete(engine, doomed, other)
    engine_after = complete(engine, *later)

    assert (lost.finish_reason, lost.token_ids) == ("abort", [])
    assert lost.error == "the model's logits are not finite"
    healthy = make_engine(clean)
    assert survivor.token_ids == complete(healthy, other)[0].token_ids
    assert [done.token_ids for done in engine_after] == [done.token_ids for done in complete(healthy, *later)]
    assert engine.stats().blocks_free == 25


class BrokenStream(TextStream):
    __slots__ = ()

    def push(self, token_id: int, *, look_for_stop: bool = True) -> str:
        raise OverflowError("no such token")


class SuperstitiousTokenizer(Tokenizer):
    def text_stream(self, prompt_token_ids: Seq[int], stop: Seq[str] = ()) -> TextStream:
        stream = super().text_stream(prompt_token_ids, stop)
        if prompt_token_ids == [13]:
            stream.__class__ = BrokenStream
        return stream


def test_a_sequence_whose_text_cannot_be_made_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = SuperstitiousTokenizer(byte_tokenizer())
    engine = engine_over(ScriptedRunner([*tokenizer.encode("ok"), EOS]), tokenizer)
    params = SamplingParams(temperature=0)

    unlucky, lucky = complete(engine, Request("unlucky", [13], params), Request("lucky", [14], params))

    assert (unlucky.finish_reason, unlucky.error) == ("abort", "OverflowError: no such token")
    assert (lucky.text, lucky.finish_reason) == ("ok", "stop")
    assert "unlucky" in caplog.text
