"""Tiny decoders that are trained to call tools, with the tokenizers of Qwen and of Hermes models.

In both, `<tool_call>` and `<think>` are one token each. It is special in the files of Hermes, and in those of
Qwen it is not. A model answers each prompt below with its answer, by greedy decoding and without a grammar.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from nightshift.jobs import JsonObject

CONTEXT: Final = 768
STEPS: Final = 140
ANSWER_TOKENS_MAX: Final = 240
TAGS: Final = ("<tool_call>", "</tool_call>", "<think>", "</think>")
END: Final = "<|im_end|>"
BEGIN: Final = "<|im_start|>"

TEMPLATE: Final = (
    "{% if tools %}<|im_start|>system\n"
    "{% for tool in tools %}{{ tool.function.name }} {% endfor %}"
    '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content %}{{ message.content.split('</think>')[-1] }}{% endif %}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS: Final[Sequence[JsonObject]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "time")
]


def call(name: str, city: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


CALLS: Final = "A"
THINKS_AND_CALLS: Final = "B"
CALLS_TWICE: Final = "C"
CALLS_IN_LETTERS: Final = "D"
TALKS: Final = "E"
WRITES_JSON: Final = "F"

ANSWERS: Final[Mapping[str, str]] = {
    CALLS: call("weather", "Oslo"),
    THINKS_AND_CALLS: f"<think>\nhm\n</think>\n\n{call('weather', 'Rome')}",
    CALLS_TWICE: f"{call('weather', 'Bonn')}\n{call('time', 'Lima')}",
    CALLS_IN_LETTERS: call("time", "Kiel"),  # its tags are not the tokens, but written letter by letter
    TALKS: "No need to.",
    WRITES_JSON: '{"city": "Oslo"}',
}


def save_trained(directory: Path, *, is_special: bool) -> Path:
    """A checkpoint; `is_special`: as Hermes' files mark the tags."""
    _trained().save_pretrained(directory)
    _tokenizer(is_special).save_pretrained(directory)
    return directory


def _tokenizer(is_special: bool) -> PreTrainedTokenizerFast:
    vocab = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = BackendTokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([BEGIN, END])
    tags = [AddedToken(tag, special=is_special, normalized=False) for tag in TAGS]
    if is_special:
        backend.add_special_tokens(tags)
    else:
        backend.add_tokens(tags)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=END)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@cache
def _trained() -> LlamaForCausalLM:
    """Takes about three seconds of one core: for so small a model, more of them only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train()
    finally:
        torch.set_num_threads(threads)


def _train() -> LlamaForCausalLM:
    tokenizer = _tokenizer(is_special=False)
    examples = [_example(tokenizer, question) for question in ANSWERS]
    length = max(len(ids) for ids, _ in examples)
    inputs = torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in examples])
    labels = torch.tensor([wanted + [-100] * (length - len(wanted)) for _, wanted in examples])
    torch.manual_seed(5)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=STEPS, pct_start=0.1)
    for _ in range(STEPS):
        loss = model(inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    assert loss.item() < 0.02, "the model did not learn its answers"
    return model


def _example(tokenizer: Any, question: str) -> tuple[list[int], list[int]]:
    """The ids of prompt and answer, and the labels: those of the answer alone."""
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    letters = ANSWERS[question]
    split = list(letters) if question == CALLS_IN_LETTERS else [letters]
    answer = [id for part in split for id in tokenizer.encode(part, add_special_tokens=False)]
    answer.append(tokenizer.eos_token_id)
    return prompt + answer, [-100] * len(prompt) + answer
