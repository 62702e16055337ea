"""Thoughts told from answers, token by token, in the forms of all families; what checkpoints say of them."""

from typing import Any

import pytest

from nightshift_engine.text.thought_formats import FAMILIES, effort_arguments, thought_format, with_thought
from nightshift_engine.text.thoughts import Thought
from nightshift_engine.text.tokenizer import Tokenizer
from tests.unit.engine.tiny.thinking import (
    BEGIN,
    END,
    GEMMA,
    HARMONY,
    MISTRAL,
    OPENED,
    QWEN,
    thinking_tokenizer,
)

USER = [{"role": "user", "content": "Add 3 and 4."}]
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"


def begun(
    tokenizer: Tokenizer, budget: int | None = None, *, is_guided: bool = False, **arguments: Any
) -> Thought:
    """The state at the beginning of an answer."""
    assert tokenizer.thought_format is not None
    prompt = tokenizer.render_chat(USER, **arguments)
    return Thought(tokenizer.thought_format, tokenizer.token_bytes, prompt, budget, is_guided=is_guided)


def parted(tokenizer: Tokenizer, output: str | list[int], **arguments: Any) -> tuple[str, str]:
    """Thought and answer as the tokens that belong to them spell, with the marks around them."""
    state = begun(tokenizer, **arguments)
    token_ids = tokenizer.encode(output) if isinstance(output, str) else output
    thought, answer = list[int](), list[int]()
    for token in token_ids:
        more_thought, more_answer = state.push(token)
        thought += more_thought
        answer += more_answer
    answer += state.finish()
    assert state.num_tokens == len(token_ids) - len(answer)
    return tokenizer.decode(thought), tokenizer.decode(answer)


@pytest.mark.parametrize(
    ("template", "output", "expected"),
    [
        (QWEN, "<think>\nHm.\n</think>\n\n7", ("\nHm.\n", "\n\n7")),
        (QWEN, "\n<think>Hm.</think>7", ("Hm.", "7")),
        (QWEN, "7", ("", "7")),
        (QWEN, "\n\n7 <think>", ("", "\n\n7 <think>")),
        (QWEN, "\n", ("", "\n")),
        (QWEN, "<think>Hm", ("Hm", "")),
        (QWEN, "<think>a</think>b<think>c</think>d", ("a", "b<think>c</think>d")),
        (QWEN, "<think>a<think>b</think>c", ("a<think>b", "c")),
        (OPENED, "Hm.</think>7", ("Hm.", "7")),
        (OPENED, "Hm.", ("Hm.", "")),
        (HARMONY, f"{ANALYSIS}Hm.<|end|>{FINAL}7", ("Hm.", "7")),
        (HARMONY, f"{ANALYSIS}Hm.", ("Hm.", "")),
        (HARMONY, "<|channel|>final<|message|>7", ("", "7")),
        (HARMONY, f"{ANALYSIS}a<|end|><|start|>assistant{ANALYSIS}b<|end|>{FINAL}7", ("ab", "7")),
        (HARMONY, f"<|channel|>commentary to=f<|message|>a<|end|>{FINAL}7", ("a", "7")),
        (HARMONY, "7", ("", "7")),
        (HARMONY, f"<|channel|>{'n' * 300}", ("", "n" * 43)),
        (MISTRAL, "[THINK]Hm.[/THINK]7", ("Hm.", "7")),
    ],
)
def test_a_thought_is_parted_from_the_answer(template: str, output: str, expected: tuple[str, str]) -> None:
    assert parted(thinking_tokenizer(template), output) == expected


@pytest.mark.parametrize(
    ("enable_thinking", "output", "expected"),
    [
        (True, "<|channel>thought\nHm.<channel|>7", ("Hm.", "7")),
        (True, "7", ("", "7")),
        (False, "7 <|channel>thought\n", ("", "7 thought\n")),
    ],
)
def test_gemmas_channel_is_a_thought_unless_the_prompt_has_closed_it(
    enable_thinking: bool, output: str, expected: tuple[str, str]
) -> None:
    assert parted(thinking_tokenizer(GEMMA), output, enable_thinking=enable_thinking) == expected


def test_an_empty_thought_in_the_prompt_leaves_only_the_answer() -> None:
    tokenizer = thinking_tokenizer()

    assert begun(tokenizer, enable_thinking=False).is_over
    assert begun(tokenizer).may_begin


def test_a_marker_in_an_earlier_message_opens_nothing() -> None:
    tokenizer = thinking_tokenizer()
    said = [*USER, {"role": "assistant", "content": "7", "reasoning_content": "Hm."}, *USER]
    typed = [{"role": "user", "content": "What is <think>?"}]
    assert tokenizer.thought_format is not None

    for messages in (said, typed):
        prompt = tokenizer.render_chat(messages)
        assert Thought(tokenizer.thought_format, tokenizer.token_bytes, prompt).may_begin


