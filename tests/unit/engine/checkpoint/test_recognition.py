"""Which checkpoints generate, embed or score text, and which are refused: by architecture and by weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from nightshift_engine import Request
from nightshift_engine.checkpoint.kinds import Checkpoint, kind_of, read_kind
from nightshift_engine.errors import ModelLoadFailed, UnsupportedModel
from tests.unit.engine.tiny.decoders import (
    BASE,
    byte_tokenizer,
    complete,
    greedy,
    greedy_answers,
    load_engine,
    reference_greedy,
    save_model,
)


def kind(architecture: str, model_type: str, *, has_modules: bool = False) -> str:
    config = AutoConfig.for_model(model_type, architectures=[architecture])
    return kind_of(Checkpoint("the model", config, () if has_modules else None)).name


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [
        ("LlamaForCausalLM", "llama"),
        ("Qwen3ForCausalLM", "qwen3"),
        ("GPT2LMHeadModel", "gpt2"),
        ("Gemma3ForCausalLM", "gemma3_text"),
        ("Gemma3ForConditionalGeneration", "gemma3"),
    ],
)
def test_a_head_over_the_vocabulary_generates_unless_the_files_say_how_it_embeds(
    architecture: str, model_type: str
) -> None:
    assert kind(architecture, model_type) == "decoder"
    assert kind(architecture, model_type, has_modules=True) == "encoder"


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [
        ("T5ForConditionalGeneration", "t5"),
        ("MT5ForConditionalGeneration", "mt5"),
        ("BartForConditionalGeneration", "bart"),
        ("MBartForConditionalGeneration", "mbart"),
        ("MarianMTModel", "marian"),
        ("M2M100ForConditionalGeneration", "m2m_100"),
        ("PegasusForConditionalGeneration", "pegasus"),
    ],
)
def test_an_encoder_decoder_of_text_translates(architecture: str, model_type: str) -> None:
    assert kind(architecture, model_type) == "seq2seq"


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [("BertModel", "bert"), ("XLMRobertaModel", "xlm-roberta"), ("Qwen3Model", "qwen3")],
)
@pytest.mark.parametrize("has_modules", [False, True])
def test_a_base_model_embeds(architecture: str, model_type: str, has_modules: bool) -> None:
    assert kind(architecture, model_type, has_modules=has_modules) == "encoder"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Canine", "reads Unicode characters"),
        ("Perceiver", "gives vectors of its latents"),
        ("Tapas", "reads a table beside each text"),
    ],
)
@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
def test_a_model_of_other_inputs_than_tokens_is_refused_with_the_reason(
    name: str, reason: str, head: str
) -> None:
    with pytest.raises(UnsupportedModel, match=f"{name}{head} {reason}.*; served are "):
        kind(f"{name}{head}", name.lower())


@pytest.mark.parametrize(
    ("architecture", "model_type"), [("MPNetForMaskedLM", "mpnet"), ("ElectraForPreTraining", "electra")]
)
def test_a_pretrained_model_embeds_only_where_its_files_say_how(architecture: str, model_type: str) -> None:
    assert kind(architecture, model_type, has_modules=True) == "encoder"
    with pytest.raises(UnsupportedModel, match=architecture):
        kind(architecture, model_type)


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [("XLMRobertaForSequenceClassification", "xlm-roberta"), ("Qwen2ForSequenceClassification", "qwen2")],
)
@pytest.mark.parametrize("has_modules", [False, True])
def test_a_head_over_labels_classifies_whatever_lies_beside_it(
    architecture: str, model_type: str, has_modules: bool
) -> None:
    assert kind(architecture, model_type, has_modules=has_modules) == "classifier"


@pytest.mark.parametrize("has_modules", [False, True])
@pytest.mark.parametrize(
    ("architecture", "model_type", "reason"),
    [
        ("XLMRobertaForSequenceClassification", "bert", "classifies or ranks texts"),
        ("BartForSequenceClassification", "bart", "encoder-decoder"),
        ("BertForTokenClassification", "bert", "classifies tokens"),
        ("DebertaV2ForQuestionAnswering", "deberta-v2", "marks answers in a text"),
        ("RobertaForMultipleChoice", "roberta", "chooses among answers"),
        ("BertForNextSentencePrediction", "bert", "judges whether a sentence follows another"),
        ("Qwen2ForRewardModel", "qwen2", "rates answers"),
        ("Qwen2VLForConditionalGeneration", "qwen2_vl", "generates from more than text"),
        ("T5EncoderModel", "t5", "encoder-decoder"),
        ("WhisperForConditionalGeneration", "whisper", "whisper is an encoder-decoder"),
        ("BlenderbotForConditionalGeneration", "blenderbot", "blenderbot is an encoder-decoder"),
        ("LEDForConditionalGeneration", "led", "led is an encoder-decoder"),
        ("LongT5ForConditionalGeneration", "longt5", "longt5 is an encoder-decoder"),
        ("ProphetNetForConditionalGeneration", "prophetnet", "prophetnet is an encoder-decoder"),
        ("Speech2TextForConditionalGeneration", "speech_to_text", "speech_to_text is an encoder-decoder"),
        ("UMT5ForConditionalGeneration", "umt5", "umt5 is an encoder-decoder"),
        ("T5ForSequenceClassification", "t5", "encoder-decoder"),
        ("NewModel", "bert", "is not an architecture we know"),
    ],
)
def test_any_other_task_is_refused_with_what_would_be_served(
    architecture: str, model_type: str, reason: str, has_modules: bool
) -> None:
    with pytest.raises(UnsupportedModel, match=f"{reason}; served are"):
        kind(architecture, model_type, has_modules=has_modules)


def write_whisper(directory: Path) -> None:
    """As Whisper's: no tokenizer.json need be there, and its weights are not read."""
    config = AutoConfig.for_model("whisper", architectures=["WhisperForConditionalGeneration"])
    config.save_pretrained(directory)


