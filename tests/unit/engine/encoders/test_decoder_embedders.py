"""Decoders that embed, of the Qwen3-Embedding kind: by the last token, which their tokenizer appends."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from nightshift_engine.checkpoint.kinds import read_kind
from nightshift_engine.encoders.engine import EncoderEngine
from nightshift_engine.encoders.model import EncoderModel
from nightshift_engine.encoders.request import EncodeRequest
from nightshift_engine.encoders.texts import EncoderText
from tests.unit.engine.tiny.cases import mostly_exhaustive
from tests.unit.engine.tiny.encoders import SIZES, TOLERANCE, WORDS, declare_modules, random_inputs, reference

CAUSAL = SIZES | {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
END = 3
INSTRUCTION = "w50 w51 "


def save_embedder(directory: Path, architecture: str, family: str, **sizes: object) -> Path:
    """Its tokenizer pads on the left and appends an end token, as Qwen3-Embedding's does."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=64, **(CAUSAL | sizes))
    getattr(transformers, architecture)(config).save_pretrained(directory)
    words = ["[PAD]", "[UNK]", "[X]", "<|end|>", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|end|>", special_tokens=[("<|end|>", END)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|end|>",
        unk_token="[UNK]",
        padding_side="left",
        model_max_length=64,
    ).save_pretrained(directory)
    declare_modules(
        directory,
        {"pooling_mode_lasttoken": True, "include_prompt": True},
        *("Transformer", "Pooling", "Normalize"),
    )
    prompts = {"prompts": {"query": INSTRUCTION, "document": ""}, "default_prompt_name": None}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return directory


def last_token(tokens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(tokens[-1], dim=0)


FAMILIES = [
    ("Qwen3ForCausalLM", "qwen3", {}),
    ("Qwen3Model", "qwen3", {}),
    ("Qwen2ForCausalLM", "qwen2", {}),
    ("MistralModel", "mistral", {"sliding_window": 8}),
    ("LlamaForCausalLM", "llama", {}),
    ("Gemma2Model", "gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 8}),
]


@pytest.mark.parametrize(
    ("architecture", "family", "sizes"), mostly_exhaustive(FAMILIES, default=[FAMILIES[0], *FAMILIES[3:]])
)
def test_a_decoder_embeds_by_its_last_token_and_equals_transformers(
    tmp_path: Path, architecture: str, family: str, sizes: dict[str, object]
) -> None:
    directory = save_embedder(tmp_path, architecture, family, **sizes)
    inputs = [[*token_ids, END] for token_ids in random_inputs(3, [60, 2, 20, 1, 33, 50])]

    encoder = EncoderModel.load(directory, dtype="float32")
    vectors = encoder.encode(inputs)

    assert read_kind(str(directory)).name == "encoder"
    expected = reference(directory, inputs, last_token)
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE, rtol=0)
    alone = np.concatenate([encoder.encode([input]) for input in inputs])
    np.testing.assert_allclose(alone, vectors, atol=TOLERANCE, rtol=0)


def test_the_end_token_comes_from_the_tokenizer_whole_and_cut_and_behind_a_prompt(tmp_path: Path) -> None:
    directory = save_embedder(tmp_path, "Qwen3ForCausalLM", "qwen3")
    encoder = EncoderModel.load(directory)
    own = AutoTokenizer.from_pretrained(directory)
    text = "w1 w2 w3"

    assert encoder.tokenize(text) == own(text)["input_ids"] == [5, 6, 7, END]
    query = encoder.prompts.for_input_type("search_query")
    [behind, cut] = encoder.tokenize_texts([EncoderText(text, query), EncoderText(text, max_tokens=3)])
    assert behind == own(query + text)["input_ids"] == [54, 55, 5, 6, 7, END]
    assert cut.token_ids == [5, 6, END]  # type: ignore[union-attr]


def test_padding_on_the_left_as_the_tokenizer_has_it_gives_the_same_vectors(tmp_path: Path) -> None:
    """Goal: the vectors of libraries that pad as the tokenizer says."""
    directory = save_embedder(tmp_path, "Qwen3ForCausalLM", "qwen3")
    texts = ["w1 w2 w3", " ".join(WORDS[:40]), "w7"]
    own = AutoTokenizer.from_pretrained(directory)(texts, padding=True, return_tensors="pt")
    model = transformers.AutoModel.from_pretrained(directory, dtype="float32").eval()
    positions = (own["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode():
        hidden = model(
            input_ids=own["input_ids"], attention_mask=own["attention_mask"], position_ids=positions
        ).last_hidden_state
    assert not own["attention_mask"][:, 0].all(), "padded on the left"

    encoder = EncoderModel.load(directory)
    engine = EncoderEngine(encoder)
    engine.add(EncodeRequest("a", encoder.tokenize_all(texts)))
    vectors = []
    while engine.has_work:
        vectors += [vector for output in engine.step() for vector in output.embeddings]

    expected = torch.nn.functional.normalize(hidden[:, -1], dim=-1).numpy()
    np.testing.assert_allclose(np.array(vectors), expected, atol=TOLERANCE, rtol=0)