def test_a_marker_that_is_spelled_out_is_text_where_it_is_a_token_and_a_marker_where_it_is_none() -> None:
    spelled = [*b"<think>a</think>b"]
    ids = [thinking_tokenizer(tags=()).encode(chr(byte))[0] for byte in spelled]

    thought, answer = parted(thinking_tokenizer(), ids)
    assert (thought, answer) == ("", "<think>a</think>b")
    thought, answer = parted(thinking_tokenizer(tags=()), ids)
    assert (thought, answer) == ("a</think>", "b"), "the text's reader stops at the marker"


def test_a_guided_answer_begins_with_the_first_token_that_begins_no_thought() -> None:
    state = begun(thinking_tokenizer(), is_guided=True)
    blank = thinking_tokenizer().encode("\n")[0]

    assert state.push(blank) == ((), [blank])
    assert state.is_over


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_at_the_budget_the_end_is_forced(budget: int) -> None:
    state = begun(thinking_tokenizer(), budget)
    letter = thinking_tokenizer().encode("a")[0]
    state.push(BEGIN)
    forced = []
    for _ in range(budget):
        forced.append(state.forced_id)
        state.push(letter)

    assert forced == [None] * budget
    assert state.forced_id == END
    state.push(END)
    assert state.is_over
    assert state.forced_id is None
    assert state.num_tokens == budget + 2


def test_all_tokens_of_a_closing_are_forced_one_by_one() -> None:
    tokenizer = thinking_tokenizer(HARMONY)
    state = begun(tokenizer, 2)
    for token in tokenizer.encode(f"{ANALYSIS}ab"):
        assert state.forced_id is None
        state.push(token)
    forced = []
    while (token := state.forced_id) is not None:
        forced.append(token)
        state.push(token)

    assert forced == tokenizer.encode(f"<|end|>{FINAL}")
    assert state.is_over


def test_promised_tokens_count_towards_the_budget() -> None:
    state = begun(thinking_tokenizer(), 2)
    assert not state.may_force(0)
    state.push(BEGIN)

    assert [state.may_force(n) for n in (0, 1, 2)] == [False, False, True]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.begin)
def test_a_family_is_known_by_its_markers_in_the_template_and_among_the_tokens(family: Any) -> None:
    markers = {family.begin: 7, family.end: 8}

    def read(template: str, added: dict[str, int]) -> Any:
        return thought_format(template, added, lambda text: [len(text)])

    known = read(f"{{{{ '{family.end}' }}}}", markers)
    assert (known.begin.token_id, known.end.token_id) == (7, 8)
    assert known.closing_ids == (len(family.closing or family.end),)
    assert read(f"{family.begin}{family.end}", {}).end.token_id is None
    assert read("{{ messages }}", markers) is None, "a model that has the tokens need not think"
    assert read(family.end, {}) is None


def test_of_two_families_in_a_template_the_first_counts() -> None:
    both = "<think></think>[THINK][/THINK]"
    known = thought_format(both, {}, lambda text: [])

    assert known is not None
    assert known.begin.text == b"<think>"


@pytest.mark.parametrize(
    ("effort", "variables", "expected"),
    [
        ("none", {"enable_thinking"}, {"enable_thinking": False}),
        ("high", {"enable_thinking"}, {"enable_thinking": True}),
        ("none", {"thinking", "messages"}, {"thinking": False}),
        ("low", {"reasoning_effort"}, {"reasoning_effort": "low"}),
        ("none", {"messages"}, {}),
    ],
)
def test_an_effort_is_told_as_the_template_takes_it(
    effort: str, variables: set[str], expected: dict[str, Any]
) -> None:
    assert effort_arguments(effort, variables) == expected


def test_a_templates_variables_are_those_it_reads() -> None:
    assert {"enable_thinking", "messages"} <= set(thinking_tokenizer().template_variables)
    assert "reasoning_effort" in thinking_tokenizer(HARMONY).template_variables
    assert "thinking" not in thinking_tokenizer(HARMONY).template_variables, "of a message, not of all"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (QWEN, "<think>\nHm.\n</think>\n\n7"),
        (HARMONY, f"{ANALYSIS}Hm.<|end|>{FINAL}7"),
        (MISTRAL, "[THINK]Hm.[/THINK]7"),
        (OPENED, "<assistant>7"),
    ],
)
def test_an_earlier_thought_goes_where_the_template_reads_it(template: str, expected: str) -> None:
    tokenizer = thinking_tokenizer(template)
    answer = with_thought({"role": "assistant", "content": "7"}, "Hm.", template)

    assert expected in tokenizer.chat_text([*USER, answer])
