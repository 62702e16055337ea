"""POST /classify, in vLLM's shape: the probabilities of all labels, in the model's order."""

from collections.abc import Mapping, Sequence

from nightshift.endpoints.answer_objects import ClassifiedList
from nightshift.endpoints.encoders.classifications import Classifications, ClassifyRequest, Ranking
from nightshift.endpoints.encoders.scoring import no_values, packed, usage_json
from nightshift.endpoints.results import Identity, Values
from nightshift.jobs import JsonObject, Usage


class Classify(Classifications):
    route = "/v1/classify"
    aliases: Mapping[str, JsonObject] = {"/classify": {}}
    name = "classify"
    operation = "create_classify"
    summary = "Score texts or images for each label of a classifier, in vLLM's shape"
    request_type = ClassifyRequest
    answer_type = ClassifiedList

    def values(self, body: JsonObject) -> Values:
        """The labels of scores are not in a body; the best one's is."""
        data = body.get("data") or []
        if len(data) != 1:
            return no_values(self.columns)
        scores = data[0]["probs"]
        best = {"label": data[0]["label"], "score": packed([max(scores)])}
        return best | {"labels": None, "scores": packed(scores)}

    def shape(self, identity: Identity, model: str, rankings: Sequence[Ranking], usage: Usage) -> JsonObject:
        return {
            "id": identity.id("classify-"),
            "object": "list",
            "created": identity.created_s,
            "model": model,
            "data": [_classified(index, ranking) for index, ranking in enumerate(rankings)],
            "usage": usage_json(usage),
        }


def _classified(index: int, ranking: Ranking) -> JsonObject:
    label, _ = max(ranking, key=lambda scored: scored[1])
    probabilities = [score for _, score in ranking]
    return {"index": index, "label": label, "probs": probabilities, "num_classes": len(ranking)}
