"""Which encoders are refused, and why."""

import shutil

import pytest
import torch
from transformers import CLIPConfig, CLIPModel, FNetConfig, FNetModel, T5Config, T5Model

from tests.unit.workers.engine.encoders.tiny_encoders import (
    SIZES,
    declare_modules,
    save_checkpoint,
    tiny_bert,
)
from workers.engine.encoders.model import EncoderModel
from workers.engine.errors import ModelLoadFailed, UnsupportedModel


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