def write_two_models(directory: Path) -> None:
    """Two checkpoints made into one."""
    parts = {part: AutoConfig.for_model("bert").to_dict() for part in ("encoder", "decoder")}
    config = AutoConfig.for_model("encoder-decoder", architectures=["EncoderDecoderModel"], **parts)
    config.save_pretrained(directory)


@pytest.mark.parametrize(
    ("write", "model_type"), [(write_whisper, "whisper"), (write_two_models, "encoder-decoder")]
)
def test_an_encoder_decoder_that_is_not_served_is_refused_by_its_directory(
    tmp_path: Path, write: Callable[[Path], None], model_type: str
) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        UnsupportedModel,
        match=rf"{model_type} is an encoder-decoder; served are .*encoder-decoders of text \(t5, mt5, bart",
    ):
        read_kind(str(tmp_path))


def test_a_text_model_that_transformers_cannot_load_alone_is_refused_without_its_list_of_all_others() -> None:
    with pytest.raises(UnsupportedModel, match="loads no decoder from a configuration of mllama_text_model"):
        kind("MllamaForCausalLM", "mllama_text_model")


def test_a_decoder_is_not_loaded_from_a_classifier(tmp_path: Path) -> None:
    """Its vocabulary's head is tied to its embedding, so no weight is missing."""
    model = Qwen2ForSequenceClassification(Qwen2Config(**BASE, tie_word_embeddings=True, num_labels=3))
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)

    with pytest.raises(UnsupportedModel, match="it scores text"):
        load_engine(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace("ForSequenceClassification", "ForCausalLM"))
    with pytest.raises(UnsupportedModel, match=r"1 weights .* belong to nothing in Qwen2.*: score.weight"):
        load_engine(tmp_path)


def test_an_embedder_is_not_loaded_to_generate(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model", "qwen3")
    (directory / "modules.json").write_text("[]")

    with pytest.raises(UnsupportedModel, match="it embeds text"):
        load_engine(directory)


def add_weights(directory: Path, *names: str) -> Path:
    path = directory / "model.safetensors"
    weights = load_file(path) | {name: torch.ones(3) for name in names}
    save_file(weights, path, metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.weight_scale",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        "model.layers.2.mlp.up_proj.weight",
        "score.weight",
    ],
)
def test_a_weight_that_a_decoder_would_leave_out_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedModel, match=name.replace(".", r"\.")):
        load_engine(add_weights(save_model(tmp_path / "model"), name))


