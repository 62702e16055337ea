"""A draft model changes no output: it proposes tokens, and the model samples every one."""

import random
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from nightshift_engine import Completion, Engine, Grammar, Request, SamplingParams
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.core.speculation.speculator import (
    BY_MODEL,
    MODEL_SEQUENCES_MAX,
    Speculator,
    _Draft,
)
from nightshift_engine.core.steps import Chunk
from nightshift_engine.engine.draft_model import DraftModel
from nightshift_engine.errors import InvalidConfig
from tests.unit.engine.loading.test_model_families import LATENT
from tests.unit.engine.running.carrying import resumed, save
from tests.unit.engine.running.guessing import speculating, with_fixed_cost
from tests.unit.engine.running.test_overlap import CRAMPED, random_request, result
from tests.unit.engine.running.test_speculation import with_logprobs
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import (
    VOCAB_SIZE,
    byte_tokenizer,
    collect,
    complete,
    engine_config,
    greedy,
    load_engine,
    make_engine,
    save_model,
)
from tests.unit.engine.tiny.encoders import save_checkpoint, tiny_bert
from tests.unit.engine.tiny.narrow import FORMATS, save_narrow


@pytest.fixture(scope="module")
def partly(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of `llama`, with a head that mostly chooses the same tokens."""
    directory = tmp_path_factory.mktemp("partly")
    model = AutoModelForCausalLM.from_pretrained(llama)
    with torch.no_grad():
        torch.manual_seed(3)
        model.lm_head.weight += 0.06 * torch.randn_like(model.lm_head.weight)
    model.save_pretrained(directory)
    byte_tokenizer().save_pretrained(directory)
    return directory


class AnyLength(Speculator):
    """Drafts by the model alone, of any length, whatever it costs."""

    def __init__(self, model: Any, chance: random.Random) -> None:
        super().__init__(model)
        self._chance = chance

    def _propose(self, sequence: Sequence) -> _Draft:
        most = min(self._chance.randint(0, 7), sequence.num_tokens_max - 1 - sequence.num_tokens)
        return _Draft(kinds=[BY_MODEL] * max(0, most))

    def _lengths(self, shape: Any, proposals: Any) -> list[int]:
        return [len(draft.kinds) for _, draft in proposals]

    def note_attempt(self, seconds: float) -> None:
        """Learns nothing: a slow machine would let it rest."""


class Watched:
    """A draft model's runner that counts the tokens of its passes."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.passes: list[int] = []
        self.ids: set[str] = set()

    def forward(self, chunks: Seq[Chunk], promised: Tensor | None = None) -> Tensor:
        self.ids |= {chunk.sequence.known.id for chunk in chunks}  # type: ignore[attr-defined]
        self.passes.append(sum(chunk.num_tokens for chunk in chunks))
        logits: Tensor = self._runner.forward(chunks, promised)
        return logits

    def clear_blocks(self, blocks: list[int]) -> None:
        self._runner.clear_blocks(blocks)


def draft_model_of(engine: Engine) -> DraftModel:
    assert engine._drafting is not None, "it drafts"
    model = engine._drafting.speculator._model
    assert isinstance(model, DraftModel)
    return model


def watched(engine: Engine) -> Watched:
    runner: Any = Watched(draft_model_of(engine)._runner)
    draft_model_of(engine)._runner = runner
    watched: Watched = runner
    return watched


def with_model(directory: Path, draft: Path, **config: Any) -> Engine:
    """An engine in which the draft model always drafts."""
    engine = make_engine(directory, draft_model=str(draft), speculation="auto", **config)
    return speculating(engine, AnyLength(draft_model_of(engine), random.Random(1)))


def refusal(directory: Path, draft: Path, **config: Any) -> str:
    with pytest.raises(InvalidConfig) as refused:
        load_engine(directory, draft_model=str(draft), speculation="auto", **config)
    return str(refused.value)


@pytest.mark.parametrize(("seed", "overlap_steps"), [(1, False), (2, True)])
def test_every_request_is_answered_as_without_drafts_in_a_cramped_engine(
    llama: Path, partly: Path, seed: int, overlap_steps: bool
) -> None:
    requests = [random_request(n, random.Random(seed * 1000 + n)) for n in range(16)]
    plain = complete(make_engine(llama), *requests)
    engine = with_model(llama, partly, overlap_steps=overlap_steps, **CRAMPED)
    answers = complete(engine, *requests)

    assert [with_logprobs(answer) for answer in answers] == [with_logprobs(answer) for answer in plain]
    stats = engine.stats()
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    assert stats.preemptions > 0
    assert stats.blocks_free == stats.blocks_total


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 7, "top_p": 0.9}])
def test_the_same_weights_draft_what_the_model_draws(llama: Path, params: dict[str, Any]) -> None:
    sampling = SamplingParams(max_tokens=60, ignore_eos=True, presence_penalty=0.5, **params)
    requests = [Request(f"{n}", [n, 5, 6], sampling) for n in range(3)]
    engine = with_model(llama, llama)
    answers = complete(engine, *requests)

    assert [result(answer) for answer in answers] == [
        result(answer) for answer in complete(make_engine(llama), *requests)
    ]
    assert engine.stats().num_accepted_tokens == engine.stats().num_draft_tokens > 100


