"""Compiles grammars to guides on threads of their own, and keeps them by digest.

Compiling takes milliseconds, a large schema up to seconds. It holds no lock of Python's, so steps go on.
"""

import json
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial

import llguidance
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from ..errors import GrammarFailed
from ..text.tokenizer import Tokenizer
from .grammar import Grammar
from .guide import Guide
from .schemas import PATTERNS_COMBINED_MAX, patterns_combined

log = logging.getLogger(__name__)

CACHE_ENTRIES_MAX = 256
THREADS = 2
COMPILE_S_MAX = 10.0
"""llguidance's own limits end nearly all that takes long before this does."""
LEXER_STATES_MAX = 20_000
"""Lexer states of one sequence, at 1 to 2 kB each."""
WHITESPACE = r"[ \n\r\t]{1,32}"
"""White space between the parts of JSON, at most. Without a bound, a model may write nothing but spaces
to its limit.
"""

_LARK_PART = re.compile(
    r"""//[^\n]* | \#[^\n]* | "(?:\\.|[^"\\\n])*"? | /(?:\\.|[^/\\\n])+/? | (?P<name></?[\w-]+>)""",
    re.VERBOSE,
)
"""A comment, a string, a regular expression, or the name of a token. What is not closed is read once, too."""

_UNREADABLE_JSON = 'failed to parse "%json"'
_JSON_SCHEMA = re.compile("%json")
_JSON_RULE = re.compile(r"\w+: (?P<json>%json .*)")
_LENIENT_RULE = re.compile(r'^(?P<name>\w+): (?P<json>%json .*"lenient": true\}\})$', re.MULTILINE)
ANY_OBJECT = f"%json {json.dumps({'type': 'object', 'x-guidance': {'whitespace_pattern': WHITESPACE}})}"

_LIMITS = LLParserLimits(max_lexer_states=LEXER_STATES_MAX, verbose_errors=False)


RunAside = Callable[[str, Callable[[], object]], object]
"""Runs a task of a flow on another thread, and returns at once."""


class Compiling:
    """A grammar on its way, which several sequences may wait for."""

    def __init__(self) -> None:
        self.matcher: Future[LLMatcher] = Future()
        self.started_s: float | None = None
        """Start by the monotonic clock; None while it waits for a thread."""

    @property
    def is_late(self) -> bool:
        return self.started_s is not None and time.monotonic() - self.started_s > COMPILE_S_MAX

    def guide(self) -> Guide | None:
        """A new state at the grammar's beginning; None if it is not compiled yet.

        Raises `GrammarFailed` if it cannot be, or takes too long.
        """
        if self.matcher.done():
            return Guide(self.matcher.result().deep_copy())
        if self.is_late:
            raise GrammarFailed(f"it takes more than {COMPILE_S_MAX:g} s to compile")
        return None


class GrammarCompiler:
    """Compiles for one tokenizer. `compile` may be called from any thread."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos_token_ids: Iterable[int],
        run_aside: RunAside | None = None,
    ) -> None:
        """`run_aside` compiles where flows take turns; by default on threads of its own, in order."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._lock = threading.Lock()
        self._tokenizer_lock = threading.Lock()
        self._table: LLTokenizer | None = None
        self._known: OrderedDict[tuple[str, str], Compiling] = OrderedDict()  # the last used last
        self._run_aside = run_aside or self._run_in_order
        self._threads: ThreadPoolExecutor | None = None

    def compile(self, grammar: Grammar, *, cache_salt: str = "", flow: str = "") -> Compiling:
        """Begins, or finds what was begun for the same grammar with the same salt. Returns at once."""
        key = (cache_salt, grammar.digest)
        with self._lock:
            compiled = self._known.get(key)
            if compiled is not None:  # one that is late is refused again, until it is done or forgotten
                self._known.move_to_end(key)
                return compiled
            compiling = self._known[key] = Compiling()
            while len(self._known) > CACHE_ENTRIES_MAX:
                self._known.popitem(last=False)
            self._run_aside(flow, partial(self._compile, grammar, compiling))
        return compiling

    def _run_in_order(self, flow: str, task: Callable[[], object]) -> None:
        self._threads = self._threads or ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")
        self._threads.submit(task)

    def _compile(self, grammar: Grammar, compiling: Compiling) -> None:
        try:
            table = self._token_table()
            compiling.started_s = time.monotonic()
            compiling.matcher.set_result(_matcher(table, grammar))
        except GrammarFailed as error:
            compiling.matcher.set_exception(error)
        except Exception as error:  # of a tokenizer that llguidance does not know, for one
            log.exception("no grammar can be compiled: digest %s", grammar.digest)
            compiling.matcher.set_exception(GrammarFailed(f"{type(error).__name__}: {error}"))

    def _token_table(self) -> LLTokenizer:
        """Made once, which takes a second for a large vocabulary."""
        with self._tokenizer_lock:
            if self._table is None:
                size = max(self._vocab_size, self._tokenizer.num_tokens)
                self._table = _token_table(self._tokenizer, size, self._eos_token_ids)
            return self._table


