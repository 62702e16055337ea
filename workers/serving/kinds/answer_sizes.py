"""The most bytes that parts of a model's answers have as JSON, for the bound of an answer's size."""

import json
from collections.abc import Callable, Collection, Sequence
from typing import Final

from nightshift.endpoints.texts.logprobs import Chance, Chosen, entries, id_name
from nightshift.fleet.models import OutputSizes

LOGPROB: Final = -12.345678901234567  # among the longest as JSON
SCORE: Final = 1.2345678901234567e-05
SPACE_BYTES: Final = 1  # that some tokenizers put before a token
BYTES_PER_BYTE_MAX: Final = 9  # of a token: five as text, escaped twice, and four in its list of bytes


def token_sizes(
    token_ids: Collection[int], token_bytes: Callable[[int], bytes], *, thinks: bool = False
) -> OutputSizes:
    """Sizes of tokens. Only the longest are written as JSON, until no shorter one can be longer there.

    `thinks`: answers show a token of a thought twice, by both names of its field.
    """
    spelled = sorted({token_bytes(id) for id in token_ids}, key=len, reverse=True)
    text, logprob = 0, _logprob_bytes(id_name(max(token_ids, default=0)))
    shortest = _logprob_bytes(b"")
    for token in spelled:
        if BYTES_PER_BYTE_MAX * len(token) + shortest <= logprob and 6 * len(token) <= text:
            break
        text = max(text, _json_bytes(token.decode(errors="replace")) - 2)
        logprob = max(logprob, _logprob_bytes(token))
    return OutputSizes(token=(text + SPACE_BYTES) * (1 + thinks), logprob=logprob)


def label_sizes(names: Sequence[str]) -> OutputSizes:
    """Sizes of a classifier's labels."""
    sizes = [_json_bytes({"label": name, "score": SCORE}) + 1 for name in names]
    return OutputSizes(label=max(sizes, default=0), labels=sum(sizes))


def _logprob_bytes(token: bytes) -> int:
    return _json_bytes(entries([Chosen(Chance(token, LOGPROB), (), 0)])) + 1


def _json_bytes(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass"))