def test_grammars_are_followed_by_drafts_too(llama: Path) -> None:
    grammar = Grammar("regex", "name: [a-z]{5,20}, number: [0-9]{3,9}")
    requests = [
        Request(f"{n}", [n], SamplingParams(temperature=t, max_tokens=60), grammar=grammar)
        for n, t in enumerate([0.0, 1.0])
    ]
    engine = with_fixed_cost(make_engine(llama, draft_model=str(llama), speculation="auto"))
    answers = complete(engine, *requests)

    assert [result(answer) for answer in answers] == [
        result(answer) for answer in complete(make_engine(llama), *requests)
    ]
    assert engine.stats().num_accepted_tokens == engine.stats().num_draft_tokens > 20
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_a_resumed_request_goes_on_as_without_drafts(llama: Path, partly: Path) -> None:
    requests = [random_request(n, random.Random(7000 + n)) for n in range(8)]
    plain = complete(make_engine(llama), *requests)
    engine = with_model(llama, partly)
    completions: dict[str, Completion] = {}
    for request in requests:
        engine.add(request)
    for _ in range(3):
        collect(completions, engine.step())
    other = with_model(llama, partly)
    for completion in complete(other, *resumed(other, requests, save(engine, requests, completions))):
        completions[completion.id] = completion

    assert [result(completions[request.id]) for request in requests] == [result(answer) for answer in plain]


def save_other(directory: Path, family: str) -> Path:
    """A draft model of another architecture than that of the model."""
    if family == "gptq":
        return save_narrow(directory, FORMATS[family])
    if family == "deepseek_v3":
        return save_model(directory, family, **LATENT)
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return save_model(directory, family, num_hidden_layers=1, sliding_window=8, **experts)


@pytest.mark.parametrize("family", mostly_exhaustive(["mixtral", "deepseek_v3", "gptq"], default=["mixtral"]))
def test_another_architecture_drafts_for_layers_with_windows_and_without(family: str, tmp_path: Path) -> None:
    facts = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8, "num_hidden_layers": 4}
    directory = save_model(tmp_path / "gemma2", "gemma2", **facts)
    draft = save_other(tmp_path / "draft", family)
    requests = [Request(f"{n}", [n, *range(20 * n, 20 * n + 15)], greedy(40)) for n in range(4)]
    engine = with_model(directory, draft, num_kv_blocks=60)
    answers = complete(engine, *requests)

    assert [result(answer) for answer in answers] == [
        result(answer) for answer in complete(make_engine(directory), *requests)
    ]
    assert engine.stats().num_draft_tokens > 50
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_a_prefix_that_it_has_read_is_not_read_again(llama: Path) -> None:
    engine = with_model(llama, llama)
    runner = watched(engine)
    complete(engine, Request("a", list(range(60)), greedy(20)))
    read_first, runner.passes = sum(runner.passes), []
    complete(engine, Request("b", [*range(60), 7], greedy(20)))

    assert read_first > 60
    assert sum(runner.passes) < 60, "the drafts, and what follows the blocks of the prefix"
    assert engine.stats().num_accepted_tokens == engine.stats().num_draft_tokens


def test_it_makes_no_pass_for_many_and_reads_up_for_those_that_are_left(llama: Path) -> None:
    engine = with_model(llama, llama)
    runner = watched(engine)
    limit = MODEL_SEQUENCES_MAX
    requests = [Request(f"{n}", [n] * 9, greedy(60 if n < limit else 20)) for n in range(limit + 1)]
    for request in requests:
        engine.add(request)
    completions: dict[str, Completion] = {}
    while engine.stats().running > limit or not completions:
        assert runner.passes == []
        collect(completions, engine.step())
    while engine.has_work:
        collect(completions, engine.step())

    plain = complete(make_engine(llama), *requests)
    assert [result(completions[request.id]) for request in requests] == [result(answer) for answer in plain]
    assert engine.stats().num_accepted_tokens == engine.stats().num_draft_tokens > 0


