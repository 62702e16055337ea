"""The fields of requests about a model's thoughts, and what they tell its chat template.

The names are vLLM's. Which arguments a template takes is the model's to say: a worker knows it.
"""

from typing import Annotated, Final, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from nightshift.endpoints.requests import invalid_value, null_means
from nightshift.endpoints.texts.generation import GenerationRequest, Thinking
from nightshift.jobs import JsonObject

RESERVED: Final = frozenset(
    {
        *("self", "messages", "conversation", "conversations", "tools", "chat_template", "tokenize"),
        *("add_generation_prompt", "continue_final_message", "sanitize_control_tokens", "tokenizer_kwargs"),
        *("padding", "truncation", "max_length", "return_tensors", "return_dict"),
        "return_assistant_tokens_mask",
        *("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"),
    }
)
"""Arguments that the service itself gives to a template, or to the library that fills it."""
ARGUMENTS_MAX: Final = 64


class ThoughtFields(BaseModel):
    """The thought of an earlier answer, by either of vLLM's names."""

    reasoning_content: str | None = None
    reasoning: str | None = None

    @model_validator(mode="after")
    def _are_one_text(self) -> Self:
        given = {text for text in (self.reasoning_content, self.reasoning) if text is not None}
        if len(given) > 1:
            raise ValueError("'reasoning' and 'reasoning_content' are two names of one text, and differ")
        return self

    @property
    def thought(self) -> str | None:
        return self.reasoning if self.reasoning_content is None else self.reasoning_content


class TemplateFields(BaseModel):
    """The arguments of a model's chat template."""

    chat_template_kwargs: JsonObject | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _shadow_nothing(cls, value: JsonObject | None) -> JsonObject | None:
        """Raises InvalidRequest for too many, or naming one that would replace one of the service's own."""
        if len(value or ()) > ARGUMENTS_MAX:
            raise invalid_value("chat_template_kwargs", f"at most {ARGUMENTS_MAX} arguments")
        for name in value or ():
            if name in RESERVED:
                message = f"'{name}' cannot be set for the chat template: the service sets it itself"
                raise invalid_value(f"chat_template_kwargs.{name}", message)
        return value


class ReasoningRequest(TemplateFields, GenerationRequest):
    """The fields of every request whose answer may begin with a thought."""

    thinking_token_budget: Annotated[int, Field(ge=0, strict=True)] | None = None
    include_reasoning: Annotated[bool, null_means(True)] = True

    @property
    def effort(self) -> str | None:
        """The effort of thinking; `none`: no thought. None: as the model's template says."""
        return None

    @property
    def thinking(self) -> Thinking:
        return Thinking(self.effort, self.thinking_token_budget, self.include_reasoning)


def with_thought(message: JsonObject, thought: str | None) -> JsonObject:
    """A message of a conversation with its thought; a worker puts that where its template reads it."""
    return message if thought is None else message | {"reasoning_content": thought}
