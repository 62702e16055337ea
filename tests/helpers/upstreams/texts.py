"""Answers that follow from the prompt alone, so that a test can say what each row's must be.

A generated token reads ` ·1f3a`, has the id 0x1f3a, and follows from the prompt, the choice and its place. A
prompt that ends in the first tokens of its own answer is continued after them, as text and as token ids.
"""

import hashlib
import re
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

GENERATED: Final = 0x10000  # ids below this are of generated tokens, as many from it on of all other text
LONGEST_OWN_ANSWER: Final = 32
PIECE: Final = re.compile(
    r" ·[0-9a-f]{4}| ?[^ ]{1,4}| "
)  # only those of generated tokens have six characters


@dataclass(frozen=True)
class Answer:
    token_ids: Sequence[int]
    finish_reason: str
    num_continued: int = 0  # tokens of it that the prompt had already

    @property
    def text(self) -> str:
        return text_of(self.token_ids)


def chat_answer(
    messages: Sequence[Mapping[str, Any]], max_tokens: int | None = None, choice: int = 0
) -> Answer:
    """The answer to a conversation that is not continued."""
    return answer(encode(rendered({"messages": messages})), max_tokens, choice=choice)


def text_answer(prompt: str, max_tokens: int | None = None, choice: int = 0) -> Answer:
    """The answer to a prompt for completions."""
    return answer(encode(prompt), max_tokens, choice=choice)


def answer(
    prompt_ids: Sequence[int],
    max_tokens: int | None,
    *,
    own_tokens: int | None = None,
    is_endless: bool = False,
    choice: int = 0,
) -> Answer:
    """`own_tokens`: how many it has where nothing limits it; None: the prompt says. An endless one has
    `max_tokens` in any case.
    """
    said = list(takewhile(lambda id: id < GENERATED, reversed(prompt_ids)))[::-1]
    base = prompt_ids[: len(prompt_ids) - len(said)]
    if said != _tokens(base, len(said), choice):
        said, base = [], prompt_ids
    length = 1 + _tokens(base, 1, -1)[0] % LONGEST_OWN_ANSWER if own_tokens is None else own_tokens
    left = max(0, length - len(said))
    is_cut = max_tokens is not None and (is_endless or max_tokens < left)
    count = max_tokens if is_cut else left
    new = _tokens(base, len(said) + count, choice)[len(said) :]
    return Answer(new, "length" if is_cut else "stop", len(said))


def encode(text: str) -> list[int]:
    return [
        int(piece[2:], 16) if len(piece) == 6 else GENERATED + zlib.crc32(piece.encode()) % GENERATED
        for piece in PIECE.findall(text)
    ]


def text_of(token_ids: Sequence[int]) -> str:
    return "".join(f" ·{id:04x}" for id in token_ids)


def rendered(body: Mapping[str, Any]) -> str:
    """The prompt of a chat. Under `continue_final_message` it ends in the last message's text."""
    messages = [(message["role"], content_text(message.get("content"))) for message in body["messages"]]
    continued = messages.pop()[1] if body.get("continue_final_message") else ""
    return "".join(f"<{role}>{text}" for role, text in messages) + "<assistant>" + continued


def content_text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


def vector(text: str, dimensions: int) -> list[float]:
    """The embedding of a text, in steps of 2^-15 so that float32 holds it."""
    digest = hashlib.shake_128(text.encode()).digest(2 * dimensions)
    return [value / 0x8000 for value in array("h", digest)]


def score(query: str, text: str) -> float:
    """How much a text has to do with a query: at least 0, below 1."""
    return (vector(f"{query}\0{text}", 1)[0] + 1) / 2


def logprob(token_id: int) -> float:
    return -(token_id % 1024) / 256


def _tokens(base: Sequence[int], count: int, choice: int) -> list[int]:
    """The first tokens of a prompt's answer: more of them begin with the same."""
    seed = f"{choice}/".encode() + array("Q", base).tobytes()
    return list(array("H", hashlib.shake_128(seed).digest(2 * count)))