def _token_table(tokenizer: Tokenizer, size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """llguidance's view of a tokenizer, in which tokens `<…>` match their text if they leave any."""
    eos = list(eos_token_ids) or None
    own = LLTokenizer(tokenizer.as_json(), n_vocab=size, eos_token=eos)
    return LLTokenizer(TokenizerWrapper(_TextTokens(own, tokenizer, size)), eos_token=eos)


class _TextTokens:
    """A tokenizer in the form that llguidance's `TokenizerWrapper` takes."""

    bos_token_id = None

    def __init__(self, own: LLTokenizer, tokenizer: Tokenizer, size: int) -> None:
        self._own = own
        self.eos_token_id = own.eos_token
        self.tokens = [tokenizer.token_bytes(id) for id in range(size)]
        silent = {id for id, text in enumerate(self.tokens) if not text or tokenizer.is_special(id)}
        self._special = silent.union(own.eos_tokens)
        self.special_token_ids = sorted(self._special)

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of text that a grammar forces. The name of a special token is text like any other."""
        token_ids = self._own.tokenize_bytes(text)
        if self._special.isdisjoint(token_ids):
            return token_ids
        return self._own.greedy_tokenize(text.decode())


def wait_for_any(compiling: Iterable[Compiling], timeout_s: float) -> None:
    """Waits until one is compiled, or the time is over."""
    wait([grammar.matcher for grammar in compiling], timeout_s, FIRST_COMPLETED)


def _matcher(table: LLTokenizer, grammar: Grammar) -> LLMatcher:
    """Raises GrammarFailed."""
    grammar = _bounded(grammar)
    try:
        matcher = _compiled(table, grammar)
        if matcher.is_error() and grammar.kind == "grammar":
            matcher = _compiled(table, replace(grammar, text=_loosened(grammar.text, table)))
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarFailed(_reason(str(error))) from error
    if matcher.is_error():
        raise GrammarFailed(_reason(_with_line(matcher.get_error(), grammar, table)))
    beginning = matcher.deep_copy()
    beginning.compute_bitmask()
    if beginning.is_error():  # a schema that refers to itself alone, for one
        raise GrammarFailed("no text satisfies it")
    return matcher


def _bounded(grammar: Grammar) -> Grammar:
    """The same grammar, with any object for each lenient schema that would take llguidance without end.

    Raises GrammarFailed for another such schema.
    """
    if grammar.kind == "json_schema":
        _check_patterns(grammar.text)
    if grammar.kind != "grammar":
        return grammar

    def bounded(rule: re.Match[str]) -> str:
        try:
            _check_patterns(rule["json"].removeprefix("%json"))
        except GrammarFailed:
            return f"{rule['name']}: {ANY_OBJECT}"
        return rule[0]

    text = _LENIENT_RULE.sub(bounded, grammar.text)
    for place in _JSON_SCHEMA.finditer(text):
        _check_patterns(text[place.end() :])
    return replace(grammar, text=text)


def _check_patterns(text: str) -> None:
    """Checks the schema with which a text begins.

    Raises GrammarFailed for one that would take llguidance without end, whatever its limits.
    """
    try:
        schema, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except ValueError:  # llguidance says what is wrong with it
        return
    except RecursionError:
        raise GrammarFailed("it is nested too deeply") from None
    try:
        combined = patterns_combined(schema)
    except (ValueError, RecursionError) as error:
        raise GrammarFailed(
            str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        ) from None
    if combined > PATTERNS_COMBINED_MAX:
        raise GrammarFailed(
            f"its allOf combines up to {combined} patterns or formats for one text, and at most "
            f"{PATTERNS_COMBINED_MAX} are accepted"
        )


def _compiled(table: LLTokenizer, grammar: Grammar) -> LLMatcher:
    return LLMatcher(table, _source(grammar, table), log_level=0, limits=_LIMITS)


def _loosened(lark: str, table: LLTokenizer) -> str:
    """The same grammar, with any object for each lenient schema that cannot be compiled."""

    def usable(rule: re.Match[str]) -> str:
        alone = Grammar("grammar", f"start: {rule['json']}")
        return f"{rule['name']}: {ANY_OBJECT}" if _compiled(table, alone).is_error() else rule[0]

    return _LENIENT_RULE.sub(usable, lark)


def _with_line(error: str, grammar: Grammar, table: LLTokenizer) -> str:
    """llguidance says the line of an error, but for JSON that it cannot read: that is looked for."""
    if not error.startswith(_UNREADABLE_JSON):
        return error
    for number, line in enumerate(grammar.text.splitlines(), start=1):
        rule = _JSON_RULE.fullmatch(line)
        alone = None if rule is None else _compiled(table, Grammar("grammar", f"start: {rule['json']}"))
        if alone is not None and alone.is_error() and alone.get_error().startswith(_UNREADABLE_JSON):
            return f"at {number}(1): {error}"
    return error


def _reason(error: str) -> str:
    """llguidance's first line; of a regular expression, the cause too, which a later line has."""
    first, *others = error.splitlines() or [error]
    causes = [line.removeprefix("error: ") for line in others if line.startswith("error: ")]
    return " ".join((first, *causes))


def _source(grammar: Grammar, table: LLTokenizer) -> str:
    """The grammar in llguidance's own notation. Raises ValueError."""
    if grammar.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(
            grammar.text, overrides={"whitespace_pattern": WHITESPACE, "lenient": False}
        )
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "choice":
        choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in json.loads(grammar.text))
        return LLMatcher.grammar_from_lark(f"start: {choices}")
    text = grammar.text if "::=" in grammar.text else _with_token_ids(grammar.text, table)
    return llguidance.grammar_from("grammar", text)


def _with_token_ids(lark: str, table: LLTokenizer) -> str:
    """The same grammar, in which a token named as in llguidance's notation, <think> for one, has its id.

    That notation has names of special tokens only.
    """

    def with_id(part: re.Match[str]) -> str:
        ids = table.tokenize_str(part["name"]) if part["name"] else []
        return f"<[{ids[0]}]>" if len(ids) == 1 and not table.is_special_token(ids[0]) else part[0]

    return _LARK_PART.sub(with_id, lark)
