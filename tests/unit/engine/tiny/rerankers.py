"""Tiny decoders that rank by two tokens, saved as the real ones are, and what they are held against."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from nightshift_engine.encoders.scoring.pairs import PairText
from tests.unit.engine.tiny.decoders import BASE

POSITIONS = 1024
DEFAULT = "Given a web search query, retrieve relevant passages that answer the query"
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
TEMPLATE = (
    "<|im_start|>system\n" + SYSTEM + "<|im_end|>\n<|im_start|>user\n"
    "{% set found = namespace(instruct='" + DEFAULT + "') %}"
    "{% for message in messages %}{% if message.role == 'system' %}"
    "{% set found.instruct = message.content %}{% endif %}{% endfor %}"
    "<Instruct>: {{ found.instruct }}\n"
    "{% for message in messages %}"
    "{% if message.role == 'query' %}<Query>: {{ message.content }}\n{% endif %}"
    "{% if message.role == 'document' %}<Document>: {{ message.content }}{% endif %}"
    "{% endfor %}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>{{ '\n\n' }}"  # Jinja drops a newline at the end
)
"""A chat template of a pair, in the roles of sentence-transformers."""
VLLM: dict[str, Any] = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "classifier_from_token": ["no", "yes"],
    "is_original_qwen3_reranker": True,
}
"""Fields that vLLM's documentation has an operator set."""


def model_card_prompt(query: str, document: str, instruction: str | None = None) -> str:
    """As on the model card of Qwen3-Reranker."""
    texts = f"<Instruct>: {instruction or DEFAULT}\n<Query>: {query}\n<Document>: {document}"
    before = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
    return f"{before}{texts}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def save_reranker(
    directory: Path,
    family: str = "qwen3",
    *,
    template: str | None = None,
    auto_class: Any = AutoModelForCausalLM,
    **overrides: Any,
) -> Path:
    """A decoder and nothing that says how it ranks. Its weights are drawn wide."""
    tokenizer = _tokenizer()
    tokenizer.chat_template = template
    settings = BASE | {"vocab_size": len(tokenizer), "max_position_embeddings": POSITIONS} | overrides
    torch.manual_seed(3)
    model = auto_class.from_config(AutoConfig.for_model(family, **settings))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def declare_logit_score(
    directory: Path,
    *,
    no: str | None = "no",
    default: str | None = None,
    format: str = "flat",
    activation: str = "torch.nn.modules.linear.Identity",
) -> Path:
    """Writes the files that sentence-transformers does."""
    ids = AutoTokenizer.from_pretrained(directory).get_vocab()
    modules = [
        _module(0, "", "base.modules.transformer.Transformer"),
        _module(1, "1_LogitScore", "cross_encoder.modules.logit_score.LogitScore"),
    ]
    score = {"true_token_id": ids["yes"], "false_token_id": None if no is None else ids[no]}
    forward = {"method": "forward", "method_output_name": "logits"}
    transformer = {
        "transformer_task": "text-generation",
        "modality_config": {"text": forward, "message": {**forward, "format": format}},
        "module_output_name": "causal_logits",
    }
    prompts = {} if default is None else {"default_prompt_name": "query", "prompts": {"query": default}}
    model = {"model_type": "CrossEncoder", "activation_fn": activation, **prompts}
    (directory / "1_LogitScore").mkdir(exist_ok=True)
    for name, content in (
        ("modules.json", modules),
        ("1_LogitScore/config.json", score),
        ("sentence_bert_config.json", transformer),
        ("config_sentence_transformers.json", model),
    ):
        (directory / name).write_text(json.dumps(content))
    return directory


def reference_probabilities(
    directory: Path, pairs: Sequence[PairText], default: str | None = None
) -> list[float]:
    """Probabilities of yes beside no, by transformers alone, a prompt at a time."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="float32").eval()
    ids = [tokenizer.get_vocab()[token] for token in ("no", "yes")]
    probabilities = []
    for pair in pairs:
        prompt = model_card_prompt(pair.text, pair.pair or "", pair.instruction or default)
        with torch.inference_mode():
            inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
            logits = model(input_ids=inputs["input_ids"]).logits[0, -1]
        probabilities.append(float(logits[ids].softmax(0)[1]))
    return probabilities


def _module(index: int, path: str, type: str) -> dict[str, object]:
    return {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{type}"}


def _tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, the two words, and a merge across a space: what a text begins with depends on what is before."""
    merges = [("y", "e"), ("ye", "s"), ("n", "o"), ("Ġ", "r"), ("Ġr", "i"), ("Ġ", "w")]
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(first + second for first, second in merges)]
    backend = BackendTokenizer(
        models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges)
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", model_max_length=POSITIONS
    )
