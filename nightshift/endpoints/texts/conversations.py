"""Conversations of requests that ask for no answer: the model reads them in its chat template."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field, PrivateAttr, model_validator

from nightshift.endpoints.parameters import Flag
from nightshift.endpoints.requests import MESSAGES_MAX, array_at_most, invalid_value, missing
from nightshift.endpoints.texts.chat import ChatMessage, media_of
from nightshift.endpoints.texts.generation import Conversation, Ending, ending_of
from nightshift.endpoints.texts.reasoning import TemplateFields
from nightshift.jobs import JsonObject


class ConversationFields(TemplateFields):
    """A conversation in place of another field, with vLLM's names."""

    messages: (
        Annotated[
            list[ChatMessage], Field(min_length=1, fail_fast=True), array_at_most(MESSAGES_MAX, "messages")
        ]
        | None
    ) = None
    add_generation_prompt: Flag = None
    continue_final_message: Flag = None
    add_special_tokens: bool | None = None

    other_field: ClassVar[str] = "input"  # that it takes the place of
    begins_answer: ClassVar[bool] = False  # where the request does not say

    _ending: Ending = PrivateAttr(default="answer")

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        other = getattr(self, self.other_field)
        if other is None and self.messages is None:
            raise missing(self.other_field)
        if other is not None and self.messages is not None:
            raise invalid_value("messages", f"'{self.other_field}' is another text: give one of them")
        begins = self.add_generation_prompt if self.begins_answer else bool(self.add_generation_prompt)
        self._ending = ending_of(begins, self.continue_final_message)
        return self

    @property
    def adds_special_tokens(self) -> bool:
        """Whether special tokens go around it: around a text, as a conversation has its own."""
        return self.messages is None if self.add_special_tokens is None else self.add_special_tokens

    def conversation(
        self, tools: Sequence[JsonObject] = (), effort: str | None = None
    ) -> Conversation | None:
        """The conversation; None: the request has the other field."""
        if self.messages is None:
            return None
        messages, arguments = [message.for_template for message in self.messages], self.chat_template_kwargs
        return Conversation(messages, tools, self._ending, arguments or {}, effort, media_of(self.messages))
