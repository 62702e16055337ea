"""Tags of calls and thoughts that are tokens of their own: text in an answer, however files mark them."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, decoders
from transformers import PreTrainedTokenizerFast

from nightshift_engine.guidance.compiler import GrammarCompiler
from nightshift_engine.guidance.grammar import Grammar
from nightshift_engine.text.tokenizer import Tokenizer
from tests.unit.engine.tiny.tokenizers import bpe_tokenizer, fallback_tokenizer, metaspace_tokenizer

TEMPLATE = "{{ tools }}<tool_call>{{ arguments }}</tool_call>{{ content.split('</think>') }}"
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
CONTROL = ("<s>", "</s>", "<|start|>", "<turn>", "<unseen>", "</unseen>")
AUTO = 'start: (before "!")* TEXT\nbefore[lazy]: /(.|\\n)*<tool_call>/\nTEXT: /(.|\\n)*/'
MAKERS: list[Callable[[], Tokenizer]] = [
    bpe_tokenizer,
    lambda: fallback_tokenizer(decoders.Strip(" ", 1, 0)),
    metaspace_tokenizer,
]


def tagged(make: Callable[[], Tokenizer], *, is_special: bool) -> Tokenizer:
    backend: Any = make().plain_backend()
    backend.add_special_tokens([*CONTROL])
    tags = [AddedToken(tag, special=is_special, normalized=False) for tag in TAGS]
    (backend.add_special_tokens if is_special else backend.add_tokens)(tags)
    library = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    library.chat_template = TEMPLATE + "".join(("<s>", "</s>", "<turn>"))
    return Tokenizer(library)


def spelled(tokenizer: Tokenizer, part: str) -> list[int]:
    """A tag's token, or a token for each byte."""
    tag = tokenizer.token_id(part) if part in TAGS else None
    letters = [tokenizer.token_id(f"<0x{ord(letter):02X}>") for letter in part]
    return [id for id in letters if id is not None] or tokenizer.encode(part) if tag is None else [tag]


@pytest.fixture(params=[False, True], ids=["plain", "special"])
def is_special(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("make", MAKERS, ids=["bytes", "fallback", "metaspace"])
def test_tags_leave_text_and_control_tokens_leave_none(
    make: Callable[[], Tokenizer], is_special: bool
) -> None:
    tokenizer = tagged(make, is_special=is_special)
    ids = [
        tokenizer.token_id(token) for token in ("<s>", "<think>", "<turn>", "a", "</think>", "<tool_call>")
    ]
    stream = tokenizer.text_stream([])
    token_ids = [id for id in ids if id is not None]

    assert len(token_ids) == len(ids)
    assert tokenizer.decode(token_ids) == "<think>a</think><tool_call>"
    assert "".join(map(stream.push, token_ids)) + stream.finish() == "<think>a</think><tool_call>"
    assert all(tokenizer.is_special(tokenizer.token_id(token) or 0) for token in CONTROL)


@pytest.mark.parametrize("make", MAKERS[:2], ids=["bytes", "fallback"])
@pytest.mark.parametrize("text", ["a<tool_call>!", "<think>!</think><tool_call>!a", "!</tool_call>a"])
def test_a_grammar_allows_tags_as_tokens_and_letter_by_letter(
    make: Callable[[], Tokenizer], is_special: bool, text: str
) -> None:
    tokenizer = tagged(make, is_special=is_special)
    eos = tokenizer.eos_token_id
    assert eos is not None
    compiling = GrammarCompiler(tokenizer, tokenizer.num_tokens, {eos}).compile(Grammar("grammar", AUTO))
    compiling.matcher.result()
    whole = [id for part in re.split(r"(<\w+>|</\w+>)", text) for id in spelled(tokenizer, part)]

    for token_ids in (whole, [id for letter in text for id in spelled(tokenizer, letter)]):
        guide = compiling.guide()
        assert guide is not None
        for token_id in [*token_ids, eos]:
            guide.accept(token_id)
        assert guide.is_finished


@pytest.mark.parametrize(
    ("template", "special", "plain", "text"),
    [
        ("<think>", ["<think>"], ["</think>"], "<think>"),
        ("</think>", ["<think>"], ["</think>"], "<think>"),
        ("<tool_call></tool_call>", ["<tool_call>"], [], "<tool_call>"),
        ("<tool_call></tool_call>", ["</tool_call>"], [], "</tool_call>"),
        ("<turn>", ["<turn>"], [], ""),
        ("", ["<think>"], ["</think>"], ""),
    ],
)
def test_a_special_tag_that_the_template_teaches_is_text_whatever_the_other_tag_is(
    template: str, special: list[str], plain: list[str], text: str
) -> None:
    backend: Any = bpe_tokenizer().plain_backend()
    backend.add_special_tokens(special)
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in plain])
    library = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    library.chat_template = template
    tokenizer = Tokenizer(library)

    assert tokenizer.decode([tokenizer.token_id(special[0]) or 0]) == text
