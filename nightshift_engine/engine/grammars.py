"""Grammars of requests: compiled beside the steps, and the requests that wait for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.live_request import LiveRequest, ModelFacts
from ..core.request import Request
from ..errors import GrammarFailed
from ..text.tokenizer import Tokenizer

if TYPE_CHECKING:  # needs llguidance
    from ..guidance.compiler import Compiling, GrammarCompiler, RunAside

COMPILE_WAIT_S = 0.01
"""A step without other work waits so long for a grammar; what comes in meanwhile waits with it."""


class Grammars:
    """Live requests whose grammars are being compiled, and the compiler, made for the first grammar."""

    def __init__(self, tokenizer: Tokenizer, model: ModelFacts) -> None:
        self._tokenizer, self._model = tokenizer, model
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None
        self.run_aside: RunAside | None = None
        self.waiting: dict[str, LiveRequest] = {}
        """The requests that the batcher does not have yet, by id."""

    def compile(self, request: Request) -> Compiling | None:
        """Begins to compile a request's grammar, if it has one. Callable from any thread."""
        if request.grammar is None:
            return None
        # Imported at the first grammar: without one, the engine runs where llguidance is not installed.
        from ..guidance.compiler import GrammarCompiler

        with self._lock:
            if self._compiler is None:
                model = self._model
                self._compiler = GrammarCompiler(
                    self._tokenizer, model.vocab_size, model.eos_token_ids, self.run_aside
                )
        return self._compiler.compile(request.grammar, cache_salt=request.cache_salt, flow=request.flow)

    def take_compiled(self, *, may_wait: bool) -> Iterator[tuple[LiveRequest, GrammarFailed | None]]:
        """The requests whose grammars are compiled, which wait no more, and those whose cannot be.

        `may_wait`: if there is none, waits a moment for one.
        """
        compiling = {id: live.compiling for id, live in self.waiting.items() if live.compiling is not None}
        if may_wait:
            from ..guidance.compiler import wait_for_any

            wait_for_any(compiling.values(), COMPILE_WAIT_S)
        for id, grammar in compiling.items():
            live = self.waiting[id]
            try:
                live.sequence.guide = grammar.guide()
            except GrammarFailed as error:
                yield live, error
                continue
            if live.sequence.guide is not None:
                yield self.waiting.pop(id), None
