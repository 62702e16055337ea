"""Tiny decoders with random weights, saved to disk as the real ones are, and the tokenizer they share.

The weights are drawn wide (standard deviation 0.25), so that greedy output wanders over the vocabulary
instead of settling into a loop, and a wrong mask or position shows within a few tokens.
"""

import random
from collections.abc import Iterable
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from nightshift_engine import Completion, Engine, EngineConfig, Output, Request, SamplingParams
from nightshift_engine.loading.model import load_model
from nightshift_engine.text.tokenizer import Tokenizer

VOCAB_SIZE = 258
EOS, BOS = 256, 257
CONTEXT = 128
NOT_LOADED = (
    "block_size",
    "num_kv_blocks",
    "kv_cache_bytes",
    "max_num_seqs",
    "max_num_batched_tokens",
    "cuda_graphs",
    "overlap_steps",
    "interactive_step_budget_ms",
    "group_admissions",
    "enable_prefix_reuse",
    "speculation",
)
"""Settings that play no part in loading a model: engines that differ in them can share one."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that any emoji is split and any id sequence is possible."""
    vocab = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = BackendTokenizer(models.BPE(vocab=vocab | {"<eos>": EOS, "<bos>": BOS}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", bos_token="<bos>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_model(
    directory: Path,
    model_type: str = "llama",
    *,
    seed: int = 1,
    without: tuple[str, ...] = (),
    **overrides: Any,
) -> Path:
    """A checkpoint of `model_type` in `directory`; `without` drops names the family spells differently."""
    settings = {name: value for name, value in (BASE | overrides).items() if name not in without}
    config = AutoConfig.for_model(model_type, **settings)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    model.save_pretrained(directory)
    byte_tokenizer().save_pretrained(directory)
    return directory


def reference_greedy(directory: Path, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Answers of `generate` to each prompt alone, in float32 with eager attention, never stopping early."""
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
    answers = []
    for prompt in prompts:
        # The mask is given because generate would otherwise take every pad id in the prompt for padding.
        ids, mask = torch.tensor([prompt]), torch.ones(1, len(prompt), dtype=torch.long)
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        answers.append(out[0, len(prompt) :].tolist())
    return answers


def engine_config(directory: Path, **overrides: Any) -> EngineConfig:
    """Roomy, float32 and on CPU; override to make it cramped."""
    settings: dict[str, Any] = {"device": "cpu", "block_size": 4, "num_kv_blocks": 256, **overrides}
    return EngineConfig(str(directory), **settings)


def load_engine(directory: Path, **overrides: Any) -> Engine:
    """An engine over a model loaded for it, with all that loading does."""
    return Engine.load(engine_config(directory, **overrides))


def make_engine(directory: Path, **overrides: Any) -> Engine:
    """A fresh engine over a model that is loaded once, for tests that are not about loading."""
    config = engine_config(directory, **overrides)
    has_size = config.num_kv_blocks is not None or config.kv_cache_bytes is not None
    assert has_size, "the size of KV memory is part of loading otherwise"
    defaults = {field.name: field.default for field in fields(EngineConfig) if field.name in NOT_LOADED}
    if config.draft_model is not None:
        defaults["speculation"] = "auto"
    return Engine.over(replace(_load_once(replace(config, **defaults)), config=config))


_load_once = lru_cache(maxsize=8)(load_model)


@lru_cache(maxsize=8)
def load_tokenizer(directory: str) -> Tokenizer:
    return Tokenizer.load(directory)


def make_cramped_engine(directory: Path, **overrides: Any) -> Engine:
    """An engine that has only seen short answers, so it admits more than fit and has to preempt."""
    engine = make_engine(directory, **overrides)
    complete(engine, *(Request(f"short-{number}", [number], greedy(1)) for number in range(8)))
    return engine


def random_prompts(count: int, seed: int = 3) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(rng.randint(2, 25))] for _ in range(count)]


def greedy(max_tokens: int, **overrides: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **({"ignore_eos": True} | overrides))


def collect(completions: dict[str, Completion], outputs: list[Output]) -> None:
    for output in outputs:
        completions.setdefault(output.id, Completion(output.id)).append(output)


def run_to_end(engine: Engine, steps_max: int = 5_000) -> dict[str, Completion]:
    """Steps until nothing is left, checking the books after each step."""
    completions: dict[str, Completion] = {}
    for _ in range(steps_max):
        if not engine.has_work:
            return completions
        collect(completions, engine.step())
        engine.check_integrity()
    raise AssertionError(f"not done after {steps_max} steps: {engine.stats()}")


def complete(engine: Engine, *requests: Request) -> list[Completion]:
    """Runs requests together; completions in the order of the requests."""
    for request in requests:
        engine.add(request)
    completions = run_to_end(engine)
    return [completions[request.id] for request in requests]


def greedy_answers(engine: Engine, prompts: Iterable[list[int]], max_tokens: int) -> list[list[int]]:
    """Greedy output tokens for each prompt, all computed together."""
    requests = (Request(str(number), prompt, greedy(max_tokens)) for number, prompt in enumerate(prompts))
    return [completion.token_ids for completion in complete(engine, *requests)]