def test_what_others_wrote_into_its_blocks_is_read_anew(llama: Path) -> None:
    engine = with_model(llama, llama, num_kv_blocks=24, max_num_seqs=8)
    requests = [Request(f"{n}", [n] * 20, greedy(20)) for n in range(4)]
    complete(engine, *requests, *(Request(f"again {n}", [n] * 20, greedy(20)) for n in range(4)))

    assert engine.stats().num_accepted_tokens == engine.stats().num_draft_tokens > 0


def test_a_long_prompt_is_read_over_several_steps_of_which_none_exceeds_its_tokens(llama: Path) -> None:
    engine = with_model(llama, llama, max_num_batched_tokens=16)
    runner = watched(engine)
    complete(engine, Request("a", list(range(60)), greedy(40)))

    assert max(runner.passes) == 15
    assert engine.stats().num_accepted_tokens == engine.stats().num_draft_tokens > 0


def test_beside_interactive_requests_it_drafts_for_no_bulk_row(llama: Path) -> None:
    engine = with_model(llama, llama)
    runner = watched(engine)
    complete(engine, Request("first", [1], greedy(60), priority="interactive"))  # steps have been measured
    runner.ids.clear()
    engine.add(Request("interactive", [2], greedy(100), priority="interactive"))
    engine.add(Request("bulk", [3], greedy(100), priority="background"))
    for _ in range(6):
        engine.step()

    assert runner.ids == {"interactive"}


def test_logits_that_are_not_finite_draft_nothing(llama: Path) -> None:
    engine = with_model(llama, llama)
    runner: Any = draft_model_of(engine)._runner
    request, forward, wiped = Request("a", [1, 2, 3], greedy(20)), runner.forward, list[int]()
    runner.forward = lambda chunks: forward(chunks) * float("nan")
    runner.clear_blocks = wiped.extend
    [answer] = complete(engine, request)

    assert result(answer) == result(complete(make_engine(llama), request)[0])
    assert engine.stats().num_draft_tokens == 0
    assert wiped
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_memory_that_does_not_suffice_for_drafts_makes_steps_smaller(llama: Path) -> None:
    engine = with_model(llama, llama)
    runner: Any = draft_model_of(engine)._runner
    forward, failures = runner.forward, [MemoryError("no memory")]

    def fail_once(chunks: Seq[Chunk]) -> Tensor:
        if failures:
            raise failures.pop()
        logits: Tensor = forward(chunks)
        return logits

    runner.forward = fail_once
    request = Request("a", [1, 2, 3], greedy(20))
    [answer] = complete(engine, request)

    assert result(answer) == result(complete(make_engine(llama), request)[0])
    assert engine.stats().out_of_memory == 1


def test_one_with_another_vocabulary_or_tokenizer_is_refused_with_the_numbers(
    llama: Path, tmp_path: Path
) -> None:
    other = save_model(tmp_path / "wide", vocab_size=VOCAB_SIZE + 6)
    assert f"it has logits for 264 tokens, and {str(llama)!r} for 258" in refusal(llama, other)

    renamed = save_model(tmp_path / "renamed")
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save_pretrained(renamed)
    assert "2 tokens are not, or have other ids, in one of the tokenizers" in refusal(llama, renamed)


def test_what_cannot_draft_is_refused_by_name(llama: Path, tmp_path: Path) -> None:
    short = save_model(tmp_path / "short", max_position_embeddings=64)
    assert "max_model_len 128 exceeds the model's context of 64" in refusal(llama, short)
    windowed = save_model(tmp_path / "windowed", "mistral", sliding_window=8)
    assert "all layers of the model see 8" in refusal(windowed, llama)
    encoder = save_checkpoint(tmp_path / "encoder", tiny_bert())
    assert "it was asked for as a model that generates text" in refusal(llama, encoder)
    assert "cannot load model" in refusal(llama, tmp_path / "absent")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"speculation": "off"}, "speculation must be auto with a draft_model, got 'off'"),
        (
            {"speculation": "auto", "tensor_parallel_size": 2},
            "tensor_parallel_size must be 1 with adapters or a draft_model",
        ),
    ],
)
def test_a_configuration_with_which_it_would_not_draft_is_refused(
    llama: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        engine_config(llama, draft_model=str(llama), **config)
