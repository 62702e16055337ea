"""Sequences with a grammar: outputs are in it, whether steps overlap, are preempted or resumed."""

import json
import random
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from nightshift_engine import Completion, Grammar, Request, SamplingParams
from nightshift_engine.errors import GrammarFailed, InvalidRequest
from nightshift_engine.guidance import compiler
from nightshift_engine.guidance.compiler import Compiling, GrammarCompiler
from nightshift_engine.sampling.adjustments import mask_tokens
from tests.unit.engine.guidance.random_schemas import check, grammar_of, random_schema
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.decoders import (
    EOS,
    VOCAB_SIZE,
    byte_tokenizer,
    collect,
    complete,
    greedy,
    load_tokenizer,
    make_engine,
    run_to_end,
    save_model,
)

YES_OR_NO = Grammar("choice", json.dumps(["yes", "no", "yes, but"]))
ANY_OF_FOUR = {"anyOf": [{"properties": {f"k{n}": {"type": "integer"}}} for n in range(4)]}
"""Eight of them together are 65,536 alternatives."""
LOOK_AROUND = "look-around, including look-ahead and look-behind, is not supported"
OF_ITSELF = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
LONG = 1400
PADDED_VOCAB = 300
"""More rows of logits than the tokenizer has tokens, as in most published checkpoints."""


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("padded")
    return save_model(directory, vocab_size=PADDED_VOCAB, max_position_embeddings=2048)


def guided(number: int | str, grammar: Grammar, *, prompt: list[int] | None = None, **params: Any) -> Request:
    sampling = SamplingParams(**{"temperature": 1.0, "max_tokens": LONG} | params)
    return Request(f"g{number}", prompt or [1, 2, 3], sampling, grammar=grammar)


def outcome(completion: Completion) -> tuple[list[int], str, str | None]:
    return completion.token_ids, completion.text, completion.finish_reason


@pytest.mark.parametrize(
    ("temperature", "overlap_steps"),
    mostly_exhaustive(product([0.0, 1.0], [False, True]), default=[(0.0, True), (1.0, False)]),
)
def test_outputs_for_random_schemas_validate_at_any_temperature(
    padded: Path, temperature: float, overlap_steps: bool
) -> None:
    schemas = [random_schema(random.Random(seed)) for seed in range(24)]
    engine = make_engine(padded, overlap_steps=overlap_steps, num_kv_blocks=8000)
    requests = [guided(n, grammar_of(s), temperature=temperature) for n, s in enumerate(schemas)]
    free = Request("free", [4], greedy(40))
    completions = complete(engine, *requests, free)

    for schema, completion in zip(schemas, completions, strict=False):
        assert completion.finish_reason == "stop", completion
        check(completion.text, schema)
    assert outcome(completions[-1]) == outcome(complete(make_engine(padded), free)[0])


@pytest.mark.parametrize("overlap_steps", mostly_exhaustive([False, True], default=[True]))
def test_preempted_sequences_stay_in_their_grammar(padded: Path, overlap_steps: bool) -> None:
    schemas = [random_schema(random.Random(seed)) for seed in range(100, 108)]
    requests = [guided(n, grammar_of(schema)) for n, schema in enumerate(schemas)]
    cramped = make_engine(
        padded, overlap_steps=overlap_steps, num_kv_blocks=360, max_num_seqs=8, max_num_batched_tokens=32
    )
    completions = complete(cramped, *requests, *(Request(f"{n}", [n], greedy(300)) for n in range(8)))

    assert cramped.stats().preemptions > 0
    roomy = complete(make_engine(padded, num_kv_blocks=8000), *requests)
    for schema, completion, plain in zip(schemas, completions, roomy, strict=False):
        check(completion.text, schema)
        assert outcome(completion) == outcome(plain)


