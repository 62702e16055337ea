"""Asks an upstream what it is, which models it has, and what each of them answers.

Facts are where each engine puts them: vLLM and SGLang `max_model_len` in `/v1/models`, llama.cpp `meta`
there and `n_ctx` in `/props`, TGI `max_total_tokens` in `/info`; the version is at `/version`, `/info` or
`/get_server_info`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nightshift.errors import ConfigurationError
from nightshift.fleet.models import ModelKind
from nightshift.jobs import JsonObject
from nightshift.process.upstreams import SETTING, Upstream
from workers.upstreams.connection import Connection
from workers.upstreams.faults import BrokenOff, ModelGone, RowFailed, RowRefused, Unavailable
from workers.upstreams.messages.answers import usage_of
from workers.upstreams.messages.continuing import begun
from workers.upstreams.served import CHATS, CLASSIFY, LIMITS, Engine, ServedModel

PROBE_S: Final = 60.0  # for one question; a model may have to be loaded first
OURSELVES: Final = "nightshift"
SGLANG_LOW_FIRST: Final = "schedule_low_priority_values_first"
CONTEXT_FIELDS: Final = ("max_model_len", "context_length", "context_window", "max_context_length")

_HI: Final = "Hi"
QUESTIONS: Final[Mapping[str, JsonObject]] = {
    CHATS: {"messages": [{"role": "user", "content": _HI}], LIMITS[0]: 1},
    "/v1/completions": {"prompt": _HI, "max_tokens": 1},
    "/v1/embeddings": {"input": _HI},
    "/v1/rerank": {"query": _HI, "documents": [_HI]},
    "/v1/score": {"text_1": _HI, "text_2": _HI},
    CLASSIFY: {"input": _HI},
    "/v1/moderations": {"input": _HI},
}
"""The least request of each route that an upstream may have."""
TEXT_ROUTES: Final = (CHATS, "/v1/completions")


async def probe(upstream: Upstream, connection: Connection) -> Sequence[ServedModel]:
    """The models to serve. Raises ConfigurationError, or an UpstreamFault where asking again may help."""
    listing = await connection.get("/models", timeout_s=PROBE_S)
    entries = [entry for entry in _list(listing) if isinstance(entry.get("id"), str)]
    if any(entry.get("owned_by") == OURSELVES for entry in entries):
        raise _wrong(upstream, "it is a Nightshift itself: work would go in a circle")
    if not entries:
        raise Unavailable("has no models")
    if upstream.models is not None and (
        lacking := sorted(upstream.models.keys() - {entry["id"] for entry in entries})
    ):
        raise _wrong(upstream, f"it has no model {lacking[0]!r}; it has {_names(entries)}")
    engine = await _engine(connection, entries)
    models = [await _model(upstream, connection, engine, entry) for entry in entries]
    return [model for model in models if model is not None]


async def _model(
    upstream: Upstream, connection: Connection, engine: Engine, entry: JsonObject
) -> ServedModel | None:
    """The model, or None: it is not to be served, or answers none of our routes."""
    id_there = entry["id"]
    said = upstream.model_at(id_there)
    if said is None:
        return None
    routes = frozenset([route for route in QUESTIONS if await takes(connection, route, id_there) is not None])
    limit_field, renamed = LIMITS[0], {LIMITS[0]: None, LIMITS[1]: 16}
    if CHATS not in routes and await takes(connection, CHATS, id_there, renamed) is not None:
        routes, limit_field = routes | {CHATS}, LIMITS[1]
    if not routes:
        if upstream.models is None:
            return None
        raise _wrong(upstream, f"its model {id_there!r} answers none of {', '.join(QUESTIONS)}")
    context_length = (
        said.context_length or _context(entry) or await _context_elsewhere(connection) or _trained(entry)
    )
    if context_length is None:
        raise _wrong(
            upstream,
            f"it does not say the context length of {id_there!r}: set context_length below "
            f"models.{id_there} in a YAML file that NIGHTSHIFT_{SETTING} names",
        )
    root = entry.get("root")
    return ServedModel(
        said.id or id_there,
        id_there,
        _kind(routes),
        routes,
        context_length,
        root if isinstance(root, str) else None,
        engine,
        limit_field,
        await _ranks(connection, engine, routes, id_there),
        CHATS in routes and await _continues(connection, id_there),
    )


def _kind(routes: frozenset[str]) -> ModelKind:
    if routes & {*TEXT_ROUTES}:
        return ModelKind.DECODER
    return ModelKind.ENCODER if "/v1/embeddings" in routes else ModelKind.CLASSIFIER


async def takes(
    connection: Connection, route: str, model: str, more: JsonObject | None = None
) -> JsonObject | None:
    """The answer to the route's least request with `more` fields, and without those that are None. None: it
    refuses. Raises UpstreamFault.
    """
    fields = QUESTIONS[route] | {"model": model} | (more or {})
    question = {name: value for name, value in fields.items() if value is not None}
    try:
        answer = await connection.post(route, question)
        body = json.loads(answer.data)
    except (RowRefused, RowFailed, ModelGone, ValueError, RecursionError):
        return None
    except Unavailable as error:
        if error.reason in ("answers 405", "answers 501"):
            return None
        raise
    return body if isinstance(body, dict) else None


async def _ranks(connection: Connection, engine: Engine, routes: frozenset[str], model: str) -> bool:
    """Whether it runs requests with a lower `priority` sooner, or takes no notice. SGLang's default is the
    reverse; vLLM may refuse any but 0 where it does not schedule by them.
    """
    if engine.name == "sglang":
        told = await _told(connection, "/get_server_info")
        return bool(told.get("enable_priority_scheduling") and told.get(SGLANG_LOW_FIRST))
    ranked = [route for route in TEXT_ROUTES if route in routes]
    if engine.name != "vllm" or not ranked:
        return False
    return await takes(connection, ranked[0], model, {"priority": 1}) is not None


async def _continues(connection: Connection, model: str) -> bool:
    """Whether the beginning of an answer makes a chat's prompt longer by its own tokens alone: some templates
    end it, or put a thought before it.
    """
    streamed = QUESTIONS[CHATS] | {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    counts: list[int] = []
    try:
        for body in (streamed, begun(streamed, _HI)):
            usages = [usage_of(chunk) async for chunk in connection.stream(CHATS, body) if chunk.get("usage")]
            counts += [usage.prompt_tokens for usage in usages[-1:]]
    except (RowRefused, RowFailed, ModelGone, BrokenOff):
        return False
    return len(counts) == 2 and 0 < counts[1] - counts[0] <= len(_HI)


async def _engine(connection: Connection, entries: Sequence[JsonObject]) -> Engine:
    owners = [entry["owned_by"] for entry in entries if isinstance(entry.get("owned_by"), str)]
    name = (owners[0] if owners else "unknown")[:64]
    for path in ("/version", "/info", "/get_server_info"):
        if isinstance(version := (await _told(connection, path)).get("version"), str):
            return Engine(name, version[:64])
    return Engine(name, None)


async def _context_elsewhere(connection: Connection) -> int | None:
    """The context length as llama.cpp and TGI tell it."""
    for path in ("/props", "/info"):
        told = await _told(connection, path)
        settings = told.get("default_generation_settings")
        length = _whole(told.get("max_total_tokens")) or _whole(
            settings.get("n_ctx") if isinstance(settings, dict) else told.get("n_ctx")
        )
        if length is not None:
            return length
    return None


async def _told(connection: Connection, path: str) -> JsonObject:
    """Facts that an engine tells of itself beside `/v1`; nothing where it has no such route."""
    try:
        return await connection.get(path, at_root=True, timeout_s=PROBE_S)
    except (RowRefused, RowFailed, ModelGone, Unavailable):
        return {}


def _context(entry: JsonObject) -> int | None:
    return next((length for name in CONTEXT_FIELDS if (length := _whole(entry.get(name)))), None)


def _trained(entry: JsonObject) -> int | None:
    """The length that llama.cpp's model was trained for, where the one that is served is not told."""
    meta = entry.get("meta")
    return _whole(meta.get("n_ctx_train")) if isinstance(meta, dict) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _list(listing: JsonObject) -> list[JsonObject]:
    data = listing.get("data")
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


def _names(entries: Sequence[JsonObject]) -> str:
    names = [entry["id"] for entry in entries]
    return ", ".join(map(repr, names[:5])) + (" and others" if len(names) > 5 else "")


def _wrong(upstream: Upstream, says: str) -> ConfigurationError:
    return ConfigurationError(f"The upstream {upstream.name!r} cannot be used: {says}.", param=SETTING)
