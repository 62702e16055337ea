"""The prompt of a generative reranker: a query and a document, which alone is ever cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...checkpoint.files import read_object
from ...errors import ChatTemplateFailed, InvalidRequest, NoRoomForText, UnsupportedModel
from ...text.first_tokens import FirstTokensReader
from ...text.tokenizer import Tokenizer
from ..prompts import Prompts
from .pairs import FramedTokens, PairText
from .scorer import bare

Render = Callable[[str, str, str | None], str]
"""The prompt of a query, a document and an instruction; None: the prompt's own. Raises ChatTemplateFailed."""

QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_QWEN3_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_QWEN3_BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

_QUERY, _DOCUMENT, _INSTRUCTION = "nqueryq", "ndocumentd", "ninstructioni"
"""Texts that no template has."""


def qwen3_prompt(query: str, document: str, instruction: str | None) -> str:
    """The prompt of the model card of Qwen3-Reranker."""
    instruct = QWEN3_INSTRUCTION if instruction is None else instruction
    texts = f"<Instruct>: {instruct}\n<Query>: {query}\n<Document>: {document}"
    return f"{_QWEN3_BEFORE}{texts}{_QWEN3_BEHIND}"


def read_prompt(directory: Path, config: Any, tokenizer: Tokenizer) -> Render:
    """A chat template with the roles of a pair, else the prompt of the family that config.json names.

    Raises UnsupportedModel for one that is declared otherwise, or ModelLoadFailed.
    """
    if getattr(config, "is_original_qwen3_reranker", False) and not _has_pair_roles(tokenizer):
        return qwen3_prompt
    settings = transformer_settings(directory)
    modalities: Mapping[str, Any] = settings.get("modality_config") or {"message": {}}
    if "message" not in modalities:
        raise UnsupportedModel(
            str(directory), "sentence_bert_config.json declares no prompt for its pairs (message)"
        )
    processing = settings.get("processing_kwargs") or {}
    arguments = processing.get("chat_template") or {}
    if set(processing) - {"chat_template"} or set(arguments) - {"add_generation_prompt"}:
        reason = "processing_kwargs in sentence_bert_config.json has more than add_generation_prompt"
        raise UnsupportedModel(str(directory), f"{reason}, which is not computed")
    is_structured = modalities["message"].get("format") == "structured"
    return template_prompt(tokenizer, is_structured=is_structured, **arguments)


def declares_prompt(directory: Path, tokenizer: Tokenizer) -> bool:
    """Whether sentence-transformers reads pairs in the chat template. Raises ModelLoadFailed."""
    modalities = transformer_settings(directory).get("modality_config") or {}
    return "message" in modalities and _has_pair_roles(tokenizer)


def _has_pair_roles(tokenizer: Tokenizer) -> bool:
    return all(role in tokenizer.chat_template for role in ("query", "document"))


def transformer_settings(directory: Path) -> dict[str, Any]:
    """Reads what sentence-transformers says of its first module. Raises ModelLoadFailed."""
    path = directory / "sentence_bert_config.json"
    return read_object(path, str(directory)) if path.exists() else {}


def template_prompt(tokenizer: Tokenizer, *, is_structured: bool, **arguments: Any) -> Render:
    """A chat template's, with a message for each text, in the roles that sentence-transformers gives them."""
    return partial(_rendered, tokenizer, is_structured, arguments)


def _rendered(
    tokenizer: Tokenizer,
    is_structured: bool,
    arguments: dict[str, Any],
    query: str,
    document: str,
    instruction: str | None,
) -> str:
    texts = {"system": instruction, "query": query, "document": document}
    messages = [
        {"role": role, "content": [{"type": "text", "text": text}] if is_structured else text}
        for role, text in texts.items()
        if text is not None
    ]
    return tokenizer.chat_text(messages, **{"add_generation_prompt": False} | arguments)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The parts of a query's prompt around a document."""

    num_before: int
    """Tokens."""
    behind: str
    behind_ids: Sequence[int]