@pytest.mark.parametrize("num_tokens", mostly_exhaustive([1, 7, 10_000], default=[7]))
def test_a_resumed_sequence_goes_on_in_its_grammar(padded: Path, num_tokens: int) -> None:
    schemas = [random_schema(random.Random(seed)) for seed in range(200, 208)]
    requests = [guided(n, grammar_of(schema)) for n, schema in enumerate(schemas)]
    plain = complete(make_engine(padded), *requests)
    resumed = [
        Request(
            r.id, r.prompt_token_ids, r.sampling, output_token_ids=c.token_ids[:num_tokens], grammar=r.grammar
        )
        for r, c in zip(requests, plain, strict=True)
    ]
    again = complete(make_engine(padded), *resumed)

    assert [outcome(c) for c in again] == [outcome(c) for c in plain]


def test_tokens_outside_the_grammar_cannot_be_resumed(padded: Path) -> None:
    request = Request("a", [1], SamplingParams(max_tokens=9), output_token_ids=[5, 6], grammar=YES_OR_NO)
    completion = complete(make_engine(padded), request)[0]

    assert (completion.finish_reason, completion.text) == ("abort", "")
    assert "grammar" in str(completion.error)


@pytest.mark.parametrize(
    ("grammar", "is_right"),
    [
        (YES_OR_NO, {"yes", "no", "yes, but"}.__contains__),
        (Grammar("regex", r"[a-c]{3}-[0-9]{1,2}"), lambda text: text[3] == "-" and text[4:].isdigit()),
        (
            Grammar("grammar", 'start: "(" inner ")"\ninner: /[xy]{1,3}/'),
            lambda text: text[0] + text[-1] == "()",
        ),
        (Grammar("grammar", 'root ::= "<" [ab] [ab]? ">"'), lambda text: text[0] + text[-1] == "<>"),
    ],
    ids=["choice", "regex", "lark", "gbnf"],
)
@pytest.mark.parametrize(
    "params",
    [{}, {"ignore_eos": True}, {"min_tokens": 30}, {"frequency_penalty": 2.0, "logprobs": 2}, {"top_k": 3}],
    ids=str,
)
def test_a_whole_output_ends_whatever_else_is_asked(
    padded: Path, grammar: Grammar, is_right: Callable[[str], bool], params: dict[str, Any]
) -> None:
    completion = complete(make_engine(padded), guided(1, grammar, max_tokens=60, **params))[0]

    assert completion.finish_reason == "stop"
    assert is_right(completion.text), completion.text


def test_a_limit_of_tokens_cuts_an_output_off(padded: Path) -> None:
    completion = complete(make_engine(padded), guided(1, Grammar("regex", "[a-z]{20}"), max_tokens=5))[0]

    assert (completion.finish_reason, len(completion.text)) == ("length", 5)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar("json_schema", '{"type": "nothing"}'), "grammar"),
        (Grammar("json_schema", "{"), "grammar"),
        (Grammar("json_schema", json.dumps(OF_ITSELF)), "no text satisfies it"),
        (Grammar("regex", "(a"), "grammar"),
        (Grammar("json_schema", json.dumps({"allOf": [ANY_OF_FOUR] * 8})), "grammar"),
        (Grammar("grammar", 'start: "a" missing'), "grammar"),
        (Grammar("grammar", "root ::= ("), "grammar"),
        (Grammar("regex", "(?=a)b"), LOOK_AROUND),
        (Grammar("json_schema", '{"type": "string", "pattern": "(?=a)"}'), LOOK_AROUND),
    ],
    ids=lambda given: given.text[:20] if isinstance(given, Grammar) else "",
)
def test_a_grammar_that_cannot_be_used_fails_its_own_request_only(
    padded: Path, grammar: Grammar, reason: str
) -> None:
    wrong, right = complete(make_engine(padded), guided(1, grammar), guided(2, YES_OR_NO))

    assert wrong.finish_reason == "abort"
    assert reason in str(wrong.error)
    assert right.text in ("yes", "no", "yes, but")


