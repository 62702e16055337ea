"""A list of prompts through an engine, in one call."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from .core.config import EngineConfig
from .core.request import Completion, Request
from .core.sampling_params import SamplingParams
from .engine import Engine
from .errors import InvalidRequest

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""A text, token ids, or the messages of a conversation."""

WINDOW_REQUESTS = 4096
"""Requests in the engine at once, which begins those with the longest answers first."""


def generate(
    model: str | Path | EngineConfig | Engine,
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    show_progress: bool = False,
) -> list[Completion]:
    """Completes `prompts` and returns a completion for each, in their order; named as vLLM's `LLM.generate`.

    `model` is a directory or a hub id, a configuration, or an engine without other work, which is kept.
    `params` are those of all prompts, or one for each. Without a seed, a prompt's place among the prompts
    is its seed, so that a second call draws the same tokens. A prompt that fails on its own has
    `finish_reason` "abort" and its `error`; the others go on. `show_progress` draws a bar on stderr.

    Raises `InvalidRequest`, naming the prompt, before anything runs; what `Engine.load` raises; and what the
    model raises when it fails as a whole, after the prompts under way were taken back.
    """
    engine = _engine(model)
    requests = _requests(engine, prompts, params)
    done = {request.id: Completion(request.id) for request in requests}
    waiting, inside = deque(requests), set[str]()
    with _progress(len(requests), show_progress) as progress, _taken_back(engine, inside):
        while waiting or inside:
            while waiting and len(inside) < WINDOW_REQUESTS:
                request = waiting.popleft()
                inside.add(request.id)
                engine.add(request)
            for output in engine.step():
                done[output.id].append(output)
                if output.finish_reason is not None:
                    inside.discard(output.id)
                    progress.advance(progress.task_ids[0])
    return list(done.values())


def _engine(model: str | Path | EngineConfig | Engine) -> Engine:
    if isinstance(model, Engine):
        if model.has_work:
            raise InvalidRequest("the engine has other requests under way, whose outputs would be lost")
        return model
    return Engine.load(model if isinstance(model, EngineConfig) else EngineConfig(str(model)))


def _requests(
    engine: Engine, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> list[Request]:
    """Checked. Raises InvalidRequest."""
    if isinstance(prompts, str):  # a common slip, and would complete each of its letters
        raise InvalidRequest("prompts is one text; give a list")
    if params is None or isinstance(params, SamplingParams):
        params = [params or SamplingParams()] * len(prompts)
    if len(params) != len(prompts):
        raise InvalidRequest(f"params has {len(params)} entries for {len(prompts)} prompts")
    requests = []
    for index, (prompt, sampling) in enumerate(zip(prompts, params, strict=True)):
        try:
            token_ids = _token_ids(engine, prompt)
            request = Request(str(index), token_ids, sampling, group="generate", output_kind="final_only")
            engine.check(request)
        except InvalidRequest as error:
            raise InvalidRequest(f"prompts[{index}]: {error}") from error
        requests.append(request)
    return requests


def _token_ids(engine: Engine, prompt: Prompt) -> Sequence[int]:
    if isinstance(prompt, str):
        return engine.tokenizer.encode(prompt)
    messages = [part for part in prompt if isinstance(part, Mapping)]
    if messages and len(messages) == len(prompt):
        return engine.tokenizer.render_chat(messages)
    token_ids = [part for part in prompt if isinstance(part, int)]
    if len(token_ids) == len(prompt):
        return token_ids
    raise InvalidRequest("it is neither a text, nor token ids, nor messages")


@contextmanager
def _taken_back(engine: Engine, inside: set[str]) -> Iterator[None]:
    """Takes everything back: where anything fails, or is interrupted, the engine is left without work."""
    try:
        yield
    except BaseException:
        for request_id in inside:
            engine.abort(request_id)
        with suppress(Exception):  # the model's: the one that came first is raised
            while engine.has_work:
                engine.step()
        raise


@contextmanager
def _progress(total: int, is_shown: bool) -> Iterator[Progress]:
    with Progress(console=Console(stderr=True), disable=not is_shown) as progress:
        progress.add_task("prompts", total=total)
        yield progress