@pytest.mark.parametrize(
    ("model_type", "overrides", "names"),
    [
        ("llama", {}, ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
        ("llama", {"tie_word_embeddings": True}, ["model.position_ids"]),
        ("gpt2", {}, ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
        ("qwen3", {}, ["mtp.fc.weight", "model.mtp_layers.0.input_proj.weight"]),
        ("llama", {"num_nextn_predict_layers": 1}, ["model.layers.2.eh_proj.weight"]),
    ],
)
def test_weights_that_the_text_does_not_need_are_left_out(
    tmp_path: Path, model_type: str, overrides: dict[str, Any], names: list[str]
) -> None:
    engine = load_engine(add_weights(save_model(tmp_path / "model", model_type, **overrides), *names))

    [completion] = complete(engine, Request("one", [1, 2], greedy(2)))

    assert len(completion.token_ids) == 2


def tie_head_twice(directory: Path) -> None:
    """As some trainers save it: the tied head once more."""
    path = directory / "model.safetensors"
    weights = load_file(path)
    save_file(
        weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()},
        path,
        metadata={"format": "pt"},
    )


def drop_architecture(directory: Path) -> None:
    path = directory / "config.json"
    path.write_text(path.read_text().replace('"architectures"', '"once"'))


@pytest.mark.parametrize(
    ("change", "is_served"), [(tie_head_twice, True), (drop_architecture, False)], ids=["tied", "nameless"]
)
def test_what_a_checkpoint_is_must_be_said_and_its_tied_head_may_be_there(
    tmp_path: Path, change: Callable[[Path], None], is_served: bool
) -> None:
    directory = save_model(tmp_path / "model", tie_word_embeddings=True)
    change(directory)

    if is_served:
        assert load_engine(directory).context_length == 128
    else:
        with pytest.raises(UnsupportedModel, match="names no architecture"):
            load_engine(directory)


def test_the_text_model_of_a_multimodal_checkpoint_generates_as_transformers_does(tmp_path: Path) -> None:
    text = BASE | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16, "num_hidden_layers": 3}
    layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = Gemma3Config(
        text_config=text | {"layer_types": layer_types},
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=255,
        boi_token_index=254,
        eoi_token_index=253,
    )
    torch.manual_seed(1)
    model = Gemma3ForConditionalGeneration(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    prompts = [[5, 6, 7], list(range(20, 60))]
    assert read_kind(str(tmp_path)).name == "decoder"
    assert greedy_answers(load_engine(tmp_path), prompts, 24) == reference_greedy(tmp_path, prompts, 24)


def test_a_checkpoint_without_the_files_its_kind_needs_is_refused_by_what_is_missing(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    for path in directory.glob("tokenizer*"):
        path.unlink()

    with pytest.raises(ModelLoadFailed, match="its tokenizer is missing"):
        read_kind(str(directory))


LOGIT_SCORE = ("Transformer", "LogitScore")


def test_a_decoder_that_ranks_by_its_logits_of_tokens_scores_text(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model", "qwen3")
    modules = [{"type": f"sentence_transformers.x.{name}", "path": ""} for name in LOGIT_SCORE]
    (directory / "modules.json").write_text(json.dumps(modules))

    assert read_kind(str(directory)).name == "classifier"
    with pytest.raises(UnsupportedModel, match="it scores text"):
        load_engine(directory)


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [("Qwen3VLForConditionalGeneration", "qwen3_vl"), ("BartForCausalLM", "bart"), ("BertModel", "vit")],
)
def test_what_ranks_more_than_text_or_is_no_decoder_is_refused_by_name(
    architecture: str, model_type: str
) -> None:
    config = AutoConfig.for_model(model_type, architectures=[architecture])

    with pytest.raises(UnsupportedModel, match=f"{architecture} is no decoder of text alone; served are"):
        kind_of(Checkpoint("the model", config, LOGIT_SCORE))


def test_a_modules_json_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model")
    (directory / "modules.json").write_text('[{"path": ""}]')

    with pytest.raises(ModelLoadFailed, match=r"modules\.json cannot be read"):
        read_kind(str(directory))