class PromptTokenizer:
    """Pairs of texts to tokens. Any thread may use it."""

    @classmethod
    def of_checkpoint(cls, directory: Path, config: Any, tokenizer: Tokenizer) -> PromptTokenizer:
        """The prompts that the checkpoint's files declare. Raises UnsupportedModel or ModelLoadFailed."""
        instruction = Prompts.read(directory).default or None
        return cls(tokenizer, read_prompt(directory, config, tokenizer), instruction, str(directory))

    def __init__(
        self, tokenizer: Tokenizer, render: Render, default_instruction: str | None, name: str
    ) -> None:
        """`name` is what the checkpoint is called. Raises UnsupportedModel where a prompt lacks a text."""
        self._tokenizer = tokenizer
        self._reader = FirstTokensReader(tokenizer.plain_backend())
        self._render = render
        self._default_instruction = default_instruction
        try:
            prompt = render(_QUERY, _DOCUMENT, default_instruction)
            instructed = render(_QUERY, _DOCUMENT, _INSTRUCTION)
        except ChatTemplateFailed as error:
            raise UnsupportedModel(
                name, f"no prompt can be made of a query and a document: {error}"
            ) from error
        if not 0 <= prompt.find(_QUERY) < prompt.find(_DOCUMENT):
            reason = 'its chat template does not show a message of the role "query", then one of "document"'
            raise UnsupportedModel(name, f"{reason}, as a reranker's does")
        self.takes_instructions = _INSTRUCTION in instructed

    @property
    def reads_parts(self) -> bool:
        """Whether a document that will be cut is read no further than it must be."""
        return self._reader.reads_parts

    def tokenize(self, inputs: Sequence[PairText]) -> list[FramedTokens]:
        """Raises `InvalidRequest` where a text is none, or no token is left of a document that is cut."""
        documents = self._documents(inputs)
        prompts = [self._prompt(input, text) for input, text in zip(inputs, documents, strict=True)]
        cut = self._cut(inputs, prompts)
        whole = iter(self._encode([prompt for place, prompt in enumerate(prompts) if place not in cut]))
        return [bare(cut[place] if place in cut else next(whole)) for place in range(len(prompts))]

    def _documents(self, inputs: Sequence[PairText]) -> list[str]:
        """Their documents, cut to tokens of their own where that is wanted."""
        documents = [input.pair or "" for input in inputs]
        limits = {n: limit for n, input in enumerate(inputs) if (limit := input.pair_tokens_max) is not None}
        texts = [documents[place] for place in limits]
        beginnings = self._reader.read(texts, [*limits.values()]) if texts else []
        for (place, limit), first in zip(limits.items(), beginnings, strict=True):
            if first.is_cut_at(limit):
                documents[place] = documents[place][: first.encoded.offsets[limit - 1][1]]
        return documents

    def _prompt(self, pair: PairText, document: str) -> str:
        instruction = self._default_instruction if pair.instruction is None else pair.instruction
        try:
            return self._render(pair.text, document, instruction)
        except ChatTemplateFailed as error:
            raise InvalidRequest(str(error)) from error

    def _cut(self, inputs: Sequence[PairText], prompts: Sequence[str]) -> dict[int, list[int]]:
        """Tokens of inputs whose document is cut, by place: as many as may be, then what is behind.

                              max_tokens
        before, query | document ...........|
                      | kept    | behind    |
        """
        frames: dict[tuple[str, str | None], _Frame] = {}
        rooms: dict[int, tuple[int, _Frame]] = {}
        for place, input in enumerate(inputs):
            if input.max_tokens is None:
                continue
            key = input.text, input.instruction
            frame = frames[key] = frames.get(key) or self._frame(input)
            room = input.max_tokens - len(frame.behind_ids)
            if room <= frame.num_before:
                raise NoRoomForText(input.max_tokens)
            rooms[place] = room, frame
        texts = [prompts[place].removesuffix(frame.behind) for place, (_, frame) in rooms.items()]
        beginnings = self._reader.read(texts, [room for room, _ in rooms.values()]) if texts else []
        return {
            place: [*first.up_to(room).ids, *frame.behind_ids]
            for (place, (room, frame)), first in zip(rooms.items(), beginnings, strict=True)
            if first.is_cut_at(room)
        }

    def _frame(self, pair: PairText) -> _Frame:
        before, behind = self._prompt(pair, _DOCUMENT).rsplit(_DOCUMENT, 1)
        first, last = self._encode([before, behind])
        return _Frame(len(first), behind, last)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._tokenizer.encode_all(texts, add_special_tokens=False) if texts else []
