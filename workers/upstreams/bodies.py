"""A request as an upstream gets it: the body that was given, without the fields that are ours. Pure."""

from typing import Final

from nightshift.endpoints.texts.generation import TextEndpoint
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import PriorityClass
from workers.serving.model_server import Inference

OURS: Final = ("priority", "service_tier", "request_id", "metadata", "store", "stream", "stream_options")
"""Fields that are for this service: of its queue, its records, and how it answers its own client."""
RANKS: Final = {PriorityClass.INTERACTIVE: 0, PriorityClass.STANDARD: 1, PriorityClass.BACKGROUND: 2}
"""The numbers of vLLM's and SGLang's `priority`: lower is sooner."""

MIXED: Final = 4  # characters of a token, roughly; settled by the answer's usage


def upstream_body(inference: Inference, model: str, *, streams: bool, ranks: bool) -> JsonObject:
    """The body for the upstream that calls the model `model`; `ranks`: it understands `priority`."""
    assert inference.body is not None, "an upstream's server takes bodies"
    body = {name: value for name, value in inference.body.items() if name not in OURS}
    body["model"] = model
    if streams:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if ranks and streams:
        body["return_token_ids"] = True  # vLLM's: a part may have several tokens
    if ranks and isinstance(inference.endpoint, TextEndpoint):
        body["priority"] = RANKS[inference.priority]
    return body


def tokens_expected(inference: Inference) -> int:
    """An estimate of the tokens that a request takes, for a budget; its answer's usage corrects it."""
    request = inference.request
    generated = getattr(request, "output_tokens_max", None) or 0
    return request.text_chars // MIXED + generated * request.num_choices + 1
