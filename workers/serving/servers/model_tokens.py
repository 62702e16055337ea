"""A model's tokenizer, as the endpoints that show its tokens need it."""

from collections.abc import Sequence
from typing import Final, Protocol

from nightshift.endpoints.requests import invalid_value
from nightshift.endpoints.texts.generation import Conversation, Prompt, prompt_chars
from nightshift.endpoints.tokenizers.endpoint import TokenizerEndpoint, TokenizerRequest
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model
from nightshift_engine import InvalidRequest as EngineRefusal
from workers.serving.inference import Progress, check_length
from workers.serving.model_server import Inference, invalid
from workers.serving.servers.conversations import ChatTokenizer, conversation_text
from workers.serving.servers.tool_calls import check_template

ID_END: Final = 2**32  # a tokenizer's ids have 32 bits


class Tokenizer(ChatTokenizer, Protocol):
    """A model's tokenizer, as far as its tokens are shown."""

    @property
    def chat_template(self) -> str: ...

    def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def token_name(self, token_id: int) -> str | None: ...

    def decode_whole(self, token_ids: Sequence[int]) -> str: ...


def show_tokens(inference: Inference, tokenizer: Tokenizer | None, model: Model) -> None:
    """Answers a request for a model's tokens at once. Raises InvalidRequest."""
    endpoint, request = inference.endpoint, inference.request
    assert isinstance(endpoint, TokenizerEndpoint), "the endpoint is known"
    assert isinstance(request, TokenizerRequest), "parsed by this endpoint"
    if tokenizer is None or model.context_length is None:
        raise InvalidRequest(
            f"'{model.id}' {model.kind.does}, and reads no texts.", param="model", code="model_not_supported"
        )
    tokens = ModelTokens(tokenizer, model.context_length)
    inference.listener(Progress(result=endpoint.result(request, tokens)))


class ModelTokens:
    """The tokens of one model."""

    def __init__(self, tokenizer: Tokenizer, context_length: int) -> None:
        self._tokenizer = tokenizer
        self.context_length = context_length

    def token_ids(self, prompt: Prompt, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text, or of a conversation in the chat template. Raises InvalidRequest."""
        field = "messages" if isinstance(prompt, Conversation) else "prompt"
        check_length(prompt_chars(prompt), self.context_length, field)
        try:
            text = prompt if isinstance(prompt, str) else self.shown(prompt)
            return self._tokenizer.encode_all([text], add_special_tokens=add_special_tokens)[0]
        except EngineRefusal as error:
            raise invalid(error, field) from error

    def shown(self, prompt: Prompt) -> str:
        """A conversation in the chat template. Raises InvalidRequest."""
        assert isinstance(prompt, Conversation), "token ids are not tokenized"
        check_template(self._tokenizer.chat_template, prompt, None, "messages")  # no tool is called
        return conversation_text(self._tokenizer, prompt, "messages", "reasoning_effort")

    def name(self, token_id: int) -> str:
        return self._tokenizer.token_name(token_id) or ""

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included. Raises InvalidRequest naming one that is unknown."""
        for place, id in enumerate(token_ids):
            if id >= ID_END or not self._tokenizer.token_bytes(id):
                raise _unknown(place, id)
        return self._tokenizer.decode_whole(token_ids)


def _unknown(place: int, token_id: int) -> InvalidRequest:
    return invalid_value(f"tokens[{place}]", f"the model has no token with the id {token_id}")
