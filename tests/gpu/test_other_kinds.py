"""Encoders, classifiers, models of images and encoder-decoders on a device give what they give on a CPU."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from nightshift_engine import Engine, SamplingParams
from nightshift_engine.models import (
    EncoderModel,
    ImageClassifierModel,
    load_scorer,
    load_seq2seq,
)
from tests.unit.engine.tiny.classifiers import save_classifier, some_texts
from tests.unit.engine.tiny.decoders import engine_config
from tests.unit.engine.tiny.encoders import save_checkpoint, tiny_bert
from tests.unit.engine.tiny.images import as_bytes, picture, save_image_model
from tests.unit.engine.tiny.seq2seq import (
    BLOCK_SIZE,
    generate,
    save_seq2seq,
    tokens_of,
    translate,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TOLERANCE = 1e-4
SEED = 3
NUM_TOKENS = 16


def texts() -> list[list[int]]:
    rng = random.Random(SEED)
    return [[2, *(rng.randrange(4, 60) for _ in range(length)), 3] for length in (1, 30, 7, 55, 7)]


def test_vectors_are_those_of_a_cpu(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_bert())
    on_cpu, on_cuda = (
        EncoderModel.load(tmp_path, dtype="float32", device=device) for device in ("cpu", "cuda")
    )

    np.testing.assert_allclose(on_cuda.encode(texts()), on_cpu.encode(texts()), atol=TOLERANCE)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert", "qwen3", "gemma2"])
def test_scores_of_classifiers_are_those_of_a_cpu(tmp_path: Path, family: str) -> None:
    save_classifier(tmp_path, family)
    on_cpu, on_cuda = (load_scorer(tmp_path, "float32", device) for device in ("cpu", "cuda"))

    inputs = on_cpu.tokenize_all(some_texts(1, 4, 20, 60, 50, 3))

    np.testing.assert_allclose(on_cuda.encode(inputs), on_cpu.encode(inputs), atol=TOLERANCE, rtol=1e-3)


@pytest.mark.parametrize("family", ["ViT", "ConvNext", "Swin"])
def test_scores_of_images_are_those_of_a_cpu(tmp_path: Path, family: str) -> None:
    save_image_model(tmp_path, family, num_labels=5)
    on_cpu, on_cuda = (ImageClassifierModel.load(tmp_path, "float32", device) for device in ("cpu", "cuda"))
    pictures = [as_bytes(picture(number, 40 + number, 33)) for number in range(3)]
    inputs = [on_cpu.prepare(image) for image in pictures]

    np.testing.assert_allclose(on_cuda.encode(inputs), on_cpu.encode(inputs), atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("family", ["t5", "flan-t5", "bart", "marian", "m2m_100", "pegasus"])
def test_an_encoder_decoder_answers_as_generate_does(tmp_path: Path, family: str) -> None:
    directory = save_seq2seq(tmp_path, family)
    config = engine_config(directory, block_size=BLOCK_SIZE, device="cuda", dtype="float32", num_kv_blocks=70)
    engine = Engine.over(load_seq2seq(config))
    rng = random.Random(SEED)
    sources = [[rng.randrange(2, 256) for _ in range(length)] for length in (1, 9, 40, 7)]
    sampling = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)

    completions = translate(engine, sources, sampling=sampling)

    assert tokens_of(completions) == generate(directory, sources, NUM_TOKENS)
