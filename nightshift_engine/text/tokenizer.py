"""Text to tokens, and tokens to text or bytes, by the model's tokenizer and chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2.meta import find_undeclared_variables
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import _compile_jinja_template

from ..checkpoint.files import unreadable
from ..errors import ChatTemplateFailed, InvalidRequest, ModelLoadFailed
from .decoders import (
    ByteTextDecoder,
    FallbackTextDecoder,
    TextDecoder,
    TextStream,
    TrimmedTextDecoder,
    WindowTextDecoder,
)
from .thought_formats import effort_arguments, thought_format, with_thought
from .thoughts import ThoughtFormat

_LANGUAGE = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_[A-Za-z]{2,4})")


class Tokenizer:
    """The model's tokenizer, as far as the engine needs it."""

    def __init__(self, hf_tokenizer: Any) -> None:
        self._hf = hf_tokenizer
        self._backend = hf_tokenizer.backend_tokenizer
        added = self._backend.get_added_tokens_decoder()
        self._added: dict[int, bytes] = {id: token.content.encode() for id, token in added.items()}
        special = {token.content: id for id, token in added.items() if token.special}
        self._silent = frozenset(special.values()) - self._tags_taught(special)
        decoders = list(_decoder_types(self._backend.decoder))
        self._is_byte_level = "ByteLevel" in decoders
        self._joins_bytes = decoders == ["ByteLevel"]
        self._byte_by_token = self._spelled_bytes() if "ByteFallback" in decoders else {}
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, model: str, revision: str | None = None) -> Tokenizer:
        """Loads from a directory or the hub. Raises `ModelLoadFailed`."""
        try:
            hf_tokenizer = AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=False)
        except Exception as error:  # whatever a broken file makes of the libraries below
            reason = str(error) or type(error).__name__
            if "trust_remote_code" in reason:
                reason = "it needs code of its repository, which is never run"
            reason = (unreadable(Path(model)) if Path(model).is_dir() else None) or reason
            raise ModelLoadFailed(f"cannot load the tokenizer of {model!r}: {reason}") from error
        if not getattr(hf_tokenizer, "is_fast", False):
            raise ModelLoadFailed(f"the tokenizer of {model!r} has no tokenizer.json form")
        length = hf_tokenizer.model_max_length
        if isinstance(length, bool) or not isinstance(length, int | float) or not length >= 1:
            reason = (
                f"tokenizer_config.json has model_max_length {length!r}; it must be a number of 1 or more"
            )
            raise ModelLoadFailed(f"cannot load the tokenizer of {model!r}: {reason}")
        return cls(hf_tokenizer)

    @property
    def eos_token_id(self) -> int | None:
        return self._hf.eos_token_id  # type: ignore[no-any-return]

    @property
    def bos_token_id(self) -> int | None:
        return self._hf.bos_token_id  # type: ignore[no-any-return]

    @property
    def context_length(self) -> int | None:
        """Tokens that the files claim, or None where they hold the usual astronomical placeholder."""
        length = self._hf.model_max_length
        return int(length) if length < 10**9 else None

    @property
    def num_tokens(self) -> int:
        """All it has, added ones included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def num_own_tokens(self) -> int:
        """The number of tokens without those added to its vocabulary."""
        return int(self._backend.get_vocab_size(with_added_tokens=False))

    @property
    def token_ids(self) -> Collection[int]:
        """Ids of all its tokens, added ones included."""
        return set(self._backend.get_vocab(with_added_tokens=True).values())

    def num_other(self, other: Tokenizer) -> int:
        """Number of tokens that one of two tokenizers does not have, or has under another id."""
        ours, theirs = (one._backend.get_vocab(with_added_tokens=True) for one in (self, other))
        return len({token for token, _ in ours.items() ^ theirs.items()})

    def spelled(self, token_id: int) -> bytes:
        """The bytes like `token_bytes`, for a look at all tokens: they are not kept."""
        return self._spelled(token_id)

    def added_from(self, first_id: int) -> list[str]:
        """The tokens added to its vocabulary with ids of at least `first_id`."""
        return [content.decode() for id, content in sorted(self._added.items()) if id >= first_id]

    def check_chat_template(self, model: str) -> None:
        """Raises `ModelLoadFailed` if a chat template of its is no Jinja: every conversation would fail."""
        templates = self._hf.chat_template
        for template in (
            templates.values() if isinstance(templates, dict) else [templates] if templates else []
        ):
            try:
                _compile_jinja_template(template)
            except Exception as error:  # whatever a broken template makes of the library
                line = getattr(error, "lineno", None)
                where = f" (line {line} of the template)" if line else ""
                reason = f"its chat template cannot be compiled: {error}{where}"
                raise ModelLoadFailed(
                    f"cannot load model {model!r}: {reason}; mend it, or remove it (for plain prompts alone)"
                ) from error

    def as_json(self) -> str:
        """The tokenizer as in a `tokenizer.json`, with the tokens that other files add, and no padding or
        truncation.
        """
        return str(self.plain_backend().to_str())

    def plain_backend(self) -> Any:
        """A copy of the `tokenizers.Tokenizer` below, without padding or truncation."""
        backend = copy(self._backend)
        backend.no_padding()
        backend.no_truncation()
        return backend

    @property
    def has_token_types(self) -> bool:
        """Whether its models are told which of two texts a token belongs to."""
        return "token_type_ids" in self._hf.model_input_names

    @property
    def languages(self) -> dict[str, int]:
        """Ids of the special tokens that name a language, as in mBART, M2M-100 and NLLB: en_XX, __en__,
        eng_Latn; by name, without underscores around it.
        """
        named = ((_LANGUAGE.fullmatch(self._added[id].decode()), id) for id in self._silent)
        return {match[1] or match[2]: id for match, id in named if match is not None}

    @property
    def chat_template(self) -> str:
        """The Jinja source of the chat template, that for tools if there are several; empty if there is
        none.
        """
        template = self._hf.chat_template
        if isinstance(template, dict):
            template = template.get("tool_use") or template.get("default")
        return template or ""

    @cached_property
    def thought_format(self) -> ThoughtFormat | None:
        """The form of the model's thoughts, as its files say; None: they name none."""
        added = {content.decode(): id for id, content in self._added.items()}
        return thought_format(
            self.chat_template, added, lambda text: self.encode_all([text], add_special_tokens=False)[0]
        )

    @cached_property
    def template_variables(self) -> Collection[str]:
        """Names that the chat template reads of its arguments."""
        if not self.chat_template:
            return ()
        return find_undeclared_variables(
            _compile_jinja_template(self.chat_template).environment.parse(self.chat_template)
        )

    def effort_arguments(self, effort: str) -> dict[str, Any]:
        """Arguments of the chat template for an effort, `none` or more; empty: it knows no such."""
        return effort_arguments(effort, self.template_variables)

    def with_thought(self, message: Mapping[str, Any], thought: str) -> dict[str, Any]:
        """An earlier answer with its thought, as the chat template reads it, if it does."""
        return with_thought(message, thought, self.chat_template)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, with the special tokens the model expects around a text.

        Raises `InvalidRequest` for half of a surrogate pair, which is no text.
        """
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of each text. Raises `InvalidRequest` if any is none that UTF-8 can hold."""
        try:
            encoded = self._hf(
                list(texts),
                add_special_tokens=add_special_tokens,
                return_attention_mask=False,
                return_token_type_ids=False,
            )
            return encoded["input_ids"]  # type: ignore[no-any-return]
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidRequest(f"the prompt is no text that UTF-8 can hold: {error}") from error

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any) -> list[int]:
        """Token ids of a conversation, ending where the assistant's answer begins.

        Raises `ChatTemplateFailed` as `chat_text`.
        """
        text = self.chat_text(messages, **template_arguments)
        return self.encode_all([text], add_special_tokens=False)[0]

    def chat_text(self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any) -> str:
        """A conversation's text up to the assistant's answer. Raises `ChatTemplateFailed`."""
        if not self._hf.chat_template:
            raise ChatTemplateFailed("this model has no chat template; send a plain prompt instead")
        try:
            text: str = self._hf.apply_chat_template(
                list(messages), tokenize=False, **{"add_generation_prompt": True} | template_arguments
            )
        except Exception as error:  # the template is the model's, and so is whatever it raises
            raise ChatTemplateFailed(f"the chat template refused the messages: {error}") from error
        return text

    def token_name(self, token_id: int) -> str | None:
        """A token as its vocabulary spells it; None for an id that it does not have."""
        return self._backend.id_to_token(token_id)  # type: ignore[no-any-return]

    def token_id(self, token: str) -> int | None:
        """The id of a token, as its vocabulary spells it."""
        return self._backend.token_to_id(token)  # type: ignore[no-any-return]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, silent ones left out."""
        visible = [id for id in token_ids if id not in self._silent]
        return self._backend.decode(visible, skip_special_tokens=False)  # type: ignore[no-any-return]

    def decode_whole(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, with the names of special ones."""
        return self._backend.decode(list(token_ids), skip_special_tokens=False)  # type: ignore[no-any-return]

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes a token stands for, which may be half a character; a special token's are its name.

        Empty for an id the tokenizer does not know: models often have more output rows than it has tokens.
        """
        spelled = self._bytes.get(token_id)
        if spelled is None:
            spelled = self._bytes[token_id] = self._spelled(token_id)
        return spelled

    def is_special(self, token_id: int) -> bool:
        """Leaves no text: it is there for the model."""
        return token_id in self._silent

    def text_stream(self, prompt_token_ids: Sequence[int], stop: Sequence[str] = ()) -> TextStream:
        """The text of what comes after a prompt."""
        return TextStream(self._text_decoder(prompt_token_ids), stop)

    def thought_stream(self, token_ids: Sequence[int], format: ThoughtFormat) -> TextStream:
        """The text of a thought that comes after these tokens, up to its end, without line ends around it."""
        end = "" if format.end.token_id is not None else format.end.text.decode()
        stop = [f"{line_ends}{end}" for line_ends in ("\n\n", "\n", "")] if end else []
        return TextStream(TrimmedTextDecoder(self._text_decoder(token_ids), trims_end=True), stop)

    def answer_stream(self, token_ids: Sequence[int], stop: Sequence[str]) -> TextStream:
        """The text of an answer that comes after a thought, without the line ends between them."""
        return TextStream(TrimmedTextDecoder(self._text_decoder(token_ids)), stop)

    def _text_decoder(self, prompt: Sequence[int]) -> TextDecoder:
        if self._joins_bytes:
            return ByteTextDecoder(self._visible_bytes, prompt)
        if self._byte_by_token:
            return FallbackTextDecoder(self.decode, self._is_silent, self._byte_by_token, prompt)
        return WindowTextDecoder(self.decode, self._is_silent, prompt, ends_in_halves=self._is_byte_level)

    def _visible_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._silent else self.token_bytes(token_id)

    def _tags_taught(self, special: Mapping[str, int]) -> set[int]:
        """Special tokens that are text all the same: tags of a pair of which the chat template shows one,
        such as <tool_call> and </tool_call> in Hermes' files. Answers are read by them. The other tag may be
        a token that is not special, or text of the template.
        """
        control = {self._hf.bos_token, self._hf.eos_token, self._hf.pad_token, self._hf.unk_token}
        added = {content.decode() for content in self._added.values()}
        taught = set()
        for tag in special.keys() - control:
            other = _other_tag(tag)
            shown = other is not None and other in self.chat_template
            if other is not None and (shown or (other in added and tag in self.chat_template)):
                taught.add(special[tag])
        return taught

    def _is_silent(self, token_id: int) -> bool:
        return token_id in self._silent or self._backend.id_to_token(token_id) is None

    def _spelled_bytes(self) -> dict[int, int]:
        """Tokens that stand for one byte, written <0x0A>, and leave text."""
        byte_tokens = {}
        for byte in range(256):
            for name in {f"<0x{byte:02X}>", f"<0x{byte:02x}>"}:
                token = self._backend.token_to_id(name)
                if token is not None and token not in self._silent:
                    byte_tokens[token] = byte
        return byte_tokens

    def _spelled(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            # As the library does it: a token with a character outside its alphabet is taken literally.
            known = all(character in _BYTE_BY_CHARACTER for character in token)
            return bytes(map(_BYTE_BY_CHARACTER.__getitem__, token)) if known else token.encode()
        if added is not None:
            return added
        if token_id in self._byte_by_token:
            return bytes([self._byte_by_token[token_id]])
        return token.replace("▁", " ").encode()


def _other_tag(token: str) -> str | None:
    """</think> for <think>, and the reverse; None for a token that is no tag."""
    if not token.startswith("<"):
        return None
    return f"<{token[2:]}" if token.startswith("</") else f"</{token[1:]}"


def _decoder_types(decoder: Any) -> Iterator[str]:
    """The kinds of decoder a tokenizer is made of, in order."""
    if decoder is None:
        return
    described = json.loads(decoder.__getstate__())
    for part in described.get("decoders", [described]):
        yield part["type"]


def _byte_by_character() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable bytes stand for themselves, the others for 256 and up.

    Source: `bytes_to_unicode` of GPT-2's encoder.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_BY_CHARACTER = _byte_by_character()
