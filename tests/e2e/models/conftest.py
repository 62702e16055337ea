"""One service with small models of several kinds, for the files that bring no service of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.service import Service, forked
from tests.integration.servers import S3Server, moto
from tests.unit.engine.tiny.classifiers import save_classifier
from tests.unit.engine.tiny.encoders import declare_modules, save_checkpoint, tiny_bert
from tests.unit.engine.tiny.images import save_image_model
from tests.unit.engine.tiny.rerankers import TEMPLATE, declare_logit_score, save_reranker
from tests.unit.engine.tiny.seq2seq import save_seq2seq

MODELS = ("embedder", "animals", "vectors", "spam", "reranker", "generative", "m2m")


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the models, and whatever jobs read and write."""
    folder = tmp_path_factory.mktemp("models")
    embedder = save_checkpoint(folder / "embedder", tiny_bert())
    declare_modules(embedder, {"pooling_mode": "mean"}, "Transformer", "Pooling", "Normalize")
    (embedder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "w50 w51 "}}')
    (embedder / "nightshift.yaml").write_text("is_matryoshka: true\n")
    save_image_model(folder / "animals", "ViT", id2label={0: "cat", 1: "dog"}, label2id=None)
    save_image_model(folder / "vectors", "CLIPVision", "ModelWithProjection")
    save_classifier(folder / "spam", "distilbert", id2label={0: "ham", 1: "spam"}, label2id=None)
    save_classifier(folder / "reranker", "bert", num_labels=1)
    declare_logit_score(save_reranker(folder / "generative", template=TEMPLATE))
    save_seq2seq(folder / "m2m", "m2m_100", has_languages=True, no_repeat_ngram_size=1)
    return folder


@pytest.fixture(scope="package")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="package")
def bucket(s3: S3Server) -> str:
    """A place that jobs may name."""
    return s3.new_bucket()


@pytest.fixture(scope="package")
def service(folder: Path, s3: S3Server, bucket: str) -> Iterator[Service]:
    models = [word for name in MODELS for word in ("--model", str(folder / name))]
    settings = {"FILE_ROOTS": str(folder), "S3_BUCKETS": bucket, "DTYPE": "float32"}
    settings |= {"SEGMENT_ROWS": "8", "SEGMENT_SPACING_S": "0", "ENGINE_MAX_NUM_SEQS": "4"}  # counted early
    with s3.in_environment(), forked(folder / "data", *models, **settings) as service:
        yield service
