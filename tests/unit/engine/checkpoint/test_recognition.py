"""Which checkpoints generate, embed or score text, and which are refused: by architecture and by weights."""

import json
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
from tests.unit.engine.tiny.classifiers import change_config
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

LOGIT_SCORE = ("Transformer", "LogitScore")


def kind(architecture: str, model_type: str, *, has_modules: bool = False) -> str:
    config = AutoConfig.for_model(model_type, architectures=[architecture])
    return kind_of(Checkpoint("the model", config, () if has_modules else None)).name


@pytest.mark.parametrize(
    ("architecture", "model_type", "alone", "with_modules"),
    [
        ("LlamaForCausalLM", "llama", "decoder", "encoder"),
        ("Qwen3ForCausalLM", "qwen3", "decoder", "encoder"),
        ("GPT2LMHeadModel", "gpt2", "decoder", "encoder"),
        ("Gemma3ForCausalLM", "gemma3_text", "decoder", "encoder"),
        ("Gemma3ForConditionalGeneration", "gemma3", "decoder", "encoder"),
        ("BertModel", "bert", "encoder", "encoder"),
        ("XLMRobertaModel", "xlm-roberta", "encoder", "encoder"),
        ("Qwen3Model", "qwen3", "encoder", "encoder"),
        ("MPNetForMaskedLM", "mpnet", None, "encoder"),
        ("ElectraForPreTraining", "electra", None, "encoder"),
        ("XLMRobertaForSequenceClassification", "xlm-roberta", "classifier", "classifier"),
        ("Qwen2ForSequenceClassification", "qwen2", "classifier", "classifier"),
        *(
            (architecture, model_type, "seq2seq", None)
            for architecture, model_type in [
                ("T5ForConditionalGeneration", "t5"),
                ("MT5ForConditionalGeneration", "mt5"),
                ("BartForConditionalGeneration", "bart"),
                ("MBartForConditionalGeneration", "mbart"),
                ("MarianMTModel", "marian"),
                ("M2M100ForConditionalGeneration", "m2m_100"),
                ("PegasusForConditionalGeneration", "pegasus"),
            ]
        ),
    ],
)
def test_the_architecture_says_what_a_checkpoint_does_and_modules_how_it_embeds(
    architecture: str, model_type: str, alone: str | None, with_modules: str | None
) -> None:
    """None where it is refused."""
    for has_modules, expected in ((False, alone), (True, with_modules)):
        if expected is not None:
            assert kind(architecture, model_type, has_modules=has_modules) == expected
        else:
            with pytest.raises(UnsupportedModel, match=f"{architecture}|{model_type} is an"):
                kind(architecture, model_type, has_modules=has_modules)


@pytest.mark.parametrize("has_modules", [False, True])
@pytest.mark.parametrize(
    ("architecture", "model_type", "reason"),
    [
        ("CanineModel", "canine", "CanineModel reads Unicode characters.*"),
        ("PerceiverForSequenceClassification", "perceiver", "gives vectors of its latents.*"),
        ("TapasModel", "tapas", "reads a table beside each text.*"),
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


@pytest.mark.parametrize(
    ("architecture", "model_type", "parts"),
    [
        ("WhisperForConditionalGeneration", "whisper", ()),
        ("EncoderDecoderModel", "encoder-decoder", ("encoder", "decoder")),
    ],
)
def test_an_encoder_decoder_that_is_not_served_is_refused_by_its_directory(
    tmp_path: Path, architecture: str, model_type: str, parts: tuple[str, ...]
) -> None:
    """Whisper's needs no tokenizer.json; two checkpoints may have been made into one."""
    configs = {part: AutoConfig.for_model("bert").to_dict() for part in parts}
    AutoConfig.for_model(model_type, architectures=[architecture], **configs).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")

    refusal = rf"{model_type} is an encoder-decoder; served are .*encoder-decoders of text \(t5, mt5, bart"
    with pytest.raises(UnsupportedModel, match=refusal):
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


@pytest.mark.parametrize(("names", "does"), [((), "embeds"), (LOGIT_SCORE, "scores")])
def test_a_decoder_whose_modules_embed_or_score_does_not_generate(
    tmp_path: Path, names: tuple[str, ...], does: str
) -> None:
    directory = save_model(tmp_path / "model", "qwen3")
    modules = [{"type": f"sentence_transformers.x.{name}", "path": ""} for name in names]
    (directory / "modules.json").write_text(json.dumps(modules))

    with pytest.raises(UnsupportedModel, match=f"it {does} text"):
        load_engine(directory)


def add_weights(directory: Path, *names: str) -> Path:
    path = directory / "model.safetensors"
    weights = load_file(path) | {name: torch.ones(3) for name in names}
    save_file(weights, path, metadata={"format": "pt"})
    return directory


def test_weights_that_a_decoder_would_leave_out_are_refused_by_name(tmp_path: Path) -> None:
    for name in (
        "model.layers.0.self_attn.q_proj.weight_scale",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        "model.layers.2.mlp.up_proj.weight",
        "score.weight",
    ):
        directory = add_weights(save_model(tmp_path / name), name)
        with pytest.raises(UnsupportedModel, match=name.replace(".", r"\.")):
            load_engine(directory)


@pytest.mark.parametrize(
    ("model_type", "overrides", "names"),
    [
        (
            "llama",
            {"tie_word_embeddings": True},
            ["model.position_ids", "model.layers.0.self_attn.rotary_emb.inv_freq"],
        ),
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


def test_a_tied_head_that_is_stored_once_more_is_served(tmp_path: Path) -> None:
    directory = save_model(tmp_path / "model", tie_word_embeddings=True)
    path = directory / "model.safetensors"
    weights = load_file(path)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, path, metadata={"format": "pt"})

    assert load_engine(directory).context_length == 128


def test_a_checkpoint_that_does_not_say_what_it_is_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="names no architecture"):
        read_kind(str(change_config(save_model(tmp_path / "model"), architectures=None)))


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
