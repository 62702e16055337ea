"""A model's tokenizer, as the endpoints that show its tokens need it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from nightshift.endpoints.requests import invalid_value
from nightshift.endpoints.structured.tools import Tools
from nightshift.endpoints.texts.generation import Conversation, Ending, Prompt, prompt_chars
from nightshift.errors import InvalidRequest
from nightshift_engine import InvalidRequest as EngineRefusal
from workers.serving.inference import check_length
from workers.serving.model_server import invalid
from workers.serving.servers.tool_calls import check_template

if TYPE_CHECKING:  # needs torch
    from nightshift_engine import Engine
    from workers.serving.engine_process.engine_process import EngineProcess

ID_END: Final = 2**32  # a tokenizer's ids have 32 bits


class Tokenizer(Protocol):
    """The part of a model's tokenizer that a conversation needs."""

    def chat_text(self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any) -> str: ...


class ModelTokens:
    """The tokens of one model."""

    def __init__(self, engine: "Engine | EngineProcess", context_length: int) -> None:
        self._tokenizer = engine.tokenizer
        self.context_length = context_length

    def token_ids(self, prompt: Prompt, tools: Tools | None, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text, or of a conversation in the chat template. Raises InvalidRequest."""
        field = "messages" if isinstance(prompt, Conversation) else "prompt"
        check_length(prompt_chars(prompt), self.context_length, field)
        try:
            text = prompt if isinstance(prompt, str) else self._shown(prompt, tools)
            return self._tokenizer.encode_all([text], add_special_tokens=add_special_tokens)[0]
        except EngineRefusal as error:
            raise invalid(error, field) from error

    def _shown(self, prompt: Prompt, tools: Tools | None) -> str:
        assert isinstance(prompt, Conversation), "token ids are not tokenized"
        check_template(self._tokenizer.chat_template, prompt, tools, "messages")
        return chat_text(self._tokenizer, prompt)

    def name(self, token_id: int) -> str:
        return self._tokenizer.token_name(token_id) or ""

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included. Raises InvalidRequest naming one that is unknown."""
        for place, id in enumerate(token_ids):
            if id >= ID_END or not self._tokenizer.token_bytes(id):
                raise _unknown(place, id)
        return self._tokenizer.decode_whole(token_ids)


def chat_text(tokenizer: "Tokenizer", prompt: Conversation) -> str:
    """A conversation's text up to its ending. Raises the engine's InvalidRequest."""
    shown = {"tools": list(prompt.tools)} if prompt.tools else {}
    ending = _ENDINGS[prompt.ending]
    return tokenizer.chat_text(prompt.messages, **shown, **ending)


_ENDINGS: Final[Mapping[Ending, Mapping[str, bool]]] = {
    "answer": {},
    "message": {"add_generation_prompt": False},
    "open": {"add_generation_prompt": False, "continue_final_message": True},
}


def _unknown(place: int, token_id: int) -> InvalidRequest:
    return invalid_value(f"tokens[{place}]", f"the model has no token with the id {token_id}")
