"""A tokenizer whose model thinks: a token per byte, and the markers of a family as tokens or as text."""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from nightshift_engine.text.tokenizer import Tokenizer
from tests.unit.engine.tiny.decoders import VOCAB_SIZE, byte_tokenizer, save_model

QWEN = (
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
"""Qwen3's form: the model opens the thought, and an empty one switches it off."""
OPENED = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content.split('</think>')[-1] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)
"""DeepSeek-R1's form: the prompt opens the thought, and nothing switches it off."""
HARMONY = (
    "Reasoning: {{ reasoning_effort or 'medium' }}\n"
    "{% for message in messages %}<|start|>{{ message.role }}"
    "{% if message.thinking %}<|channel|>analysis<|message|>{{ message.thinking }}<|end|>"
    "<|start|>assistant{% endif %}"
    "{% if message.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
GEMMA = (
    "{% for message in messages %}<|turn>{{ message.role }}\n{{ message.content }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n"
    "{% if not enable_thinking %}<|channel>thought\n<channel|>{% endif %}{% endif %}"
)
MISTRAL = (
    "{% for message in messages %}[{{ message.role }}]{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for block in message.content %}{% if block['type'] == 'thinking' %}"
    "[THINK]{{ block['thinking'] }}[/THINK]{% else %}{{ block['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% endfor %}"
)
TAGS = ("<think>", "</think>")
SPECIAL = {
    HARMONY: ("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
    GEMMA: ("<|channel>", "<channel|>", "<|turn>", "<turn|>"),
    MISTRAL: ("[THINK]", "[/THINK]"),
}
BEGIN, END = VOCAB_SIZE, VOCAB_SIZE + 1
"""The ids of `TAGS`."""


def library_tokenizer(template: str = QWEN, tags: tuple[str, ...] = TAGS) -> Any:
    """`tags` are tokens, as in the files of their families; () leaves them text."""
    library = byte_tokenizer()
    if (special := SPECIAL.get(template)) is not None:
        library.add_special_tokens({"additional_special_tokens": [*special]})
    elif tags:
        library.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    library.chat_template = template
    return library


def thinking_tokenizer(template: str = QWEN, tags: tuple[str, ...] = TAGS) -> Tokenizer:
    return Tokenizer(library_tokenizer(template, tags))


def save_thinking(directory: Path, template: str = QWEN, **settings: Any) -> Path:
    """A checkpoint with random weights and this tokenizer."""
    library = library_tokenizer(template)
    save_model(directory, vocab_size=len(library), **settings)
    library.save_pretrained(directory)
    return directory