def test_others_step_while_a_grammar_is_compiled(padded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_compile, original = threading.Event(), compiler._matcher

    def slow(*args: Any) -> Any:
        may_compile.wait()
        return original(*args)

    monkeypatch.setattr(compiler, "_matcher", slow)
    engine = make_engine(padded)
    engine.add(guided(1, YES_OR_NO))
    engine.add(guided(2, YES_OR_NO))
    engine.add(Request("free", [1], greedy(20)))
    completions: dict[str, Completion] = {}
    while "free" not in completions or not completions["free"].is_finished:
        collect(completions, engine.step())
        engine.check_integrity()
    engine.abort("g2")  # while it waits
    collect(completions, engine.step())
    engine.check_integrity()

    assert (set(completions), engine.stats().running) == ({"free", "g2"}, 0)
    may_compile.set()
    assert run_to_end(engine)["g1"].finish_reason == "stop"


def test_a_grammar_that_compiles_too_long_fails_its_request(
    padded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr(compiler, "_matcher", lambda *args: never.wait())
    monkeypatch.setattr(compiler, "COMPILE_S_MAX", 0.0)
    completion = complete(make_engine(padded), guided(1, YES_OR_NO))[0]
    never.set()

    assert "more than 0 s" in str(completion.error)


def finished(compiling: Compiling) -> Compiling:
    compiling.matcher.result()
    return compiling


def test_a_grammar_is_compiled_once_and_the_least_recently_used_is_forgotten(
    padded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "CACHE_ENTRIES_MAX", 2)
    grammars = GrammarCompiler(load_tokenizer(str(padded)), PADDED_VOCAB, {EOS})
    a, b, c = (Grammar("regex", letter) for letter in "abc")
    first, second = finished(grammars.compile(a)), grammars.compile(b)

    assert grammars.compile(Grammar("regex", "a")) is first
    grammars.compile(c)
    assert grammars.compile(a) is first
    assert grammars.compile(b) is not second


def test_states_of_one_grammar_are_separate(padded: Path) -> None:
    grammars = GrammarCompiler(load_tokenizer(str(padded)), PADDED_VOCAB, {EOS})
    compiling = finished(grammars.compile(Grammar("regex", "ab")))
    first, second = compiling.guide(), compiling.guide()
    assert first is not None
    assert second is not None
    a, b = byte_tokenizer().encode("ab")
    first.accept(a)

    with pytest.raises(GrammarFailed):
        second.accept(b)
    first.accept(b)
    assert first.is_finished


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 32, 33, 300])
def test_masks_ban_all_tokens_whose_bit_is_not_set(vocab_size: int) -> None:
    words = -(-vocab_size // 32)
    masks = torch.randint(-(2**31), 2**31 - 1, (2, words), dtype=torch.int32)
    logits = torch.randn(3, vocab_size)
    logits[2, 5] = torch.nan
    wanted = logits.clone()
    for row, mask in ((0, masks[0]), (2, masks[1])):
        for token in range(vocab_size):
            if not mask[token // 32].item() >> token % 32 & 1 and token != 5:
                wanted[row, token] = -torch.inf
    if not masks[0][0].item() >> 5 & 1:
        wanted[0, 5] = -torch.inf
    mask_tokens(logits, torch.tensor([0, 2]), masks)

    torch.testing.assert_close(logits, wanted, equal_nan=True)


@pytest.mark.parametrize("overlap_steps", [False, True])
def test_a_guided_output_has_the_tokens_that_its_grammar_and_its_request_allow(
    padded: Path, overlap_steps: bool
) -> None:
    engine = make_engine(padded, overlap_steps=overlap_steps)
    tokens = {name: tuple(engine.tokenizer.encode(name)) for name in ("no", "yep")}
    requests = [guided(name, YES_OR_NO, allowed_token_ids=(*ids, EOS)) for name, ids in tokens.items()]
    free = Request("free", [4], greedy(4))
    said, stuck, other = complete(engine, *requests, free)

    assert (said.text, said.finish_reason) == ("no", "stop")
    assert (stuck.finish_reason, stuck.error) == (
        "abort",
        "the grammar cannot be used: it allows none of allowed_token_ids here",
    )
    assert outcome(other) == outcome(complete(make_engine(padded), free)[0]), "others run on"


def test_allowed_tokens_that_only_end_a_guided_output_are_refused(padded: Path) -> None:
    with pytest.raises(InvalidRequest, match="only tokens that end the output; a grammar asks for more"):
        make_engine(padded).add(guided("end", YES_OR_NO, allowed_token_ids=(EOS,)))
