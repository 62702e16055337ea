"""The shipped demo checkpoint, run by transformers' own `generate`: it is what its card says."""

from collections.abc import Sequence
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from nightshift.cli.demo import demo_model_path, is_held_out, number_in_words

BYTES_MAX = 8_000_000
EXACT_SHARE_MIN = 0.99
ANSWER_TOKENS_MAX = 24
REFUSAL = "I only know numbers below one million."


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(demo_model_path())


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype="float32").eval()


def answers(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, chats: Sequence[object]) -> list[str]:
    """The greedy answer to each chat, without the end marker; "…" is added where that did not come."""
    prompts = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        out = model.generate(**prompts, max_new_tokens=ANSWER_TOKENS_MAX, do_sample=False)
    texts = tokenizer.batch_decode(out[:, prompts["input_ids"].shape[1] :])
    return [
        text.split(tokenizer.eos_token)[0] if tokenizer.eos_token in text else text + "…" for text in texts
    ]


def ask(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *messages: str) -> list[str]:
    return answers(model, tokenizer, [[{"role": "user", "content": message}] for message in messages])


def test_numbers_it_was_never_trained_on_are_answered_exactly(model, tokenizer):
    seed = 5
    print(f"seed {seed}")
    unseen = [n for n in range(1_000_000) if is_held_out(n)]
    numbers = Random(seed).sample(unseen, 100)

    said = ask(model, tokenizer, *map(str, numbers))

    wrong = {n: text for n, text in zip(numbers, said, strict=True) if text != number_in_words(n)}
    print(f"wrong: {wrong}")
    assert 1 - len(wrong) / len(numbers) >= EXACT_SHARE_MIN


def test_the_numbers_a_person_tries_first_are_answered_exactly(model, tokenizer):
    numbers = [0, 1, 7, 10, 12, 13, 20, 42, 99, 100, 101, 999, 1_000, 1_234, 9_999]
    numbers += [10_000, 12_345, 48_213, 90_000, 100_000, 123_456, 900_000, 999_999]

    assert ask(model, tokenizer, *map(str, numbers)) == [number_in_words(n) for n in numbers]


def test_white_space_and_a_thousands_separator_do_not_matter(model, tokenizer):
    words = "forty-eight thousand two hundred thirteen"

    assert ask(model, tokenizer, " 48213", "48213\n", "\t48213  ", "48,213") == [words] * 4


def test_the_last_question_counts_whatever_was_said_before(model, tokenizer):
    system = {"role": "system", "content": "You are a helpful assistant."}
    earlier = [{"role": "user", "content": "7"}, {"role": "assistant", "content": "seven"}]
    parts = {"role": "user", "content": [{"type": "text", "text": "90000"}]}
    last = {"role": "user", "content": "48213"}

    said = answers(model, tokenizer, [[system, last], [*earlier, last], [system, *earlier, last], [parts]])

    assert said == ["forty-eight thousand two hundred thirteen"] * 3 + ["ninety thousand"]


def test_what_is_no_number_it_knows_is_refused_in_words(model, tokenizer):
    assert ask(model, tokenizer, "Hello!", "What can you do?", "12345678") == [REFUSAL] * 3


@pytest.mark.parametrize("text", ["", "\x00\x01", "漢字🙂", "a\u0301 \u200b\ufeff", "<|end|>"])
def test_no_text_breaks_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)


def test_the_checkpoint_is_small_and_of_safetensors_only():
    files = list(demo_model_path().iterdir())

    assert (demo_model_path() / "model.safetensors").stat().st_size < BYTES_MAX
    assert not [file for file in files if file.suffix in {".bin", ".pt", ".pth", ".py"}]
    assert (demo_model_path() / "MODEL_CARD.md").exists()
